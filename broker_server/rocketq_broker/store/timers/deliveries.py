"""When delayed messages are due, and what the next commit delivers of them: index and frames together."""

from __future__ import annotations

from rocketq_broker.store.log.commit_log import CommitLog
from rocketq_broker.store.machines.timer_table import TimerTable
from rocketq_broker.store.machines.topic_table import TopicTable
from rocketq_broker.store.timers.due_frames import DueDelivery, DueFrames, passing
from rocketq_broker.store.timers.entries import last_tick, next_tick
from rocketq_broker.store.timers.timer_index import TimerIndex


class Deliveries:
    """Answers the log writer, on its thread. Times are milliseconds since 1970."""

    def __init__(self, index: TimerIndex, log: CommitLog, bytes_max: int) -> None:
        """One delivery reads frames of about `bytes_max` bytes."""
        self._index = index
        self._frames = DueFrames(log)
        self._bytes_max = bytes_max

    def next_at_ms(self, table: TimerTable) -> int | None:
        """Return when the next messages leave, which may be past; None if nothing is held."""
        due_ms = self._index.next_due_ms(table)
        return None if due_ms is None else next_tick(due_ms)

    def is_due(self, table: TimerTable, at_ms: int) -> bool:
        """Whether messages are to leave at a time."""
        next_ms = self.next_at_ms(table)
        return next_ms is not None and next_ms <= at_ms

    def next(self, table: TimerTable, topics: TopicTable, at_ms: int) -> DueDelivery | None:
        """Return what leaves now; None if nothing is due. Raises CorruptFrame."""
        if not self.is_due(table, at_ms):
            return None
        entries = self._index.due(table, last_tick(at_ms))
        if entries.size:
            return self._frames.read(entries, table, topics, self._bytes_max)
        window = table.first_window
        return None if window is None else DueDelivery(passing(table, window), ())
