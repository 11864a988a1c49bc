"""From the frames a pull answered with to the messages that were asked for.

Frames are stored and sent whole, so the first and last of an answer may reach
past the asked range [begin, end). Here each frame is verified, its batch opened
without copying, and the two outer ones are cut.

A pull through a filter answers with filtered frames instead. One gathers what
matched in any number of frames of a queue, so that a message in a hundred does not
cost what a frame costs. Its body is, in little-endian integers of 8 bytes,

    number of sources
    for each source    log offset, store time and count of messages taken
    for each message   queue offset
    the batch

A reader sees none of this: each source comes out as a slice of its own, with the
place and the store time of the frame the messages lie in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rocketq.errors import CorruptFrame, InvalidBatch, TooLarge
from rocketq.protocol.arrow.stream_reader import encapsulate, read_batch
from rocketq.protocol.frame import Frame, FrameHeader, FrameKind, scan
from rocketq.protocol.message_schema import MESSAGE_SCHEMA_ID
from rocketq.protocol.sizes import INFLATED_BYTES_MAX

#: Of a filtered frame: a stored frame that some of its messages were taken from.
SOURCE: Final = np.dtype([("log_offset", "<i8"), ("stored_at_us", "<i8"), ("count", "<i8")])
_COUNT_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class FrameSlice:
    """Messages of one frame, in order, the first at `offset`; never empty.

    They are consecutive unless the frame was filtered, when `filtered_offsets`
    has the offset of each; `header` then has the place and time of the frame they
    were taken from, and a share of the filtered frame's size.
    """

    header: FrameHeader
    offset: int
    batch: pa.RecordBatch
    filtered_offsets: npt.NDArray[np.int64] | None = None

    @property
    def rows(self) -> int:
        """The number of messages."""
        return int(self.batch.num_rows)

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

    def part(self, first: int, rows: int) -> FrameSlice:
        """Return at most `rows` messages from the one at index `first` on, without a copy."""
        offsets = None if self.filtered_offsets is None else self.filtered_offsets[first : first + rows]
        offset = self.offset + first if offsets is None else int(offsets[0])
        return FrameSlice(self.header, offset, self.batch.slice(first, rows), offsets)


def open_within_budget(
    slices: Iterable[FrameSlice], inflated_bytes_max: int = INFLATED_BYTES_MAX
) -> tuple[list[FrameSlice], int | None]:
    """Open slices until they inflate to more than the budget, or a frame is damaged.

    A stored batch may be compressed a thousandfold, so a bound on the bytes of frames is none on the bytes
    that they inflate to. Returns the slices and the queue offset to go on at, which is None if all were
    opened. There is at least one slice if there is any; raises CorruptFrame if the first frame is damaged.
    """
    found: list[FrameSlice] = []
    inflated = 0
    try:
        for piece in slices:
            inflated += piece.batch.nbytes
            if found and inflated > inflated_bytes_max:
                return found, piece.offset
            found.append(piece)
    except CorruptFrame:
        if not found:
            raise
        # The caller uses what precedes the damage; its next call begins at the damage and meets it first.
        return found, found[-1].next_offset
    return found, None


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
            yield from _open_filtered(frame, at, begin, end)
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


def filtered_body(
    batch: pa.RecordBatch, offsets: npt.NDArray[np.int64], sources: npt.NDArray[np.void]
) -> bytes:
    """Return the body of a filtered frame.

    `offsets` ascend, one for each message of `batch`; `sources` (SOURCE) are in the order of the
    messages, and their counts add up to all of them.
    """
    count = sources.size.to_bytes(_COUNT_BYTES, "little")
    return b"".join([count, sources.tobytes(), offsets.astype("<i8").tobytes(), encapsulate(batch)])


def _open_filtered(frame: Frame, at: int, begin: int, end: int | None) -> Iterator[FrameSlice]:
    """Yield a slice for each source of a filtered frame, cut to [begin, end)."""
    header = frame.header
    sources, offsets, batch = _filtered_parts(frame, at)
    lasts = np.cumsum(sources["count"])
    bounds = [begin, int(offsets[-1]) + 1 if end is None else end]
    wanted_first, wanted_last = np.searchsorted(offsets, bounds).tolist()
    share = header.size // sources.size
    for source, source_last in zip(sources.tolist(), lasts.tolist(), strict=True):
        log_offset, stored_at_us, count = source
        first, last = max(wanted_first, source_last - count), min(wanted_last, source_last)
        if first >= last:
            continue
        kept = offsets[first:last]
        own = replace(
            header, size=share, queue_offset=int(offsets[source_last - count]), log_offset=log_offset,
            stored_at_us=stored_at_us, count=count,
        )  # fmt: skip
        yield FrameSlice(own, int(kept[0]), batch.slice(first, last - first), kept)


def _filtered_parts(
    frame: Frame, at: int
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.int64], pa.RecordBatch]:
    """Take a filtered frame's body apart: its sources, offsets and messages; raise CorruptFrame."""
    header, body = frame.header, frame.body
    number = int.from_bytes(body.slice(0, _COUNT_BYTES).to_pybytes(), "little")
    offsets_start = _COUNT_BYTES + SOURCE.itemsize * number
    prefix = offsets_start + 8 * header.count
    if header.schema_id != MESSAGE_SCHEMA_ID or not 0 < number <= header.count or prefix >= body.size:
        raise CorruptFrame(
            at, f"{header.count} messages of {number} sources do not fit {body.size} filtered bytes"
        )
    sources = np.frombuffer(body, dtype=SOURCE, count=number, offset=_COUNT_BYTES)
    offsets = np.frombuffer(body, dtype="<i8", count=header.count, offset=offsets_start)
    if (
        offsets[0] != header.queue_offset
        or (offsets[1:] <= offsets[:-1]).any()
        or offsets[-1] == np.iinfo(np.int64).max
    ):
        raise CorruptFrame(at, "the offsets of the filtered messages do not ascend")
    counts, places = sources["count"], sources["log_offset"]
    # Each count is bounded before they are added up, so that the sum cannot wrap around.
    if (counts < 1).any() or (counts > header.count).any() or counts.sum() != header.count:
        raise CorruptFrame(at, f"the sources do not add up to {header.count} messages")
    if places[0] != header.log_offset or (places[1:] <= places[:-1]).any():
        raise CorruptFrame(at, "the log offsets of the sources do not ascend")
    return sources, offsets, _checked_batch(body.slice(prefix), header.count, at)


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
