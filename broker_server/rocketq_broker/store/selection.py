"""Pulling through a filter: what does not match stays here.

A filter may know the hashes of its tags. Then the ConsumeQueue's units alone tell
which messages can match, and frames without any are passed over unread; the
filter's exact test runs on the candidates only, so a hash collision is never
delivered. A filter without hashes tests whole batches.

What matches of a frame becomes a *filtered* frame: the same header but for size,
count and kind, and a body that begins with the messages' offsets, which are no
longer consecutive. One request scans a bounded amount and says
where it stopped, so a rare match costs many small answers, never one endless one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rocketq.protocol.frame import Frame, FrameKind, encode, verify
from rocketq.protocol.slices import filtered_body, open_batch
from rocketq_broker.store.commit_log import CommitLog
from rocketq_broker.store.consume_queue import ConsumeQueue, Units
from rocketq_broker.store.reader import Place, check_extent, refuse

#: What one filtered pull looks at, in messages and in bytes of frames read.
SCAN_MESSAGES_MAX: Final = 1 << 18
SCAN_BYTES_MAX: Final = 32 << 20
_RUN_UNITS: Final = 1 << 15


class MessageFilter(Protocol):
    """What a selection needs of a filter."""

    @property
    def hashes(self) -> npt.NDArray[np.uint64] | None:
        """The tag hashes that can match, or None if tags do not decide."""
        ...

    def mask(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return for each message whether it matches."""
        ...


@dataclass(frozen=True, slots=True)
class Selected:
    """The filtered frames and the queue offset where the scan stopped."""

    chunks: list[bytes]
    next_offset: int
    scanned: int


def select(
    log: CommitLog,
    queue: ConsumeQueue,
    topic: str,
    offset: int,
    end: int,
    chosen: MessageFilter,
    max_bytes: int,
    max_messages: int | None,
) -> Selected:
    """Scan [offset, end) for matches until a limit is reached; always advances."""
    wanted = end - offset if max_messages is None else max_messages
    chunks: list[bytes] = []
    answered = read = found = 0
    at = offset
    stop = min(end, offset + SCAN_MESSAGES_MAX)
    while at < stop and answered < max_bytes and read < SCAN_BYTES_MAX and found < wanted:
        units = queue.read(at, min(_RUN_UNITS, stop - at))
        candidates = _candidates(units, chosen)
        places = units["log_offset"]
        edges = np.flatnonzero(places[1:] != places[:-1]) + 1
        starts = [0, *edges.tolist()]
        ends = [*edges.tolist(), len(units)]
        for first, last in zip(starts, ends, strict=True):
            rows = np.flatnonzero(candidates[first:last])
            if rows.size:
                place = Place(int(places[first]), int(units["size"][first]), at + first)
                frame = _frame(log, queue, topic, place, at + last)
                read += place.size
                chunk, offsets = _filtered(frame, at + first, rows, chosen, wanted - found)
                if offsets.size:
                    chunks.append(chunk)
                    answered += len(chunk)
                    found += offsets.size
                    if found >= wanted:
                        return Selected(chunks, int(offsets[-1]) + 1, at + last - offset)
            # A frame cut by the end of this run of units is taken up again in the next.
            if answered >= max_bytes or read >= SCAN_BYTES_MAX:
                return Selected(chunks, at + last, at + last - offset)
        at += len(units)
    return Selected(chunks, at, at - offset)


def _frame(log: CommitLog, queue: ConsumeQueue, topic: str, place: Place, end: int) -> Frame:
    """Read and verify the frame that holds [place.offset, end); raise CorruptFrame or CorruptQueue."""
    check_extent(log, queue, place)
    frame = verify(pa.py_buffer(log.read(place.log_offset, place.size)))
    header = frame.header
    holds = header.queue_offset <= place.offset and end <= header.next_queue_offset
    if not holds or (header.log_offset, header.queue, frame.topic) != (place.log_offset, queue.id, topic):
        refuse(log, queue, place)
    return frame


def _candidates(units: Units, chosen: MessageFilter) -> npt.NDArray[np.bool_]:
    present: npt.NDArray[np.bool_] = units["size"] > 0
    hashes = chosen.hashes
    if hashes is None:
        return present
    if hashes.size == 1:
        present &= units["tag_hash"] == hashes[0]
    else:
        present &= np.isin(units["tag_hash"], hashes)
    return present


def _filtered(
    frame: Frame, first_offset: int, rows: npt.NDArray[np.int64], chosen: MessageFilter, wanted: int
) -> tuple[bytes, npt.NDArray[np.int64]]:
    """Return the filtered frame of those `rows` (from `first_offset`) that match, and their offsets."""
    header = frame.header
    batch = open_batch(frame, header.log_offset)
    rows = rows + (first_offset - header.queue_offset)
    some = batch if rows.size == batch.num_rows else batch.take(pa.array(rows))
    keep = np.flatnonzero(chosen.mask(some))[:wanted]
    if not keep.size:
        return b"", rows[:0]
    some = some if keep.size == some.num_rows else some.take(pa.array(keep))
    offsets = header.queue_offset + rows[keep]
    parts = encode(
        kind=FrameKind.FILTERED,
        topic=frame.topic.encode(),
        body=filtered_body(some, offsets),
        queue=header.queue,
        queue_offset=int(offsets[0]),
        count=int(keep.size),
        log_offset=header.log_offset,
        stored_at_us=header.stored_at_us,
        durable_end=header.durable_end,
        epoch=header.epoch,
    )
    return b"".join(parts), offsets
