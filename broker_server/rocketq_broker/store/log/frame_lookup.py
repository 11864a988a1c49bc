"""Reading: from a queue offset to the frames that hold it, and from a time to an offset.

A pull costs the same wherever it begins: one unit says where the first frame
lies, and each frame's header how far it reaches. Many small frames are found by
reading units in runs; large ones by hopping from header to header, so their
thousands of equal units are never read. Neighbouring frames are read at once.

Units are read under their checksums (`consume_queue`). What they lead to is compared with
what was asked for, topic, queue and offset, all the same before it is answered: a frame's
own checksum only says that it is some frame. Bodies are left to the client, who verifies them anyway.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa

from rocketq.errors import CorruptFrame
from rocketq.model import TimeBoundary
from rocketq.protocol.frame import HEADER_BYTES, FrameHeader
from rocketq.protocol.sizes import FRAME_BYTES_MAX
from rocketq_broker.store.disk.files import Data
from rocketq_broker.store.log.commit_log import CommitLog
from rocketq_broker.store.log.consume_queue import BLOCK_UNITS, ConsumeQueue

#: Of a frame's header: size, queue, queue offset, log offset, count and topic length.
_IDENTITY: Final = struct.Struct("<I16xIQQ8xI4xH")


class Place(NamedTuple):
    """Where a unit says that a frame lies, and the queue offset whose unit it is."""

    log_offset: int
    size: int
    offset: int


class WholeFrames(NamedTuple):
    """Frames of a queue, the queue offset after the last, and where the last one ends in the log."""

    chunks: list[Data]
    next_offset: int
    log_end: int


def whole_frames(
    log: CommitLog, queue: ConsumeQueue, topic: str, offset: int, end: int, max_bytes: int,
    max_messages: int | None,
) -> WholeFrames:  # fmt: skip
    """Return the frames that hold [offset, ...); `offset` < `end`. Without any, `log_end` is 0.

    The frames before a damaged one are answered; the next pull begins at the damaged one. Raises
    CorruptQueue, or CorruptFrame if the first frame is damaged.
    """
    try:
        return _whole(log, queue, topic, *locate(log, queue, offset, end, max_bytes, max_messages))
    except CorruptFrame as damage:
        damaged_from = queue.first_at(damage.offset)
        if damaged_from <= offset:
            raise
    return _whole(log, queue, topic, *locate(log, queue, offset, damaged_from, max_bytes, max_messages))


def _whole(
    log: CommitLog, queue: ConsumeQueue, topic: str, frames: Sequence[Place], following: int
) -> WholeFrames:
    log_end = frames[-1].log_offset + frames[-1].size if frames else 0
    return WholeFrames(read(log, queue, topic, frames), following, log_end)


def locate(
    log: CommitLog, queue: ConsumeQueue, offset: int, end: int, max_bytes: int, max_messages: int | None
) -> tuple[list[Place], int]:
    """Find the frames that hold [offset, ...), at least one unless all was lost; `offset` < `end`.

    Returns where they lie, and the queue offset after the last. Raises CorruptQueue or CorruptFrame.
    """
    limit = end if max_messages is None else min(end, offset + max_messages)
    found: list[Place] = []
    total = 0
    at = offset
    while at < limit:
        # A block is read whole in any case.
        units = queue.read(at, min(BLOCK_UNITS - at % BLOCK_UNITS, end - at))
        places = units["log_offset"]
        firsts = [0, *(np.flatnonzero(places[1:] != places[:-1]) + 1).tolist()]
        for index, first in enumerate(firsts):
            place, size = int(places[first]), int(units["size"][first])
            if size == 0:
                # Salvage found nothing here; the messages behind it follow.
                if index + 1 == len(firsts):
                    at += len(units)
                continue
            if found and (total + size > max_bytes or at + first >= limit):
                return found, at + first
            found.append(Place(place, size, at + first))
            total += size
            if index + 1 == len(firsts):
                at = _header(log, queue, found[-1], end).next_queue_offset
    return found, at


def read(log: CommitLog, queue: ConsumeQueue, topic: str, frames: Sequence[Place]) -> list[Data]:
    """Read frames in order; neighbours within a segment come as one piece.

    Raises CorruptQueue, or CorruptFrame, if these are not the frames that were looked for.
    """
    for each in frames:
        check_extent(log, queue, each)
    chunks = [log.read(run[0].log_offset, sum(each.size for each in run)) for run in _runs(log, frames)]
    _check_identity(log, queue, topic.encode(), frames, chunks)
    return chunks


def read_frames(log: CommitLog, frames: Sequence[Place]) -> Iterator[pa.Buffer]:
    """Read frames in order, neighbours at once; yield the bytes of each, fewer if the segment ends before."""
    for run in _runs(log, frames):
        first = run[0].log_offset
        data = pa.py_buffer(log.read(first, sum(each.size for each in run)))
        for each in run:
            at = each.log_offset - first
            yield data.slice(min(at, data.size), max(0, min(each.size, data.size - at)))


def _runs(log: CommitLog, frames: Sequence[Place]) -> list[list[Place]]:
    """Part frames where one is not the next one's neighbour within a segment."""
    runs: list[list[Place]] = []
    end = segment = -1
    for each in frames:
        at = each.log_offset
        if at != end or log.segment_of(at) != segment:
            runs.append([])
            segment = log.segment_of(at)
        runs[-1].append(each)
        end = at + each.size
    return runs


def check_extent(log: CommitLog, queue: ConsumeQueue, place: Place) -> None:
    """Raise CorruptQueue unless a frame can be where a unit says."""
    if not HEADER_BYTES <= place.size <= FRAME_BYTES_MAX or place.log_offset + place.size > log.end:
        raise queue.corrupt(place.offset, f"no frame can have {place.size} bytes at {place.log_offset}")


def _check_identity(
    log: CommitLog, queue: ConsumeQueue, topic: bytes, frames: Sequence[Place], chunks: Sequence[Data]
) -> None:
    rest = iter(chunks)
    chunk: Data = b""
    within = 0
    for index, place in enumerate(frames):
        if within == len(chunk):
            chunk, within = next(rest), 0
        if len(chunk) - within < place.size:
            refuse(log, queue, place)
        size, queue_id, first, log_offset, count, topic_bytes = _IDENTITY.unpack_from(chunk, within)
        name = chunk[within + HEADER_BYTES : within + HEADER_BYTES + topic_bytes]
        holds = first <= place.offset < first + count if index == 0 else first == place.offset
        if not holds or (size, queue_id, log_offset, name) != (place.size, queue.id, place.log_offset, topic):
            refuse(log, queue, place)
        within += size


def refuse(log: CommitLog, queue: ConsumeQueue, place: Place) -> NoReturn:
    """Raise CorruptFrame if the log is damaged at a place, else CorruptQueue: the unit leads astray."""
    header = log.frame(place.log_offset, place.size).header
    found = f"queue {header.queue}, offsets {header.queue_offset} to {header.next_queue_offset - 1}"
    raise queue.corrupt(place.offset, f"at {place.log_offset} lies a frame of {found}")


def _header(log: CommitLog, queue: ConsumeQueue, place: Place, end: int) -> FrameHeader:
    """Return the header of the frame that a unit leads to, if it can be that unit's."""
    check_extent(log, queue, place)
    header = log.header(place.log_offset)
    holds = header.queue_offset <= place.offset < header.next_queue_offset <= end
    if not holds or (header.log_offset, header.queue) != (place.log_offset, queue.id):
        refuse(log, queue, place)
    return header


def offset_at(
    log: CommitLog, queue: ConsumeQueue, low: int, end: int, at_us: int, boundary: TimeBoundary
) -> int:
    """Return the offset that a time names in [low, end) (RocketMQ: getOffsetInQueueByTime).

    Store times never decrease along a queue, and all messages of a frame share
    one, so a bisection over units that reads headers finds the edge.
    """
    lower = boundary is TimeBoundary.LOWER
    first, last = low, end
    while first < last:
        middle = (first + last) // 2
        unit = queue.read(middle, 1)[0]
        log_offset, size = int(unit["log_offset"]), int(unit["size"])
        # A unit of size 0 leads to a lost frame, which has no queue offset of its own.
        header = _header(log, queue, Place(log_offset, size, middle), end) if size else log.header(log_offset)
        before = header.stored_at_us < at_us if lower else header.stored_at_us <= at_us
        if before:
            first = max(middle + 1, min(header.next_queue_offset, end))
        else:
            last = min(middle, max(low, header.queue_offset)) if size else middle
    return first if lower else max(low, first - 1)
