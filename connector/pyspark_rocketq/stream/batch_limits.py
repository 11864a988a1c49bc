"""How far the next micro-batch goes: pure decisions over backlogs.

A limit is split over the queues in proportion to their backlog, and a queue with a backlog
gets at least one message, so that a small queue beside a large one never starves (the rule of
Spark's Kafka source). A batch can therefore exceed the limit by at most one message for each queue.

A limit in bytes is soft: the size of messages is estimated, and one message is always admitted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark_rocketq.options.options import BatchLimits
from rocketq.model import MessageQueue

Backlogs = Mapping[MessageQueue, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Limit:
    """What one batch may hold at most; None is no limit."""

    rows: int | None = None
    bytes: int | None = None

    @property
    def none(self) -> bool:
        return self.rows is None and self.bytes is None


def admit(
    backlogs: Backlogs, limit: Limit, bytes_per_message: Callable[[MessageQueue], float]
) -> dict[MessageQueue, int]:
    """Return where each queue of `backlogs` ([next, max) by queue) ends in the next batch.

    `bytes_per_message` is asked only under a limit in bytes, and only for queues with a backlog.
    """
    lagging = {queue: last - first for queue, (first, last) in backlogs.items() if last > first}
    ends = {queue: last for queue, (_, last) in backlogs.items()}
    share = 1.0
    total = sum(lagging.values())
    if limit.rows is not None and total > limit.rows:
        share = limit.rows / total
    if limit.bytes is not None and lagging:
        weight = sum(size * bytes_per_message(queue) for queue, size in lagging.items())
        if weight > limit.bytes:
            share = min(share, limit.bytes / weight)
    if share < 1.0:
        for queue, size in lagging.items():
            ends[queue] = backlogs[queue][0] + max(1, int(size * share))
    return ends


@dataclass(slots=True)
class BatchDelay:
    """Delays small batches: `minOffsetsPerTrigger` with `maxTriggerDelay`.

    The first batch of a run is never held, since nobody knows when the last one was (as Kafka's source).
    """

    limits: BatchLimits
    triggered_at_ms: int | None = None

    def is_due(self, waiting: int, now_ms: int) -> bool:
        """Whether `waiting` messages are to be read now; remembers that they were."""
        if waiting == 0:
            return False
        if self.limits.min_rows is not None and self.triggered_at_ms is not None:
            overdue = now_ms - self.triggered_at_ms >= self.limits.max_delay_ms
            if waiting < self.limits.min_rows and not overdue:
                return False
        self.triggered_at_ms = now_ms
        return True

    def due_in_ms(self, now_ms: int) -> int | None:
        """Milliseconds until messages that are held back become due; None if that takes no waiting."""
        if self.limits.min_rows is None or self.triggered_at_ms is None:
            return None
        return max(0, self.triggered_at_ms + self.limits.max_delay_ms - now_ms)
