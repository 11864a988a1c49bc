"""The offsets of a broadcasting member, in a file of its own (RocketMQ: LocalFileOffsetStore).

The file is one JSON document. A new one is written aside, put on disk and given the name, so that after a
crash the file is the old or the new one. It is locked while a member uses it: two members with one file
would write over each other's progress.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rocketq.errors import InvalidConfiguration, RocketqError
from rocketq.model import Int64, MessageQueue
from rocketq.protocol.json_codec import decode, encode, prepare_documents
from rocketq.system.durability import sync_directory, sync_file


@dataclass(frozen=True, slots=True)
class LocalOffset:
    """The next offset to read of one queue; `incarnation` says of which topic of that name."""

    topic: str
    broker: str
    queue: Int64
    offset: Int64
    incarnation: str


@dataclass(frozen=True, slots=True)
class LocalOffsets:
    """All offsets of a member of `group`."""

    group: str
    offsets: tuple[LocalOffset, ...] = field(hash=False)


class OffsetsFile:
    """An open offsets file; `close` gives it free."""

    def __init__(self, path: str | Path, group: str) -> None:
        """Open and read the file; one that does not exist has no offsets.

        Raises InvalidConfiguration if it cannot be used, is damaged, in use, or another group's.
        """
        self._path, self._group = Path(path), group
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise self._refused(str(error), "Name a file in a folder that can be written.") from error
        try:
            self._take_lock()
            self.offsets = self._read()
        except BaseException:
            os.close(self._lock)
            raise

    def write(self, offsets: Mapping[MessageQueue, tuple[int, str]]) -> None:
        """Put offsets, each with the incarnation of its topic, on disk in the place of those before.

        Raises InvalidConfiguration if the file cannot be written; the one before is then still there.
        """
        listed = [LocalOffset(q.topic, q.broker, q.queue, *offsets[q]) for q in sorted(offsets)]
        aside = self._path.with_name(self._path.name + ".new")
        try:
            with aside.open("wb") as file:
                file.write(encode(LocalOffsets(self._group, tuple(listed))))
                file.flush()
                sync_file(file.fileno())
            aside.replace(self._path)
            sync_directory(self._path.parent)
        except OSError as error:
            raise self._refused(str(error), "Make room, or give the folder back its permissions.") from error

    def close(self) -> None:
        """Give the file free."""
        os.close(self._lock)

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            why = "another member uses it"
            raise self._refused(why, "Give each broadcasting member a file of its own.") from error

    def _read(self) -> dict[MessageQueue, tuple[int, str]]:
        try:
            found = decode(self._path.read_bytes(), LocalOffsets, f"the offsets file {self._path}")
        except FileNotFoundError:
            return {}
        except (OSError, RocketqError) as error:
            hint = "Put a copy back, or remove it: the member then begins where `start` says."
            raise self._refused(f"it cannot be read: {error}", hint) from error
        if found.group != self._group:
            why = f"it has the offsets of group {found.group!r}, not of {self._group!r}"
            raise self._refused(why, "Give each group a file of its own.")
        return {
            MessageQueue(one.topic, one.broker, one.queue): (one.offset, one.incarnation)
            for one in found.offsets
        }

    def _refused(self, why: str, hint: str) -> InvalidConfiguration:
        return InvalidConfiguration("offsets_file", str(self._path), why, hint)


prepare_documents(__name__)
