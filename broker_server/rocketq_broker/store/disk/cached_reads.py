"""Reads that must not wait for the disk: they succeed from the page cache, or raise NotCached.

    with cached_only(bytes_max):
        ...                       every read of the store on this thread takes nothing but the page cache

The event loop reads so, since one read that waits for the disk would keep every other call waiting.
Within the block `Handles.read` opens no file, and reads by `File.read_cached`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rocketq_broker.store.disk.files import Data, File, NotCached


class CachedReads:
    """How much a thread may still read within one `cached_only` block, in bytes."""

    __slots__ = ("_bytes_left",)

    def __init__(self, bytes_max: int) -> None:
        self._bytes_left = bytes_max

    def read(self, file: File, size: int, at: int) -> Data:
        """Read from the page cache; raise NotCached if it is not all there, or more than may be read."""
        if size > self._bytes_left:
            raise NotCached
        self._bytes_left -= size
        return file.read_cached(size, at)


class _OfThread(threading.local):
    reads: CachedReads | None = None


_of_thread = _OfThread()


@contextmanager
def cached_only(bytes_max: int) -> Iterator[None]:
    """Have this thread read at most `bytes_max`, and only from the page cache, until the block ends."""
    _of_thread.reads = CachedReads(bytes_max)
    try:
        yield
    finally:
        _of_thread.reads = None


def cached_reads() -> CachedReads | None:
    """Return how this thread has to read; None if it may wait for the disk."""
    return _of_thread.reads
