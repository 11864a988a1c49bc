"""Delayed messages that were delivered by a change which salvage found lost: how far the cursor was.

A delivery is one append: the change that moves the timer's cursor, then the frames with the messages. If the
change lies in a lost frame and the frames behind it are sound, the messages are in their queues and the
cursor is not moved: they would be delivered again. So the cursor is found again: the messages of these frames
are searched in the delayed frames. What is not found there was not delivered by the timer. A later change
says where the cursor is, and then nothing has to be searched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from rocketq.protocol.arrow.stream_reader import read_stored
from rocketq.protocol.frame import FrameHeader
from rocketq.protocol.rules.delivery_time import NO_TIME, stored_times
from rocketq_broker.store.log.commit_log import CommitLog
from rocketq_broker.store.log.consume_queues import QueueKey
from rocketq_broker.store.machines.timer_table import DueKey, TimerTable
from rocketq_broker.store.timers.entries import key_of, last_tick
from rocketq_broker.store.timers.timer_index import TimerIndex


@dataclass(slots=True)
class TornDeliveries:
    """The frames that follow lost ones and may have delivered messages."""

    #: Whether the frame that is folded next may belong to an append whose beginning is lost.
    _is_open: bool = False
    #: The messages of each queue, and when they were stored.
    _delivered: dict[QueueKey, _Delivered] = field(default_factory=dict)

    def lost(self) -> None:
        """Take note of a lost frame: an append may have begun in it."""
        self._is_open = True

    def folded(self, header: FrameHeader) -> None:
        """Take note that a frame was folded, whatever its kind."""
        self._is_open &= header.unfinished

    def messages(self, key: QueueKey, header: FrameHeader, batch: pa.RecordBatch) -> None:
        """Take a frame of messages of a queue."""
        if self._is_open and (stored_times(batch) != NO_TIME).all():
            own = self._delivered.setdefault(key, _Delivered())
            own.batches.append(batch)
            own.at_ms = header.stored_at_us // 1000

    def passed(self) -> None:
        """Forget all: a change says where the cursor is."""
        self._is_open = False
        self._delivered.clear()

    def cursor(self, table: TimerTable, index: TimerIndex, log: CommitLog) -> DueKey:
        """Return the cursor behind everything that these frames delivered; raise CorruptFrame."""
        found = table.cursor
        for (number, queue), delivered in self._delivered.items():
            wanted = {row for batch in delivered.batches for row in _rows(batch)}
            for ahead in index.ahead(table, last_tick(delivered.at_ms), log.end):
                own = ahead[(ahead["topic"] == number) & (ahead["queue"] == queue)]
                for at in range(own.size):
                    if not wanted.isdisjoint(_rows(_batch(log, own[at]))):
                        found = max(found, key_of(own, at))
        return found


@dataclass(slots=True)
class _Delivered:
    batches: list[pa.RecordBatch] = field(default_factory=list)
    at_ms: int = 0


def _batch(log: CommitLog, entry: np.void) -> pa.RecordBatch:
    """Return the messages of an entry."""
    frame = log.frame(int(entry["log_offset"]), int(entry["size"]))
    return read_stored(frame.body).slice(int(entry["row"]), int(entry["count"]))


def _rows(batch: pa.RecordBatch) -> Iterator[str]:
    """Yield what tells each message from others: all that its sender gave."""
    return map(repr, batch.to_pylist())
