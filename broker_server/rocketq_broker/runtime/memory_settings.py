"""Settings of a broker process that concern memory: reuse freed blocks, collect rarely, do not load pandas.

Every body and every answer is a new block of about a MiB. By default glibc gets such blocks from the system
and returns them as soon as they are free, so each MiB costs 256 page faults and as many pages to be zeroed.
This was measured as three quarters of the processor time of a pull. With the settings here glibc reuses freed
blocks. The memory that it keeps is bounded. Arrow's own pool is not affected.

When pyarrow first makes an array of Python values, it imports pandas, if pandas is installed: 60 MB, and a
second in which the event loop answers nobody. A broker does not need pandas, but a machine with Spark has it.
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

#: New objects between two runs of the garbage collector.
_NEW_OBJECTS: Final = 20_000

# From glibc's malloc.h; part of its ABI.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> bool:
    """Tell glibc to reuse large blocks; return whether it does. Other C libraries have no such setting."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((_M_MMAP_THRESHOLD, HEAP_BLOCK_BYTES_MAX), (_M_TRIM_THRESHOLD, KEPT_BYTES_MAX))
    return all(mallopt(setting, value) == 1 for setting, value in settings)


def collect_rarely() -> None:
    """Make Python's garbage collector run less often, and ignore the objects that exist now.

    By default it runs after every 700 new objects, which are a few messages, and sometimes scans all modules:
    5 % of the cost of a small send. Reference counts free the objects of a call.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, 20, 20)


class _Absent(MetaPathFinder):
    """An import finder that makes one package look as if it were not installed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == self._name:
            raise ModuleNotFoundError(f"{fullname} is left out of this process", name=fullname)


def leave_out_pandas() -> None:
    """Let `import pandas` fail in this process as if it were not installed."""
    # Not by a None in sys.modules: pyarrow would take that for the module.
    sys.meta_path.insert(0, _Absent("pandas"))
