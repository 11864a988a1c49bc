"""The store's door for delayed messages: listing them, looking at one, cancelling one.

A delayed message is scheduled by an append (`DelayedBatch`, `DelayedMessage`), as every other message is
sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa

from rocketq.errors import Conflict, CorruptFrame, NotFound, TopicNotFound
from rocketq.model import MessageQueue, TimerId, TimerStatus
from rocketq.protocol.arrow.stream_reader import read_stored
from rocketq.protocol.frame import Frame, FrameKind
from rocketq.protocol.rules.delivery_time import stored_times
from rocketq_broker.store.commit.store_parts import StoreParts
from rocketq_broker.store.commit.waiting_operations import ChangeState, Operation
from rocketq_broker.store.errors import SegmentGone
from rocketq_broker.store.machines.timer_table import (
    CANCELLED_MAX,
    DueKey,
    TimerCancelled,
    TimerPlace,
    TimerTable,
)
from rocketq_broker.store.state.state import State
from rocketq_broker.store.timers.entries import Entries, due_times

Done = Callable[[Any], None]


class TimerCursor(NamedTuple):
    """Where a list goes on: behind this message in the order of delivery."""

    due_ms: int = -1
    log_offset: int = 0
    row: int = -1


@dataclass(frozen=True, slots=True)
class HeldMessage:
    """A delayed message; `message` is a batch of one row."""

    id: TimerId
    deliver_at_ms: int
    due_ms: int
    status: TimerStatus
    stored_at_us: int
    message: pa.RecordBatch

    @property
    def cursor(self) -> TimerCursor:
        return TimerCursor(self.due_ms, self.id.log_offset, self.id.row)


@dataclass(frozen=True, slots=True)
class TimerStatistics:
    """Messages in the timer, those that came and left since the start, and by how much the next is late."""

    outstanding: int
    scheduled: int
    delivered: int
    behind_ms: int


class TimerOperations:
    """What can be asked of the delayed messages of one store."""

    def __init__(self, parts: StoreParts, submit: Callable[[Operation], None]) -> None:
        self._broker = parts.config.broker
        self._parts = parts
        self._submit = submit

    @property
    def table(self) -> TimerTable:
        """The timer as it is now; a value that never changes."""
        return self._parts.ends.state.timers

    @property
    def damaged(self) -> frozenset[int]:
        """The windows whose files of the timer index are damaged."""
        return frozenset(self._parts.timers.damaged)

    def statistics(self) -> TimerStatistics:
        """Return what is outstanding, what was done since the start, and how late the timer is."""
        index, now_ms = self._parts.timers, self._parts.clock.now_us() // 1000
        next_ms = index.next_ms
        behind_ms = 0 if next_ms is None else max(0, now_ms - next_ms)
        return TimerStatistics(self.table.outstanding, index.scheduled, index.delivered, behind_ms)

    def _confirmed(self) -> tuple[State, int]:
        """Return the state that readers see, and the end of the log that it belongs to."""
        ends = self._parts.ends
        with ends.lock:
            return ends.state, ends.confirmed

    def page(self, topic: str, behind: TimerCursor, count: int) -> list[HeldMessage]:
        """Return up to `count` pending messages of a topic behind a cursor, in the order of delivery.

        Raises TopicNotFound, CorruptFrame. It reads files, so it may wait for the disk.
        """
        state, end = self._confirmed()
        entry = state.topics.get(topic)
        if entry is None:
            raise TopicNotFound(topic, self._broker)
        table = state.timers
        found: list[HeldMessage] = []
        from_key = DueKey(behind.due_ms, behind.log_offset - 1)
        # A cancelled message does not count, so more are looked at than are asked for.
        wanted = count + table.cancelled_count + 1
        for entries in self._parts.timers.upcoming(table, end, from_key, entry.number, wanted):
            for held in self._pending(entries, table, behind):
                found.append(held)
                if len(found) == count:
                    return found
        return found

    def _pending(self, entries: Entries, table: TimerTable, behind: TimerCursor) -> Iterator[HeldMessage]:
        for entry in entries:
            try:
                frame = self._parts.log.frame(int(entry["log_offset"]), int(entry["size"]))
            except SegmentGone:
                # It was delivered meanwhile, and retention has removed it.
                continue
            first = int(entry["row"])
            for held in self._held(frame, range(first, first + int(entry["count"]))):
                place = TimerPlace(held.id.log_offset, held.id.row)
                if held.cursor > behind and not table.is_cancelled(place):
                    yield held

    def find(self, timer: TimerId) -> HeldMessage:
        """Return a delayed message, also one whose time has passed, while its frame is there.

        Raises NotFound, CorruptFrame. It reads files, so it may wait for the disk.
        """
        (state, end), log = self._confirmed(), self._parts.log
        table, missing = state.timers, NotFound("delayed message", str(timer))
        if timer.log_offset >= end:
            raise missing
        try:
            header = log.header(timer.log_offset)
            frame = log.frame(timer.log_offset, header.size)
        except (CorruptFrame, SegmentGone):
            # No frame begins there, or retention has removed it.
            raise missing from None
        place = MessageQueue(frame.topic, self._broker, header.queue)
        is_held = header.kind == FrameKind.DELAYED and header.log_offset == timer.log_offset
        if not is_held or place != timer.queue or timer.row >= header.count:
            raise missing
        (held,) = self._held(frame, range(timer.row, timer.row + 1))
        key = DueKey(held.due_ms, timer.log_offset)
        if key <= table.cursor:
            return replace(held, status=TimerStatus.PAST)
        if not self._parts.timers.has(table, end, key):
            if key <= self.table.cursor:
                return replace(held, status=TimerStatus.PAST)
            # What looks like a frame lies within the body of a message.
            raise missing
        if table.is_cancelled(TimerPlace(timer.log_offset, timer.row)):
            return replace(held, status=TimerStatus.CANCELLED)
        return held

    def cancel(self, held: HeldMessage, done: Done) -> None:
        """Keep a message from being delivered; `done` has None, or Conflict if its time has passed.

        Cancelling it again changes nothing.
        """
        place, due_ms = TimerPlace(held.id.log_offset, held.id.row), held.due_ms

        def decide(state: State) -> TimerCancelled | None:
            table = state.timers
            what = f"delayed message {str(held.id)!r}"
            if DueKey(due_ms, place.log_offset) <= table.cursor:
                raise Conflict(what, "its time has passed", "It was delivered, unless it had been cancelled.")
            if table.is_cancelled(place):
                return None
            if table.cancelled_count >= CANCELLED_MAX:
                why = f"{CANCELLED_MAX} cancelled messages wait for their time to pass, which is the most"
                raise Conflict(what, why, "Cancel it later, or have its consumer pass over it.")
            return TimerCancelled(*place, due_ms)

        self._submit(ChangeState(decide, lambda state: None, done))

    def _held(self, frame: Frame, rows: range) -> Iterator[HeldMessage]:
        """Yield messages of a DELAYED frame as pending."""
        header, batch = frame.header, read_stored(frame.body)
        times = stored_times(batch)
        due = due_times(times, header.stored_at_us // 1000)
        queue = MessageQueue(frame.topic, self._broker, header.queue)
        for row in rows:
            yield HeldMessage(
                TimerId(queue, header.log_offset, row), int(times[row]), int(due[row]), TimerStatus.PENDING,
                header.stored_at_us, batch.slice(row, 1),
            )  # fmt: skip
