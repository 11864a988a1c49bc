"""From the frames a pull answered with to the messages that were asked for.

Frames are stored and sent whole, so the first and last of an answer may reach
past the asked range [begin, end). Here each frame is verified, its batch opened
without copying, and the two outer ones are cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from rocketq.errors import CorruptFrame, InvalidBatch, TooLarge
from rocketq.protocol.frame import Frame, FrameHeader, FrameKind, scan
from rocketq.protocol.ipc import read_batch
from rocketq.protocol.schema import MESSAGE_SCHEMA_ID


@dataclass(frozen=True, slots=True)
class FrameSlice:
    """Consecutive messages of one frame: message i of `batch` has offset `offset + i`."""

    header: FrameHeader
    offset: int
    batch: pa.RecordBatch

    @property
    def next_offset(self) -> int:
        return self.offset + int(self.batch.num_rows)


def open_frames(data: bytes | memoryview | pa.Buffer, begin: int, end: int | None = None) -> list[FrameSlice]:
    """Open all message frames in `data`, cut to [begin, end); raise CorruptFrame.

    Everything is held at once: frames that inflate to much more than their size are
    better taken one by one, from `iter_frames`.
    """
    return list(iter_frames(data, begin, end))


def iter_frames(
    data: bytes | memoryview | pa.Buffer, begin: int, end: int | None = None
) -> Iterator[FrameSlice]:
    """Yield the message frames in `data` one by one, cut to [begin, end); raise CorruptFrame.

    The frames are of one queue and in its order, which is checked: a reader counts
    on offsets that only grow. Frames wholly outside the range are left out.
    """
    at = 0
    previous: FrameHeader | None = None
    for frame in scan(data):
        header = frame.header
        if previous is not None and (
            header.queue != previous.queue or header.queue_offset < previous.next_queue_offset
        ):
            raise CorruptFrame(
                at,
                f"offset {header.queue_offset} of queue {header.queue} follows offset "
                f"{previous.next_queue_offset} of queue {previous.queue}",
            )
        previous = header
        first = max(begin, header.queue_offset)
        last = header.next_queue_offset if end is None else min(end, header.next_queue_offset)
        if first < last:
            batch = open_batch(frame, at)
            if last - first < header.count:
                batch = batch.slice(first - header.queue_offset, last - first)
            yield FrameSlice(header, first, batch)
        at += header.size


def open_batch(frame: Frame, at: int = 0) -> pa.RecordBatch:
    """Open the batch of one message frame; `at` is only where an error says it lies."""
    if frame.header.kind != FrameKind.MESSAGES or frame.header.schema_id != MESSAGE_SCHEMA_ID:
        raise CorruptFrame(at, f"kind {frame.header.kind}, schema {frame.header.schema_id} is not message/1")
    try:
        batch = read_batch(frame.body)
    except (InvalidBatch, TooLarge) as error:
        raise CorruptFrame(at, error.message) from error
    if batch.num_rows != frame.header.count:
        raise CorruptFrame(
            at, f"the batch has {batch.num_rows} messages, the header says {frame.header.count}"
        )
    return batch
