"""Memory as a machine has it that has been up for days: free memory is little, the page cache the rest.

A virtual machine may give its free memory back to its host, and gets it again page by page as
it touches it: on the machine where these benchmarks are kept a page costs 5 to 8 µs then,
against 0.6 µs for one that it has. A broker's log grows into such pages for as long as there are any,
so a minute's benchmark would measure little else, and a day's service nothing of it.

So before a turn the page cache is filled, by reading a file that is all hole and takes no room on the
disk. What is written next takes its pages from there, as it would after a day.
`--cold` leaves memory as it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

MIB: Final = 1 << 20
#: With less free than this a turn's pages come from the page cache.
FREE_BYTES: Final = 512 * MIB
_HOLE_BYTES: Final = 1 << 40
_MEMINFO: Final = Path("/proc/meminfo")


class PageCache:
    """A file of nothing, of which ever further parts are read."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._at = 0
        self._block = bytearray(MIB)

    def fill(self) -> None:
        """Read until little memory is free; nothing where the system does not say how much there is."""
        if not _MEMINFO.exists():
            return
        end = self._at + _meminfo("MemTotal")
        while self._at < end and _meminfo("MemFree") > FREE_BYTES:
            for _ in range(64):
                os.preadv(self._file, [self._block], self._at % _HOLE_BYTES)
                self._at += MIB


@contextmanager
def filled_page_cache(cold: bool) -> Iterator[Callable[[], None]]:
    """What to call before each turn; with `cold` it does nothing. What was read is let go at the end."""
    if cold:
        yield lambda: None
        return
    with TemporaryFile(prefix="rocketq-bench-") as file:
        file.truncate(_HOLE_BYTES)
        yield PageCache(file.fileno()).fill


def _meminfo(name: str) -> int:
    """Return a line of the system's account of its memory, in bytes."""
    [line] = [line for line in _MEMINFO.read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024
