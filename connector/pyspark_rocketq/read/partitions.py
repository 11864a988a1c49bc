"""From ranges of queues to Spark partitions: pure.

Without options a partition is one queue's range, and small ranges of several queues share one: a task costs
Spark some 30 ms, whatever it reads. `smallRangeRows` says how many messages they have together at most.

The limits cut a range into pieces of nearly equal size that follow one another without gap or overlap;
`minPartitions` cuts the largest pieces further until there are enough, or every piece is one message. A user
who sets one of these says what a partition is, so then no two ranges share one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pyspark_rocketq.options.options import Splitting
from rocketq.model import MessageQueue


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Messages [begin, end) of one incarnation of one queue.

    `address` is where the planner last saw the broker; a reader that finds nobody there asks
    for the route.
    """

    queue: MessageQueue
    begin: int
    end: int
    incarnation: str = ""
    address: str = ""

    @property
    def size(self) -> int:
        return self.end - self.begin


#: What one Spark partition reads: one range, or several small ones.
Ranges = tuple[QueueRange, ...]


def plan_partitions(
    ranges: Sequence[QueueRange],
    splitting: Splitting,
    bytes_per_message: Callable[[MessageQueue], float],
) -> list[Ranges]:
    """Return the partitions of a batch; empty ranges are left out. The arguments are those of `split`."""
    parts = split(ranges, splitting, bytes_per_message)
    return pack(parts, 0 if splitting.is_given else splitting.small_rows)


def pack(ranges: Sequence[QueueRange], rows_max: int) -> list[Ranges]:
    """Put neighbours together as long as they have at most `rows_max` messages; 0 keeps all apart.

    A pure function of the ranges, so a batch that Spark plans again has the same partitions.
    """
    packed: list[Ranges] = []
    small: list[QueueRange] = []
    rows = 0
    for one in ranges:
        if small and rows + one.size > rows_max:
            packed.append(tuple(small))
            small, rows = [], 0
        small.append(one)
        rows += one.size
    return [*packed, tuple(small)] if small else packed


def split(
    ranges: Sequence[QueueRange],
    splitting: Splitting,
    bytes_per_message: Callable[[MessageQueue], float],
) -> list[QueueRange]:
    """Cut the ranges as asked; empty ones are left out, the order of the rest is kept.

    `bytes_per_message` is asked only under a limit in bytes.
    """
    ranges = [one for one in ranges if one.size > 0]
    pieces = [_pieces_for_limits(one, splitting, bytes_per_message) for one in ranges]
    if splitting.min_partitions is not None:
        _add_pieces(ranges, pieces, splitting.min_partitions)
    return [part for one, count in zip(ranges, pieces, strict=True) for part in _cut(one, count)]


def _pieces_for_limits(
    one: QueueRange, splitting: Splitting, bytes_per_message: Callable[[MessageQueue], float]
) -> int:
    pieces = 1
    if splitting.max_records is not None:
        pieces = -(-one.size // splitting.max_records)
    if splitting.max_bytes is not None:
        records = max(1, int(splitting.max_bytes / max(1.0, bytes_per_message(one.queue))))
        pieces = max(pieces, -(-one.size // records))
    return pieces


def _add_pieces(ranges: Sequence[QueueRange], pieces: list[int], wanted: int) -> None:
    """Raise piece counts, one at a time where the pieces are largest, until `wanted` are reached."""
    missing = wanted - sum(pieces)
    largest = [(-one.size / pieces[i], i) for i, one in enumerate(ranges)]
    heapq.heapify(largest)
    while missing > 0 and largest and -largest[0][0] > 1:
        _, i = largest[0]
        pieces[i] += 1
        missing -= 1
        heapq.heapreplace(largest, (-ranges[i].size / pieces[i], i))


def _cut(one: QueueRange, pieces: int) -> list[QueueRange]:
    bounds = [one.begin + one.size * i // pieces for i in range(pieces + 1)]
    return [replace(one, begin=bounds[i], end=bounds[i + 1]) for i in range(pieces)]
