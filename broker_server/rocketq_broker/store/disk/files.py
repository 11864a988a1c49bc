"""The seam between the store and the disk.

The store speaks to `Files` and `File` only, with paths relative to its
directory, so that tests can put a storage double underneath that cuts the
power, tears writes or fails a sync. `OSFiles` is the real one.

What a `File` promises is what POSIX promises and no more: a write is in the page
cache when `write` returns, on the disk when `sync` has returned, and after a
failed `sync` its fate is unknown. Which call that is on which system, `rocketq.system.durability` decides.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from rocketq.system.durability import sync_directory, sync_file
from rocketq_broker.store.errors import StoreLocked

#: What was read.
Data: TypeAlias = "bytes | memoryview"


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """The file system under the store, in bytes."""

    total: int
    free: int

    @property
    def used_percent(self) -> int:
        return 100 * (self.total - self.free) // self.total if self.total else 0


#: What the operating system says when there is no space; it then wrote nothing, or a part.
FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
#: Linux: have preadv2(2) fail rather than wait for the disk. Other systems have no such read.
_CACHED_ONLY: Final[int | None] = getattr(os, "RWF_NOWAIT", None)
#: What it then says: not all is in the page cache; or this file system cannot tell.
_NOT_CACHED: Final = frozenset({errno.EAGAIN, errno.EOPNOTSUPP})
#: The file that a store keeps locked while it is open.
LOCK_FILE: Final = "lock"
#: Linux takes at most this many parts in one gathering write (IOV_MAX).
PARTS_MAX = 1024


class NotCached(Exception):
    """What was asked for is not in the page cache, or the system cannot tell."""


class File(Protocol):
    """One open file."""

    def read(self, size: int, at: int) -> bytes:
        """Return up to `size` bytes from `at`; fewer only at the end of the file."""
        ...

    def read_cached(self, size: int, at: int) -> Data:
        """Return the same without waiting for the disk; raise NotCached where that cannot be had."""
        ...

    def write(self, parts: Sequence[bytes | pa.Buffer], at: int) -> None:
        """Write all parts one after the other from `at`; raise OSError if not all could be."""
        ...

    def sync(self) -> None: ...

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...


class Files(Protocol):
    """A directory tree."""

    def open(self, path: str, *, create: bool = False) -> File: ...

    def list(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; none if there is no such directory."""
        ...

    def make_directory(self, path: str) -> None: ...

    def remove(self, path: str) -> None:
        """Remove a file or an empty directory; it may be absent."""
        ...

    def replace(self, source: str, target: str) -> None: ...

    def sync_directory(self, path: str) -> None: ...

    def exists(self, path: str) -> bool: ...

    def usage(self) -> DiskUsage:
        """Return the size of the file system and what of it is free for this process."""
        ...

    def lock(self) -> None:
        """Take the directory for this process; raise StoreLocked."""
        ...

    def unlock(self) -> None: ...


class OSFile:
    """A file of the operating system; closed when nobody holds it any more.

    A handle may be dropped from a cache while another thread still reads through
    it. It closes with its last reference, so that thread is never handed a
    descriptor that has become another file's.
    """

    def __init__(self, path: str, create: bool) -> None:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        self._descriptor = os.open(path, flags, 0o600)

    def __del__(self) -> None:
        descriptor = getattr(self, "_descriptor", -1)
        if descriptor >= 0:
            os.close(descriptor)

    def read(self, size: int, at: int) -> bytes:
        data = os.pread(self._descriptor, size, at)
        if 0 < len(data) < size:
            pieces = [data]
            got = len(data)
            while got < size and (data := os.pread(self._descriptor, size - got, at + got)):
                pieces.append(data)
                got += len(data)
            return b"".join(pieces)
        return data

    def read_cached(self, size: int, at: int) -> Data:
        if _CACHED_ONLY is None:
            raise NotCached
        # Memory that nobody has filled with zeros: large reads would pay for that.
        data = np.empty(size, np.uint8).data
        got = 0
        while got < size:
            try:
                more = os.preadv(self._descriptor, [data[got:]], at + got, _CACHED_ONLY)
            except OSError as error:
                if error.errno in _NOT_CACHED:
                    raise NotCached from None
                raise
            if not more:
                break
            got += more
        return data[:got]

    def write(self, parts: Sequence[bytes | pa.Buffer], at: int) -> None:
        for first in range(0, len(parts), PARTS_MAX):
            some = parts[first : first + PARTS_MAX]
            size = sum(len(part) for part in some)
            written = os.pwritev(self._descriptor, some, at)
            if written < size:
                rest = b"".join(some)[written:]
                while rest:
                    written += (more := os.pwrite(self._descriptor, rest, at + written))
                    rest = rest[more:]
            at += size

    def sync(self) -> None:
        sync_file(self._descriptor)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size


def _make_directories(path: Path) -> None:
    """Make a directory and those above it, each durably: synced files in a lost directory are lost."""
    if path.is_dir():
        return
    _make_directories(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    sync_directory(path.parent)


class OSFiles:
    """The tree below one real directory, which is made if it is absent."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._lock = -1
        _make_directories(root)

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"

    def open(self, path: str, *, create: bool = False) -> OSFile:
        return OSFile(self._path(path), create)

    def list(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self._path(path)))
        except FileNotFoundError:
            return []

    def make_directory(self, path: str) -> None:
        os.makedirs(self._path(path), mode=0o700, exist_ok=True)

    def remove(self, path: str) -> None:
        try:
            os.unlink(self._path(path))
        except FileNotFoundError:
            return
        except (IsADirectoryError, PermissionError):
            os.rmdir(self._path(path))

    def replace(self, source: str, target: str) -> None:
        os.replace(self._path(source), self._path(target))

    def sync_directory(self, path: str) -> None:
        sync_directory(self._path(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(self._path(path))

    def usage(self) -> DiskUsage:
        disk = os.statvfs(self._root)
        return DiskUsage(disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize)

    def lock(self) -> None:
        descriptor = os.open(self._path(LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise StoreLocked(self._root) from None
        self._lock = descriptor

    def unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
