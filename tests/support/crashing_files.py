"""`Files` over the disk in memory (`disk`): one process's view of it."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from posixpath import basename, dirname

import pyarrow as pa

from rocketq_broker.store.disk.files import DiskUsage
from rocketq_broker.store.errors import StoreLocked
from tests.support.disk import Content, Disk, Folder

_DISK_BYTES = 1 << 40


@dataclass(slots=True)
class CrashingFile:
    """One open file; its inode stays even when its name goes."""

    disk: Disk
    session: int
    path: str
    content: Content

    def read(self, size: int, at: int) -> bytes:
        with self.disk.lock:
            self.disk.check(self.session)
            if at < 0 or size < 0:
                raise OSError(errno.EINVAL, "a negative place or size")
            return bytes(self.content.now[at : at + size])

    def read_cached(self, size: int, at: int) -> bytes:
        return self.read(size, at)

    def write(self, parts: Sequence[bytes | pa.Buffer], at: int) -> None:
        data = b"".join(bytes(part) for part in parts)
        disk = self.disk
        with disk.lock:
            disk.check(self.session)
            fault = disk.step("write", self.path)
            error = 0
            if fault is not None:
                data, error = data[: int(len(data) * fault.share)], fault.error
            elif disk.free_bytes is not None:
                growth = max(0, at + len(data) - len(self.content.now))
                if growth > disk.free_bytes:
                    data, error = data[: max(0, len(data) - growth + disk.free_bytes)], errno.ENOSPC
                disk.free_bytes = max(0, disk.free_bytes - growth)
            elif not disk.is_on:
                data = data[: disk.rng.randint(0, len(data))]
            self.content.write(data, at)
            if error:
                raise OSError(error, os.strerror(error), self.path)
            disk.ends_here()

    def sync(self) -> None:
        with self.disk.lock:
            self.disk.check(self.session)
            fault = self.disk.step("sync", self.path)
            if fault is not None:
                self.content.fail_sync(self.disk.rng)
                if fault.evict:
                    self.content.evict()
                raise OSError(fault.error, os.strerror(fault.error), self.path)
            self.disk.ends_here()
            self.content.sync()

    def truncate(self, size: int) -> None:
        with self.disk.lock:
            self.disk.check(self.session)
            self.disk.step_or_fail("truncate", self.path)
            before = len(self.content.now)
            self.content.truncate(size)
            if self.disk.free_bytes is not None:
                self.disk.free_bytes += max(0, before - size)
            self.disk.ends_here()

    def size(self) -> int:
        with self.disk.lock:
            self.disk.check(self.session)
            return len(self.content.now)


class CrashingFiles:
    """A process's view of a disk, from when it is made until the power goes or it is killed."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.session = disk.session
        self._locked_by: int | None = None

    def _folder(self, path: str) -> Folder:
        node = self.disk.node(path)
        if not isinstance(node, Folder):
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return node

    def open(self, path: str, *, create: bool = False) -> CrashingFile:
        with self.disk.lock:
            self.disk.check(self.session)
            node = self.disk.node(path)
            if isinstance(node, Folder):
                raise IsADirectoryError(errno.EISDIR, "it is a directory", path)
            if node is None:
                if not create:
                    raise FileNotFoundError(errno.ENOENT, "no such file", path)
                folder = self._folder(dirname(path))
                self.disk.step_or_fail("create", path)
                node = Content()
                folder.change({basename(path): node})
                self.disk.ends_here()
            return CrashingFile(self.disk, self.session, path, node)

    def list(self, path: str) -> list[str]:
        with self.disk.lock:
            self.disk.check(self.session)
            node = self.disk.node(path)
            return sorted(node.now) if isinstance(node, Folder) else []

    def make_directory(self, path: str) -> None:
        with self.disk.lock:
            self.disk.check(self.session)
            folder = self.disk.root
            for name in filter(None, path.split("/")):
                node = folder.now.get(name)
                if node is None:
                    self.disk.step_or_fail("make_directory", path)
                    node = Folder()
                    folder.change({name: node})
                    self.disk.ends_here()
                if not isinstance(node, Folder):
                    raise NotADirectoryError(errno.ENOTDIR, "it is a file", path)
                folder = node

    def remove(self, path: str) -> None:
        with self.disk.lock:
            self.disk.check(self.session)
            node = self.disk.node(path)
            if node is None:
                return
            if isinstance(node, Folder) and node.now:
                raise OSError(errno.ENOTEMPTY, "the directory is not empty", path)
            self.disk.step_or_fail("remove", path)
            self._folder(dirname(path)).change({basename(path): None})
            if self.disk.free_bytes is not None and isinstance(node, Content):
                self.disk.free_bytes += len(node.now)
            self.disk.ends_here()

    def replace(self, source: str, target: str) -> None:
        with self.disk.lock:
            self.disk.check(self.session)
            node = self.disk.node(source)
            if node is None:
                raise FileNotFoundError(errno.ENOENT, "no such file", source)
            assert dirname(source) == dirname(target), "renaming across directories is not modelled"
            self.disk.step_or_fail("replace", target)
            self._folder(dirname(source)).change({basename(source): None, basename(target): node})
            self.disk.ends_here()

    def sync_directory(self, path: str) -> None:
        with self.disk.lock:
            self.disk.check(self.session)
            folder = self._folder(path)
            self.disk.step_or_fail("sync_directory", path)
            self.disk.ends_here()
            folder.sync()

    def exists(self, path: str) -> bool:
        with self.disk.lock:
            self.disk.check(self.session)
            return self.disk.node(path) is not None

    def usage(self) -> DiskUsage:
        with self.disk.lock:
            self.disk.check(self.session)
            free = _DISK_BYTES if self.disk.free_bytes is None else self.disk.free_bytes
            return DiskUsage(_DISK_BYTES, min(_DISK_BYTES, max(free, _DISK_BYTES // 2)))

    def lock(self) -> None:
        with self.disk.lock:
            self.disk.check(self.session)
            if self._locked_by is not None:
                raise StoreLocked("the disk in memory")
            self._locked_by = self.session

    def unlock(self) -> None:
        self._locked_by = None
