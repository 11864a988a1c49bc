"""What a broker process does about memory: it keeps that of bodies, collects rarely, and leaves out pandas.

Every body and every answer is a fresh block of about a MiB. By default glibc takes
such blocks from the system and gives them back as soon as they are free, so each
MiB costs 256 page faults and as many zeroed pages: measured, three quarters of all
the processor time of a pull. Told to keep what was freed, it hands out the same
pages again. What is kept is bounded, and Arrow's own pool is not concerned.

pyarrow imports pandas, if that is installed, when it first makes an array of Python
values: 60 MB, and on the event loop a second in which nobody is answered. A broker
has no use for it, but beside Spark it is installed.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from importlib.abc import MetaPathFinder
from typing import Final

#: Blocks below this come from the heap; glibc's own upper bound for its moving threshold.
HEAP_BLOCK_BYTES_MAX: Final = 32 * 1024 * 1024
#: Free memory that may stay at the top of a heap.
KEPT_BYTES_MAX: Final = 64 * 1024 * 1024

#: Objects that may be made between two looks for garbage.
_NEW_OBJECTS: Final = 20_000

# From glibc's malloc.h; part of its ABI.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> bool:
    """Tell glibc to reuse large blocks; return whether it did (another C library has no such setting)."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((_M_MMAP_THRESHOLD, HEAP_BLOCK_BYTES_MAX), (_M_TRIM_THRESHOLD, KEPT_BYTES_MAX))
    return all(mallopt(setting, value) == 1 for setting, value in settings)


def collect_rarely() -> None:
    """Have Python look for garbage in cycles less often, and not among what is there now.

    By default it looks after every 700 objects made, a few messages, and every now and then through all the
    modules: 5 % of what a small send costs. What the broker makes for a call is freed by its
    reference count.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, 20, 20)


class _Absent(MetaPathFinder):
    """Finds nothing, and lets nobody after it find one package."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == self._name:
            raise ModuleNotFoundError(f"{fullname} is left out of this process", name=fullname)


def leave_out_pandas() -> None:
    """Let `import pandas` fail in this process as if it were not installed."""
    # Not by a None in sys.modules: pyarrow would take that for the module.
    sys.meta_path.insert(0, _Absent("pandas"))
