"""From the frames a pull answered with to the messages that were asked for.

Frames are stored and sent whole, so the first and last of an answer may reach
past the asked range [begin, end). Here each frame is verified, its batch opened
without copying, and the two outer ones are cut.

A pull through a filter answers with filtered frames instead. Their messages are
not consecutive, so the body begins with the offset of each, as a little-endian
u64, and the batch follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rocketq.errors import CorruptFrame, InvalidBatch, TooLarge
from rocketq.protocol.frame import Frame, FrameHeader, FrameKind, scan
from rocketq.protocol.ipc import encapsulate, read_batch
from rocketq.protocol.schema import MESSAGE_SCHEMA_ID


@dataclass(frozen=True, slots=True)
class FrameSlice:
    """Messages of one frame, in order, the first at `offset`; never empty.

    They are consecutive unless the frame was filtered, when `filtered_offsets`
    has the offset of each.
    """

    header: FrameHeader
    offset: int
    batch: pa.RecordBatch
    filtered_offsets: npt.NDArray[np.int64] | None = None

    @property
    def next_offset(self) -> int:
        """The offset after the last message."""
        if self.filtered_offsets is not None:
            return int(self.filtered_offsets[-1]) + 1
        return self.offset + int(self.batch.num_rows)

    def offsets(self) -> npt.NDArray[np.int64]:
        """Return the offset of every message."""
        if self.filtered_offsets is not None:
            return self.filtered_offsets
        return np.arange(self.offset, self.offset + self.batch.num_rows, dtype=np.int64)


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
        if header.kind == FrameKind.FILTERED:
            piece = _open_filtered(frame, at, begin, end)
            if piece is not None:
                yield piece
            at += header.size
            continue
        first = max(begin, header.queue_offset)
        last = header.next_queue_offset if end is None else min(end, header.next_queue_offset)
        if first < last:
            batch = open_batch(frame, at)
            if last - first < header.count:
                batch = batch.slice(first - header.queue_offset, last - first)
            yield FrameSlice(header, first, batch)
        at += header.size


def filtered_body(batch: pa.RecordBatch, offsets: npt.NDArray[np.int64]) -> bytes:
    """Return the body of a filtered frame; `offsets` ascend, one for each message of `batch`."""
    return b"".join([offsets.astype("<u8").tobytes(), encapsulate(batch)])


def _open_filtered(frame: Frame, at: int, begin: int, end: int | None) -> FrameSlice | None:
    header = frame.header
    prefix = 8 * header.count
    if header.schema_id != MESSAGE_SCHEMA_ID or not 0 < prefix < frame.body.size:
        raise CorruptFrame(at, f"{header.count} filtered messages do not fit {frame.body.size} bytes")
    offsets = np.frombuffer(frame.body, dtype="<i8", count=header.count)
    if (
        offsets[0] != header.queue_offset
        or (offsets[1:] <= offsets[:-1]).any()
        or offsets[-1] == np.iinfo(np.int64).max
    ):
        raise CorruptFrame(at, "the offsets of the filtered messages do not ascend")
    batch = _checked_batch(frame.body.slice(prefix), header.count, at)
    first, last = np.searchsorted(offsets, [begin, offsets[-1] + 1 if end is None else end]).tolist()
    if first >= last:
        return None
    kept = offsets[first:last].astype(np.int64, copy=False)
    return FrameSlice(header, int(kept[0]), batch.slice(first, last - first), kept)


def open_batch(frame: Frame, at: int = 0) -> pa.RecordBatch:
    """Open the batch of one message frame; `at` is only where an error says it lies."""
    if frame.header.kind != FrameKind.MESSAGES or frame.header.schema_id != MESSAGE_SCHEMA_ID:
        raise CorruptFrame(at, f"kind {frame.header.kind}, schema {frame.header.schema_id} is not message/1")
    return _checked_batch(frame.body, frame.header.count, at)


def _checked_batch(body: pa.Buffer, count: int, at: int) -> pa.RecordBatch:
    try:
        batch = read_batch(body)
    except (InvalidBatch, TooLarge) as error:
        raise CorruptFrame(at, error.message) from error
    if batch.num_rows != count:
        raise CorruptFrame(at, f"the batch has {batch.num_rows} messages, the header says {count}")
    return batch
