"""What a replica keeps on disk beside its log: its group, its epoch, its incarnation and a checkpoint.

    state/standing      magic "RQT" 01 | crc: u32 | JSON of a `Kept`

The file is replaced as a whole: written aside, synced, and moved into place. A store that is no replica has
none. `confirmed` is a checkpoint: the confirmed end was at least there.

`followed_from` is for recovery. Each frame says what was durable when it was written, on the disk of the
master that wrote it. A follower copies the frame and may not have synced as much yet. So behind this log
offset what a frame says proves nothing here. None: this store has written the end of its log itself.
"""

from __future__ import annotations

import threading
from typing import Any, Final

import google_crc32c
import msgspec

from rocketq_broker.store.disk.files import Files
from rocketq_broker.store.errors import CorruptStanding

DIRECTORY: Final = "state"
PATH: Final = f"{DIRECTORY}/standing"
_ASIDE: Final = f"{DIRECTORY}/standing.new"
_MAGIC: Final = b"RQT\x01"
_PREFIX: Final = 8


class Kept(msgspec.Struct, frozen=True):
    """The content of the file; that of a new directory is made of defaults."""

    group: str = ""
    epoch: int = 0
    incarnation: str = ""
    confirmed: int = 0
    #: The epoch that told the checkpoint.
    confirmed_epoch: int = 0
    #: The machine's boot in which the file was written last.
    boot_id: str = ""
    followed_from: int | None = None
    #: Why the log may lack what was on disk; kept until the replica has a new incarnation.
    doubt: str = ""


class StandingFile:
    """The file of one store. Any thread may read `kept`; each change is durable when `keep` returns."""

    def __init__(self, files: Files) -> None:
        """Read the file; raise CorruptStanding."""
        self._files = files
        self._lock = threading.Lock()
        self.kept = read(files)

    def keep(self, **changes: Any) -> None:
        """Change some fields; without a difference nothing is written."""
        with self._lock:
            made = msgspec.structs.replace(self.kept, **changes)
            if made == self.kept:
                return
            _write(self._files, made)
            self.kept = made


def read(files: Files) -> Kept:
    """Return what the file has; raise CorruptStanding."""
    if not files.exists(PATH):
        return Kept()
    file = files.open(PATH)
    data = file.read(file.size(), 0)
    body = data[_PREFIX:]
    if data[:4] != _MAGIC or google_crc32c.value(body) != int.from_bytes(data[4:_PREFIX], "little"):
        raise CorruptStanding("its checksum does not hold")
    try:
        return msgspec.json.decode(body, type=Kept)
    except msgspec.DecodeError as error:
        raise CorruptStanding(f"it cannot be read: {error}") from error


def _write(files: Files, kept: Kept) -> None:
    body = msgspec.json.encode(kept)
    files.make_directory(DIRECTORY)
    file = files.open(_ASIDE, create=True)
    file.truncate(0)
    file.write([_MAGIC, google_crc32c.value(body).to_bytes(4, "little"), body], 0)
    file.sync()
    files.replace(_ASIDE, PATH)
    files.sync_directory(DIRECTORY)
