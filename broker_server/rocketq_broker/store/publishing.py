"""Reading back staged frames whose batch was decided, for the log writer to copy to their queues.

The copies of one group are bounded, so that sends which wait are never behind more than
that. A staged frame was validated when it was stored and has just been decided upon: its
checksum is verified, nothing is validated a second time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from rocketq.errors import CorruptFrame
from rocketq.protocol.frame import FrameKind, verify
from rocketq.protocol.ipc import read_stored
from rocketq_broker.store.commit_log import CommitLog
from rocketq_broker.store.sinks import SinkTable, StagedFrame

#: What one group copies at most; of large frames `StoreConfig.publish_bytes_max` allows fewer.
FRAMES_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class StagedCopy:
    """A staged frame as it was read back: its bytes, and its opened columns."""

    frame: StagedFrame
    topic: str
    body: pa.Buffer
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class LostFrame:
    """A staged frame of which salvage left nothing."""

    frame: StagedFrame
    why: str


def read_copies(log: CommitLog, table: SinkTable, bytes_max: int) -> list[StagedCopy | LostFrame]:
    """Read the frames that are to be published next, at least one if one is written; raise CorruptFrame."""
    found: list[StagedCopy | LostFrame] = []
    size = 0
    for publication in table.publishing:
        for frame in publication.frames[publication.done :]:
            full = size + frame.size > bytes_max or len(found) == FRAMES_MAX
            if (found and full) or frame.log_offset >= log.end:
                return found
            found.append(_read(log, frame))
            size += frame.size
    return found


def _read(log: CommitLog, staged: StagedFrame) -> StagedCopy | LostFrame:
    try:
        frame = verify(pa.py_buffer(log.read(staged.log_offset, staged.size)))
    except CorruptFrame:
        if not _is_lost(log, staged.log_offset):
            raise
        return LostFrame(staged, "salvage found it damaged")
    header = frame.header
    found = (header.kind, header.log_offset, header.size, header.count, header.queue)
    if found != (FrameKind.STAGED, staged.log_offset, staged.size, staged.messages, staged.queue):
        raise CorruptFrame(
            0, f"at log offset {staged.log_offset} lies no staged frame of {staged.size} bytes"
        )
    return StagedCopy(staged, frame.topic, frame.body, read_stored(frame.body))


def _is_lost(log: CommitLog, log_offset: int) -> bool:
    """Whether a lost frame covers this place: one may stand for several frames in a row."""
    at = log.segment_of(log_offset)
    while True:
        header = log.header(at)
        if at + header.size > log_offset:
            return header.kind == FrameKind.LOST
        at += header.size
