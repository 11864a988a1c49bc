"""What the store answers: what a search found and does not cover, and where the store stands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rocketq.protocol.documents.broker import QueueSpan, UncoveredRange
from rocketq.protocol.frame_slices import FrameSlice
from rocketq_broker.store.errors import CorruptQueue
from rocketq_broker.store.index.index_file import EARLIEST_US, LATEST_US, Hole
from rocketq_broker.store.index.key_query import PlaceInLog
from rocketq_broker.store.log.consume_queue import ConsumeQueue
from rocketq_broker.store.upkeep.clock_trust import ClockRecord


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """What a query by key found, each message a slice of one, and what it does not cover.

    `lag_bytes` of log were not yet indexed; `uncovered` cannot be read. `last` is the place of the last
    message if the query's limit or bytes ended the search, so that another may go on before it; else None.
    """

    slices: tuple[FrameSlice, ...]
    lag_bytes: int
    uncovered: tuple[UncoveredRange, ...] = ()
    last: PlaceInLog | None = None


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Where the log stands (log offsets), what waits (bytes) and what is held."""

    log_begin: int
    log_end: int
    durable_end: int
    snapshot_position: int
    index_position: int
    index_holes: int
    index_hole_bytes: int
    queued_bytes: int
    commits: int
    topics: int
    queues: int
    open_files: int
    #: Slots of numbered sends that are remembered, and sends that came again since the start.
    slots: int
    repeated_sends: int
    #: Blocks of damaged ConsumeQueue units that were built again from the log.
    rebuilt_blocks: int
    clock: ClockRecord


def uncovered_range(hole: Hole, queues: Iterable[ConsumeQueue]) -> UncoveredRange:
    """Return a hole with the offsets that these queues have in it, as far as their units tell."""
    spans: list[QueueSpan] = []
    known = True
    try:
        for queue in queues:
            first, end = queue.first_at(hole.begin), queue.first_at(hole.end)
            if first < end:
                spans.append(QueueSpan(queue.id, first, end))
    except (CorruptQueue, FileNotFoundError):
        # A unit is damaged, or the topic was deleted at this moment.
        known = False
    return UncoveredRange(
        hole.begin,
        hole.end,
        hole.first_us if hole.first_us > EARLIEST_US else None,
        hole.last_us if hole.last_us < LATEST_US else None,
        tuple(spans) if known else None,
    )
