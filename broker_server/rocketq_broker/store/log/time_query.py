"""Finding messages by the time they were stored, over all queues of a topic, without an index.

Store times never decrease along a queue, so a bisection over its units finds where the interval begins,
and the frames that follow are merged by time over the queues. One search reads the header of one frame
for each queue and for each frame it takes, and the bodies of the frames that it takes; it stops after
so many messages or inflated bytes, and says where to go on.

The order is (store time, queue, offset). A place in it is all that the next search needs to know, so
nothing is kept between the two.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from rocketq.errors import OffsetOutOfRange
from rocketq.protocol.frame_slices import FrameSlice, iter_frames
from rocketq_broker.store.disk.files import Data


class PlaceInTime(NamedTuple):
    """A message's place in the order of time; compares as that order."""

    stored_at_us: int
    queue: int
    offset: int


@dataclass(frozen=True, slots=True)
class TimeQuery:
    """Messages of `topic` stored within [begin_us, end_us], oldest first, behind `after` if it is given.

    A search ends after `limit` messages, or before they have more than `inflated_bytes_max`; it takes one in
    any case.
    """

    topic: str
    begin_us: int
    end_us: int
    limit: int
    inflated_bytes_max: int
    after: PlaceInTime | None = None


@dataclass(frozen=True, slots=True)
class FoundInTime:
    """What a search found, in order; `last` is the place of the last message if there may be more."""

    slices: tuple[FrameSlice, ...]
    last: PlaceInTime | None


class Head(NamedTuple):
    """The first message of a queue, or of the rest of it, that is still to be taken, and its frame's end."""

    stored_at_us: int
    queue: int
    offset: int
    next_offset: int


class QueueReader(Protocol):
    """What a search needs of the store; each raises TopicNotFound once the topic is gone."""

    def read_queues(self, topic: str) -> int: ...

    def offset_at(self, topic: str, queue: int, at_us: int) -> int:
        """Return the first offset whose message was stored at `at_us` or later."""
        ...

    def head(self, topic: str, queue: int, offset: int) -> Head | None:
        """Return where the queue goes on at `offset` or, if that is gone, behind; None at its end."""
        ...

    def frame(self, topic: str, queue: int, offset: int) -> Sequence[Data]:
        """Return the frame with this offset; raise OffsetOutOfRange if it is gone."""
        ...


def query_by_time(reader: QueueReader, query: TimeQuery) -> FoundInTime:
    """Carry out a search; raises TopicNotFound, and what reading damaged data raises."""
    found: list[FrameSlice] = []
    count = inflated = 0
    for head in heapq.merge(
        *(_heads(reader, query, queue) for queue in range(reader.read_queues(query.topic)))
    ):
        if count == query.limit:
            return FoundInTime(tuple(found), _last_of(found))
        for piece in _open(reader, query, head):
            rows = _fitting_rows(piece, query.limit - count, query.inflated_bytes_max - inflated)
            if not rows and found:
                return FoundInTime(tuple(found), _last_of(found))
            taken = piece.batch.slice(0, max(1, rows))
            found.append(replace(piece, batch=taken))
            count, inflated = count + taken.num_rows, inflated + taken.nbytes
            if taken.num_rows < piece.batch.num_rows:
                return FoundInTime(tuple(found), _last_of(found))
    return FoundInTime(tuple(found), None)


def _fitting_rows(piece: FrameSlice, rows_max: int, bytes_max: int) -> int:
    """Return how many of its messages to take to have at most so many bytes; found by halving."""
    rows: int = min(piece.batch.num_rows, rows_max)
    while rows and piece.batch.slice(0, rows).nbytes > bytes_max:
        rows //= 2
    return rows


def _heads(reader: QueueReader, query: TimeQuery, queue: int) -> Iterator[Head]:
    """Yield the frames of a queue that lie in the interval and behind `after`."""
    at: int | None = _first_offset(reader, query, queue)
    while at is not None:
        head = reader.head(query.topic, queue, at)
        if head is None or head.stored_at_us > query.end_us:
            return
        yield head
        at = head.next_offset


def _first_offset(reader: QueueReader, query: TimeQuery, queue: int) -> int:
    after = query.after
    if after is None or after.stored_at_us < query.begin_us:
        return reader.offset_at(query.topic, queue, query.begin_us)
    if queue == after.queue:
        return after.offset + 1
    # At the same time the queues below have been through, those above have not.
    return reader.offset_at(query.topic, queue, after.stored_at_us + (queue < after.queue))


def _open(reader: QueueReader, query: TimeQuery, head: Head) -> list[FrameSlice]:
    try:
        chunks = reader.frame(query.topic, head.queue, head.offset)
    except OffsetOutOfRange:
        # Retention took it between the look at its header and here.
        return []
    return [piece for chunk in chunks for piece in iter_frames(chunk, head.offset, head.next_offset)]


def _last_of(found: list[FrameSlice]) -> PlaceInTime:
    last = found[-1]
    return PlaceInTime(last.header.stored_at_us, last.header.queue, last.next_offset - 1)
