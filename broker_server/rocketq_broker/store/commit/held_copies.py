"""Reads held frames that are due from the log, so that the log writer can copy them to their queues.

The copies of one commit are bounded, so that waiting sends wait for no more than that. A held frame was
validated when it was stored: here only its checksum is verified.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from rocketq.errors import CorruptFrame
from rocketq.protocol.arrow.stream_reader import read_stored
from rocketq.protocol.frame import verify
from rocketq_broker.store.log.commit_log import CommitLog
from rocketq_broker.store.machines.machine import HeldFrame
from rocketq_broker.store.state.state import HELD_KINDS, State

#: The most frames that one commit copies; of large frames `StoreConfig.publish_bytes_max` allows fewer.
FRAMES_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class HeldCopy:
    """A held frame as it was read back: its bytes, and its opened columns."""

    frame: HeldFrame
    topic: str
    body: pa.Buffer
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class LostFrame:
    """A held frame of which salvage left nothing."""

    frame: HeldFrame
    why: str


def read_copies(log: CommitLog, state: State, at_ms: int, bytes_max: int) -> list[HeldCopy | LostFrame]:
    """Read the frames that are due at a store time, at least one if one is written; raise CorruptFrame."""
    found: list[HeldCopy | LostFrame] = []
    size = 0
    for frame in state.due(at_ms):
        full = size + frame.size > bytes_max or len(found) == FRAMES_MAX
        if (found and full) or frame.log_offset >= log.end:
            break
        found.append(_read(log, frame))
        size += frame.size
    return found


def _read(log: CommitLog, held: HeldFrame) -> HeldCopy | LostFrame:
    try:
        frame = verify(pa.py_buffer(log.read(held.log_offset, held.size)))
    except CorruptFrame:
        if not log.is_lost(held.log_offset):
            raise
        return LostFrame(held, "salvage found it damaged")
    header = frame.header
    found = (header.log_offset, header.size, header.count, header.queue)
    wanted = (held.log_offset, held.size, held.messages, held.queue)
    if header.kind not in HELD_KINDS or found != wanted:
        raise CorruptFrame(0, f"at log offset {held.log_offset} lies no held frame of {held.size} bytes")
    return HeldCopy(held, frame.topic, frame.body, read_stored(frame.body))
