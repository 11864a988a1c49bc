"""Open files, as many as allowed, the least recently used given up first.

Ten thousand queues must not cost ten thousand descriptors, so every file of the
store is opened on use through this cache. `OSFile` closes with its last
reference, so giving a handle up never pulls it from under a reader.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from rocketq_broker.store.disk.cached_reads import cached_reads
from rocketq_broker.store.disk.files import Data, File, Files, NotCached


class Handles:
    """At most `open_max` open files of one tree; safe to use from any thread."""

    def __init__(self, files: Files, open_max: int) -> None:
        self._files = files
        self._open_max = open_max
        self._open: OrderedDict[str, File] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: str, *, create: bool = False) -> File:
        """Return the open file; raise FileNotFoundError if it is absent and not to be created."""
        with self._lock:
            file = self._open.get(path)
            if file is not None:
                self._open.move_to_end(path)
                return file
            file = self._files.open(path, create=create)
            self._open[path] = file
            if len(self._open) > self._open_max:
                self._open.popitem(last=False)
            return file

    def read(self, path: str, size: int, at: int) -> Data:
        """Return up to `size` bytes of a file from `at`; fewer only at its end.

        Raises FileNotFoundError, or NotCached within `cached_only`: there the file has to be open already,
        and what is read in the page cache.
        """
        reads = cached_reads()
        if reads is None:
            return self.get(path).read(size, at)
        # Another thread may hold the lock while it opens a file.
        if not self._lock.acquire(blocking=False):
            raise NotCached
        try:
            file = self._open.get(path)
            if file is None:
                raise NotCached
            self._open.move_to_end(path)
        finally:
            self._lock.release()
        return reads.read(file, size, at)

    def forget(self, path: str) -> None:
        """Give up the handle of a file that is about to be removed."""
        with self._lock:
            self._open.pop(path, None)

    def close(self) -> None:
        with self._lock:
            self._open.clear()

    def __len__(self) -> int:
        return len(self._open)
