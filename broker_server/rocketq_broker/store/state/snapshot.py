"""The snapshot: a picture of the state and how far into the log it reaches.

    magic "RQS" 01 | crc: u32 | log position: u64 | length: u32 | length of checksums: u32
    | JSON of a state.Picture | JSON of the checksums of the queues' open blocks
    | JSON of the marks of the timer index, if it has files

It bounds recovery: everything below `position` is in the ConsumeQueues and in
the picture, and was on disk when the snapshot was made. It is written aside,
synced and moved into place, so there is always a whole one; one that rots is
reported, and recovery starts from the log's own state frames instead.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

import google_crc32c
import msgspec

from rocketq_broker.store.disk.files import Files
from rocketq_broker.store.errors import CorruptSnapshot
from rocketq_broker.store.log.consume_queues import OpenBlockChecksums
from rocketq_broker.store.state.state import Picture, decode_picture, encode
from rocketq_broker.store.timers.window_files import WindowMarks

DIRECTORY: Final = "state"
PATH: Final = f"{DIRECTORY}/snapshot"
_ASIDE: Final = f"{DIRECTORY}/snapshot.new"
_REBUILDING: Final = f"{DIRECTORY}/rebuilding"
_MAGIC: Final = b"RQS\x01"
_HEAD: Final = struct.Struct("<QII")
_PREFIX: Final = 8
_OPEN_BLOCKS: Final = msgspec.json.Decoder(OpenBlockChecksums)
_MARKS: Final = msgspec.json.Decoder(WindowMarks)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state at log offset `position`, below which all is durable and dispatched."""

    position: int
    picture: Picture
    #: None if an earlier version wrote it, which had no checksums for ConsumeQueues.
    open_blocks: OpenBlockChecksums | None
    timer_marks: WindowMarks = field(default_factory=dict)


def write(files: Files, snapshot: Snapshot) -> None:
    """Replace the snapshot, durably and all at once."""
    body = encode(snapshot.picture)
    open_blocks = b"" if snapshot.open_blocks is None else msgspec.json.encode(snapshot.open_blocks)
    marks = msgspec.json.encode(snapshot.timer_marks) if snapshot.timer_marks else b""
    guarded = _HEAD.pack(snapshot.position, len(body), len(open_blocks)) + body + open_blocks + marks
    files.make_directory(DIRECTORY)
    file = files.open(_ASIDE, create=True)
    file.truncate(0)
    file.write([_MAGIC, google_crc32c.value(guarded).to_bytes(4, "little"), guarded], 0)
    file.sync()
    files.replace(_ASIDE, PATH)
    files.sync_directory(DIRECTORY)
    if files.exists(_REBUILDING):
        files.remove(_REBUILDING)
        files.sync_directory(DIRECTORY)


def remove_beyond(files: Files, end: int) -> None:
    """Remove, durably, a snapshot that says more than a log that is to end at `end`; or a damaged one."""
    try:
        snapshot = read(files)
    except CorruptSnapshot:
        snapshot = None
    if files.exists(PATH) and (snapshot is None or snapshot.position > end):
        files.remove(PATH)
        files.sync_directory(DIRECTORY)


def mark_queues_untrusted(files: Files) -> None:
    """Note, durably, that the ConsumeQueues are no longer what the snapshot says.

    Whoever rebuilds them must say so first: if the power goes before they are on disk, they
    may be as long as the snapshot says and hold nothing. Its position still counts.
    """
    if files.exists(PATH):
        files.open(_REBUILDING, create=True)
        files.sync_directory(DIRECTORY)


def are_queues_trusted(files: Files) -> bool:
    """Whether the ConsumeQueues are as the snapshot says; the next one to be written says so again."""
    return not files.exists(_REBUILDING)


def read(files: Files) -> Snapshot | None:
    """Return the snapshot, None if there is none; raise CorruptSnapshot if it is damaged."""
    if not files.exists(PATH):
        return None
    file = files.open(PATH)
    data = file.read(file.size(), 0)
    if len(data) < _PREFIX + _HEAD.size or data[:4] != _MAGIC:
        raise CorruptSnapshot("it does not begin with its magic number")
    guarded = data[_PREFIX:]
    if google_crc32c.value(guarded) != int.from_bytes(data[4:8], "little"):
        raise CorruptSnapshot("its checksum does not hold")
    position, length, tails_length = _HEAD.unpack_from(guarded)
    rest = guarded[_HEAD.size :]
    try:
        open_blocks = _OPEN_BLOCKS.decode(rest[length : length + tails_length]) if tails_length else None
        marks = _MARKS.decode(rest[length + tails_length :]) if rest[length + tails_length :] else {}
        return Snapshot(position, decode_picture(rest[:length]), open_blocks, marks)
    except msgspec.DecodeError as error:
        raise CorruptSnapshot(f"its picture cannot be read: {error}") from error
