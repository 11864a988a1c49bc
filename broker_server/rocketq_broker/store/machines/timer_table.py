"""The timer: which delayed messages are still to be delivered, as a small value folded from the log.

A DELAYED frame lies in the log and holds messages of one queue, each with its delivery time. Messages are
delivered in the order (delivery time, log offset). A new message is never due before one that was delivered:
its *due time* is its delivery time, or the tick in which it was stored if that is later. So a *cursor* says
what was delivered, however much is outstanding.

The table does not know single messages. It counts them by *window*, ten minutes of due time, and keeps the
log offset of the window's first frame, below which nothing of the window lies. The log is kept from the
lowest of these on. Which messages are due when is in the timer index (`store.timers`), which is derived from
the log.

    DELAYED frame ─> counted in its windows ─> TimersDelivered, with the messages in the same append
                                          └──> TimersCancelled

`TimersDelivered` and the frames of the delivered messages are one append: recovery keeps all of them or none.
So each message comes to its queue once. A cancelled message stays counted, and is remembered, until the
cursor has passed it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

import msgspec
from rpds import HashTrieMap

from rocketq_broker.store.machines.machine import Machine
from rocketq_broker.store.machines.topic_table import TopicTable

#: Due times are compared with the clock in steps of this, so that messages of one step leave together.
TICK_MS: Final = 100
#: Messages are counted, and indexed in files, by windows of due time.
WINDOW_MS: Final = 600_000
#: Cancelled messages that wait for their time to pass; the state has each of them.
CANCELLED_MAX: Final = 100_000


class DueKey(NamedTuple):
    """The place of messages in the order of delivery; unique for each due time of each frame."""

    due_ms: int
    log_offset: int


class TimerPlace(NamedTuple):
    """One delayed message: the log offset of its frame and its row there."""

    log_offset: int
    row: int


@dataclass(frozen=True, slots=True)
class TimerWindow:
    """What is held in one window: how many messages, and where the first of their frames lies."""

    first: int
    messages: int


class TimersDelivered(msgspec.Struct, frozen=True, tag="timers_delivered"):
    """All up to (due_ms, log_offset) is delivered: the cursor passes so many `messages` in each window.

    `cancelled` are those among them that were not delivered because they were cancelled. `lost` of the others
    were in frames that salvage found damaged, and `dropped` were for topics that are deleted.
    """

    due_ms: int
    log_offset: int
    messages: dict[int, int]
    cancelled: tuple[TimerPlace, ...] = ()
    lost: int = 0
    dropped: int = 0


class TimerCancelled(msgspec.Struct, frozen=True, tag="timer_cancelled"):
    """A delayed message is not to be delivered."""

    log_offset: int
    row: int
    due_ms: int


#: The due times of cancelled messages of one frame, by row.
CancelledRows: TypeAlias = "HashTrieMap[int, int]"

_BEGIN: Final = DueKey(-1, -1)
_NONE: Final[CancelledRows] = HashTrieMap()


@dataclass(frozen=True, slots=True)
class TimerTable(Machine):
    """The cursor, the windows in which something is held ahead of it, and what of that is cancelled."""

    CHANGES: ClassVar[tuple[type, ...]] = (TimersDelivered, TimerCancelled)

    cursor: DueKey = _BEGIN
    windows: HashTrieMap[int, TimerWindow] = field(default_factory=HashTrieMap)
    #: The cancelled messages by the log offset of their frame.
    cancelled: HashTrieMap[int, CancelledRows] = field(default_factory=HashTrieMap)
    cancelled_count: int = 0

    @property
    def outstanding(self) -> int:
        """How many messages are still to be delivered."""
        return sum(window.messages for window in self.windows.values()) - self.cancelled_count

    @property
    def floor(self) -> int | None:
        """The lowest log offset that is still needed; None if nothing is."""
        return min((window.first for window in self.windows.values()), default=None)

    @property
    def first_window(self) -> int | None:
        """The earliest window that holds something."""
        return min(self.windows, default=None)

    def is_cancelled(self, place: TimerPlace) -> bool:
        """Whether a message ahead of the cursor was cancelled."""
        return place.row in self.cancelled.get(place.log_offset, _NONE)

    # --- folds --------------------------------------------------------------------------

    def scheduled(self, log_offset: int, messages: Mapping[int, int]) -> TimerTable:
        """Return the table after a DELAYED frame with so many messages in each window."""
        windows = self.windows
        for number, count in messages.items():
            window = windows.get(number, TimerWindow(log_offset, 0))
            windows = windows.insert(number, TimerWindow(window.first, window.messages + count))
        return replace(self, windows=windows)

    def knows(self, change: Any) -> bool:
        """Whether what a change speaks of is held here; if not, a frame was lost."""
        if isinstance(change, TimerCancelled):
            return change.due_ms // WINDOW_MS in self.windows
        return all(
            number in self.windows and self.windows[number].messages >= count
            for number, count in change.messages.items()
        )

    def apply(self, change: TimersDelivered | TimerCancelled, topics: TopicTable) -> TimerTable:
        """Return the table after `change`."""
        if isinstance(change, TimerCancelled):
            rows = self.cancelled.get(change.log_offset, _NONE).insert(change.row, change.due_ms)
            cancelled = self.cancelled.insert(change.log_offset, rows)
            return replace(self, cancelled=cancelled, cancelled_count=self.cancelled_count + 1)
        cancelled, count = self.cancelled, self.cancelled_count
        for log_offset, row in change.cancelled:
            rows = cancelled.get(log_offset, _NONE)
            if row in rows:
                rows, count = rows.remove(row), count - 1
                cancelled = cancelled.insert(log_offset, rows) if rows else cancelled.remove(log_offset)
        cursor = DueKey(change.due_ms, change.log_offset)
        return TimerTable(cursor, _less(self.windows, change.messages), cancelled, count)

    def recounted(self, windows: Mapping[int, TimerWindow], frames: Collection[int]) -> TimerTable:
        """Return the table with windows as they were counted in the timer index, after frames were lost.

        Of the cancelled messages, those ahead of the cursor stay whose frames are there.
        """
        cancelled = {
            log_offset: HashTrieMap(own)
            for log_offset, rows in self.cancelled.items()
            if log_offset in frames
            and (own := {row: due for row, due in rows.items() if DueKey(due, log_offset) > self.cursor})
        }
        count = sum(len(rows) for rows in cancelled.values())
        return TimerTable(self.cursor, HashTrieMap(windows), HashTrieMap(cancelled), count)

    def moved_to(self, cursor: DueKey) -> TimerTable:
        """Return the table with a later cursor, which a lost change had moved; `recounted` counts again."""
        return replace(self, cursor=max(self.cursor, cursor))

    def cancelled_up_to(self, due_ms: int) -> tuple[TimerPlace, ...]:
        """Return the cancelled messages that are due up to a time; looks at every one."""
        return tuple(
            TimerPlace(log_offset, row)
            for log_offset, rows in self.cancelled.items()
            for row, due in rows.items()
            if due <= due_ms
        )


def _less(
    windows: HashTrieMap[int, TimerWindow], messages: Mapping[int, int]
) -> HashTrieMap[int, TimerWindow]:
    """Return the windows without so many messages; one without any is no longer there.

    Where a frame was lost, a window may have fewer than that; `recounted` then counts again.
    """
    for number, count in messages.items():
        window = windows.get(number)
        if window is None:
            continue
        left = window.messages - count
        windows = (
            windows.insert(number, TimerWindow(window.first, left)) if left > 0 else windows.remove(number)
        )
    return windows


class PicturedWindow(NamedTuple):
    """A window in a picture."""

    window: int
    first: int
    messages: int


@dataclass(frozen=True, slots=True)
class TimerPicture:
    """A whole table, as a state frame and the snapshot hold it."""

    due_ms: int = _BEGIN.due_ms
    log_offset: int = _BEGIN.log_offset
    windows: tuple[PicturedWindow, ...] = ()
    cancelled: tuple[TimerCancelled, ...] = ()

    @staticmethod
    def of(table: TimerTable) -> TimerPicture:
        return TimerPicture(
            *table.cursor,
            tuple(
                PicturedWindow(number, each.first, each.messages) for number, each in _sorted(table.windows)
            ),
            tuple(
                TimerCancelled(log_offset, row, due)
                for log_offset, rows in _sorted(table.cancelled)
                for row, due in _sorted(rows)
            ),
        )

    def table(self) -> TimerTable:
        rows: dict[int, dict[int, int]] = {}
        for each in self.cancelled:
            rows.setdefault(each.log_offset, {})[each.row] = each.due_ms
        return TimerTable(
            DueKey(self.due_ms, self.log_offset),
            HashTrieMap({each.window: TimerWindow(each.first, each.messages) for each in self.windows}),
            HashTrieMap({log_offset: HashTrieMap(own) for log_offset, own in rows.items()}),
            len(self.cancelled),
        )


def _sorted(entries: HashTrieMap[Any, Any]) -> Iterable[tuple[Any, Any]]:
    return sorted(entries.items(), key=lambda entry: entry[0])
