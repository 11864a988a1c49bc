"""A disk in memory that keeps POSIX's promises and not one more.

What a file holds is known twice: as its readers see it (the page cache), and as
the disk may hold it. A write only reaches the disk for certain by `sync`, a name
only by `sync_directory`. When the power goes, each 512-byte sector that was not
synced is, independently, any of the versions it had since the last sync; a file's
size is any it had; a name is there or not. Everything random comes from the seed.

Faults are injected by counting operations, so that the same run always meets the
same fault at the same place.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

SECTOR = 512

#: The operations that are counted; reading is not, since nothing is lost by it.
KINDS = ("write", "sync", "truncate", "create", "remove", "replace", "make_directory", "sync_directory")


class Content:
    """The bytes of one file."""

    def __init__(self, durable: bytes = b"") -> None:
        self.now = bytearray(durable)
        self.durable = bytearray(durable)
        #: What each sector held since the last sync, oldest first.
        self.versions: dict[int, list[bytes]] = {}
        self.sizes: list[int] = []

    def _note(self, first: int, end: int) -> None:
        for sector in range(first // SECTOR, -(-end // SECTOR)):
            version = bytes(self.now[sector * SECTOR : (sector + 1) * SECTOR])
            self.versions.setdefault(sector, []).append(version)

    def write(self, data: bytes, at: int) -> None:
        if not data:
            return
        if at > len(self.now):
            self.now.extend(bytes(at - len(self.now)))
        self.now[at : at + len(data)] = data
        if at + len(data) > len(self.durable):
            # Also of a file that is as long already, if a failed sync left the disk's copy short.
            self.sizes.append(len(self.now))
        self._note(at, at + len(data))

    def truncate(self, size: int) -> None:
        before = len(self.now)
        if size < before:
            del self.now[size:]
        else:
            self.now.extend(bytes(size - before))
        self.sizes.append(size)
        self._note(min(size, before), max(size, before))

    def sync(self) -> None:
        if self.sizes:
            self._resize_durable(len(self.now))
        for sector in self.versions:
            self._keep(sector, bytes(self.now[sector * SECTOR : (sector + 1) * SECTOR]))
        self.versions.clear()
        self.sizes.clear()

    def _resize_durable(self, size: int) -> None:
        del self.durable[size:]
        self.durable.extend(bytes(size - len(self.durable)))

    def _keep(self, sector: int, version: bytes) -> None:
        first, end = sector * SECTOR, min((sector + 1) * SECTOR, len(self.durable))
        if first < end:
            self.durable[first:end] = version[: end - first].ljust(end - first, b"\0")

    def fail_sync(self, rng: random.Random) -> None:
        """As Linux does: some of it arrived, all of it is now called clean, readers still see it."""
        if self.sizes:
            self._resize_durable(rng.choice([len(self.durable), *self.sizes]))
        for sector, versions in self.versions.items():
            if rng.random() < 0.3:
                self._keep(sector, versions[-1])
        self.versions.clear()
        self.sizes.clear()

    def evict(self) -> None:
        """Forget clean pages: readers now see what the disk holds, with what is dirty on top."""
        fresh = bytearray(self.durable)
        size = len(self.now) if self.sizes else len(fresh)
        del fresh[size:]
        fresh.extend(bytes(size - len(fresh)))
        for sector in self.versions:
            part = self.now[sector * SECTOR : (sector + 1) * SECTOR]
            fresh[sector * SECTOR : sector * SECTOR + len(part)] = part
        self.now = fresh

    def after_cut(self, rng: random.Random) -> bytes:
        """Return one of the contents a power cut may leave."""
        style = rng.choice(("nothing", "everything", "sectors", "sectors", "in order", "all but one"))
        size = len(self.durable)
        if self.sizes:
            known = [size, *self.sizes]
            size = {"nothing": size, "everything": self.sizes[-1]}.get(style, rng.choice(known))
            if style == "sectors" and rng.random() < 0.3:
                size = rng.randint(min(known), max(known))
        out = bytearray(self.durable[:size])
        out.extend(bytes(size - len(out)))
        dirty = sorted(self.versions)
        if style == "nothing":
            kept = []
        elif style == "in order":
            kept = dirty[: rng.randint(0, len(dirty))]
        elif style == "sectors":
            chance = rng.random()
            kept = [sector for sector in dirty if rng.random() < chance]
        elif style == "all but one" and dirty:
            spared = rng.choice(dirty)
            kept = [sector for sector in dirty if sector != spared]
        else:
            kept = dirty
        for sector in kept:
            versions = self.versions[sector]
            version = versions[-1] if rng.random() < 0.8 else rng.choice(versions)
            first, end = sector * SECTOR, min((sector + 1) * SECTOR, size)
            if first < end:
                out[first:end] = version[: end - first].ljust(end - first, b"\0")
        return bytes(out)


class Folder:
    """The names of one directory; each change is atomic, and lasts once the folder was synced."""

    def __init__(self) -> None:
        self.now: dict[str, Content | Folder] = {}
        self.durable: dict[str, Content | Folder] = {}
        self.changes: list[dict[str, Content | Folder | None]] = []

    def change(self, names: dict[str, Content | Folder | None]) -> None:
        self.changes.append(names)
        _apply(self.now, names)

    def sync(self) -> None:
        self.durable = dict(self.now)
        self.changes.clear()

    def after_cut(self, rng: random.Random) -> Folder:
        names = dict(self.durable)
        style = rng.choice(("nothing", "everything", "some", "in order"))
        changes = {
            "nothing": [],
            "everything": self.changes,
            "some": [change for change in self.changes if rng.random() < 0.5],
            "in order": self.changes[: rng.randint(0, len(self.changes))],
        }[style]
        for change in changes:
            _apply(names, change)
        left = Folder()
        for name in sorted(names):
            node = names[name]
            left.now[name] = node.after_cut(rng) if isinstance(node, Folder) else Content(node.after_cut(rng))
        left.durable = dict(left.now)
        return left


def _apply(names: dict[str, Content | Folder], change: dict[str, Content | Folder | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


@dataclass(slots=True)
class Fault:
    """The `nth` operation of a kind below `path` from now on fails with this errno, once."""

    kind: str
    error: int
    nth: int = 1
    path: str = ""
    #: Of a write, the part that gets through; of a sync, whether pages are evicted afterwards.
    share: float = 0.5
    evict: bool = False
    struck: bool = False


@dataclass(slots=True)
class Disk:
    """The tree, the count of operations and the faults to come. One session uses it at a time."""

    seed: int = 0
    root: Folder = field(default_factory=Folder)
    operations: int = 0
    #: The power goes during this operation.
    cut_at: int | None = None
    is_on: bool = True
    #: What may still be written before the disk is full; None: any amount.
    free_bytes: int | None = None
    faults: list[Fault] = field(default_factory=list)
    #: Called before each counted operation with its kind and path.
    watch: Callable[[str, str], None] | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)
    rng: random.Random = field(init=False)
    session: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    # --- what a test does to it ------------------------------------------------------

    def fail(self, kind: str, error: int, **details: object) -> Fault:
        """Inject a fault; see Fault."""
        assert kind in KINDS
        fault = Fault(kind, error, **details)  # type: ignore[arg-type]
        with self.lock:
            self.faults.append(fault)
        return fault

    def cut_power(self) -> None:
        with self.lock:
            self.is_on = False

    def restart(self) -> None:
        """Power on again: what the disk holds now is one of the images a cut may leave."""
        with self.lock:
            self.root = self.root.after_cut(self.rng)
            self.is_on = True
            self.cut_at = None
            self.faults.clear()
            self.session += 1

    def end_session(self) -> None:
        """As kill -9 does: who used the disk cannot any more, all it wrote is still seen."""
        with self.lock:
            self.session += 1

    def bytes_of(self, path: str) -> bytes:
        """Return a file's content as readers see it."""
        with self.lock:
            node = self.node(path)
            assert isinstance(node, Content)
            return bytes(node.now)

    def log_bytes(self) -> bytes:
        """Return the whole commit log as readers see it, zeros for what retention took of its front."""
        with self.lock:
            paths = self.paths("commitlog")
            begin = int(paths[0].rpartition("/")[2]) if paths else 0
            return bytes(begin) + b"".join(map(self.bytes_of, paths))

    def log_begin(self) -> int:
        """Return where the first segment begins."""
        paths = self.paths("commitlog")
        return int(paths[0].rpartition("/")[2]) if paths else 0

    def paths(self, below: str = "") -> list[str]:
        """Return the paths of all files below a directory, sorted."""
        found = []

        def walk(folder: Folder, prefix: str) -> None:
            for name, node in folder.now.items():
                if isinstance(node, Folder):
                    walk(node, f"{prefix}{name}/")
                else:
                    found.append(f"{prefix}{name}")

        with self.lock:
            node = self.node(below)
            if isinstance(node, Folder):
                walk(node, f"{below}/" if below else "")
        return sorted(found)

    def overwrite(self, path: str, data: bytes) -> None:
        """Put other bytes in a file behind everyone's back, durably."""
        with self.lock:
            node = self.node(path)
            assert isinstance(node, Content)
            node.now[:] = data
            node.durable[:] = data
            node.versions.clear()
            node.sizes.clear()

    def image(self) -> dict[str, bytes]:
        """Return every file as readers see it."""
        return {path: self.bytes_of(path) for path in self.paths()}

    @classmethod
    def of(cls, image: dict[str, bytes], seed: int = 0) -> Disk:
        """A disk that holds these files, durably."""
        disk = cls(seed)
        for path, data in image.items():
            folder = disk.root
            *parents, name = path.split("/")
            for parent in parents:
                node = folder.now.setdefault(parent, Folder())
                assert isinstance(node, Folder)
                folder.sync()
                folder = node
            folder.now[name] = Content(data)
            folder.sync()
        return disk

    # --- what the session asks ---------------------------------------------------------

    def node(self, path: str) -> Content | Folder | None:
        node: Content | Folder | None = self.root
        for name in filter(None, path.split("/")):
            if not isinstance(node, Folder):
                return None
            node = node.now.get(name)
        return node

    def check(self, session: int) -> None:
        """Raise unless the power is on and the session is the present one."""
        if not self.is_on:
            raise OSError(errno.EIO, "the power is off")
        if session != self.session:
            raise OSError(errno.EIO, "the process was killed")

    def step(self, kind: str, path: str) -> Fault | None:
        """Count an operation; return the fault that strikes it."""
        self.operations += 1
        if self.watch is not None:
            self.watch(kind, path)
        if self.operations == self.cut_at:
            self.is_on = False
        for fault in self.faults:
            if not fault.struck and fault.kind == kind and path.startswith(fault.path):
                fault.nth -= 1
                if fault.nth == 0:
                    fault.struck = True
                    return fault
        return None

    def step_or_fail(self, kind: str, path: str) -> None:
        """Count an operation that either happens or does not; raise what strikes it."""
        fault = self.step(kind, path)
        if fault is not None:
            raise OSError(fault.error, os.strerror(fault.error), path)

    def ends_here(self) -> None:
        """Raise if the power went during the operation that has just been applied."""
        if not self.is_on:
            raise OSError(errno.EIO, "the power is off")
