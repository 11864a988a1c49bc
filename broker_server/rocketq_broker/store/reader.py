"""Reading: from a queue offset to the frames that hold it, and from a time to an offset.

A pull costs the same wherever it begins: one unit says where the first frame
lies, and each frame's header how far it reaches. Many small frames are found by
reading units in runs; large ones by hopping from header to header, so their
thousands of equal units are never read. Neighbouring frames are read at once.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rocketq.protocol.model import TimeBoundary
from rocketq_broker.store.commit_log import CommitLog
from rocketq_broker.store.consume_queue import ConsumeQueue

#: Units read at a time while frames are looked up.
RUN_UNITS: Final = 128


def locate(
    log: CommitLog, queue: ConsumeQueue, offset: int, end: int, max_bytes: int, max_messages: int | None
) -> tuple[list[tuple[int, int]], int]:
    """Find the frames that hold [offset, ...), at least one unless all was lost; `offset` < `end`.

    Returns each frame's log offset and size, and the queue offset after the last.
    """
    limit = end if max_messages is None else min(end, offset + max_messages)
    found: list[tuple[int, int]] = []
    total = 0
    at = offset
    while at < limit:
        units = queue.read(at, min(RUN_UNITS, end - at))
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
            found.append((place, size))
            total += size
            if index + 1 == len(firsts):
                at = log.header(place).next_queue_offset
    return found, at


def read(log: CommitLog, frames: list[tuple[int, int]]) -> list[bytes]:
    """Read frames in order; neighbours within a segment come as one piece."""
    runs: list[tuple[int, int]] = []
    for place, size in frames:
        if (
            runs
            and runs[-1][0] + runs[-1][1] == place
            and log.segment_of(place) == log.segment_of(runs[-1][0])
        ):
            runs[-1] = (runs[-1][0], runs[-1][1] + size)
        else:
            runs.append((place, size))
    return [log.read(place, size) for place, size in runs]


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
        header = log.header(int(queue.read(middle, 1)["log_offset"][0]))
        before = header.stored_at_us < at_us if lower else header.stored_at_us <= at_us
        if before:
            first = max(middle + 1, min(header.next_queue_offset, end))
        else:
            # A lost frame has no queue offset of its own.
            last = min(middle, max(low, header.queue_offset)) if header.count else middle
    return first if lower else max(low, first - 1)
