"""The timer index: which delayed messages are due next, from files that are derived from the log.

The *head* has the next entries in memory, in the order of delivery. The head and the fresh entries, which
came since it was loaded, together have everything due up to `_known_ms`. When the head is empty, it is
loaded from the file of the earliest window with something outstanding. About `HEAD_ENTRIES` are loaded at
once, twice that with the fresh ones, so memory is bounded however much is outstanding. Each load reads the
whole file of one window. New entries go to the file of their window, and to the fresh ones if they are due
up to `_known_ms`.

The log writer plans from the marks of what is written. Readers and the snapshot have those of what is
confirmed.

A window's file that is damaged or missing is no loss: its entries are read from the DELAYED frames of the
log, from the window's first frame on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from rocketq.protocol.arrow.stream_reader import read_stored
from rocketq.protocol.frame import Frame, FrameKind
from rocketq.protocol.rules.delivery_time import stored_times
from rocketq_broker.store.log.commit_log import CommitLog
from rocketq_broker.store.machines.timer_table import WINDOW_MS, DueKey, TimerTable, TimerWindow
from rocketq_broker.store.timers.entries import (
    NO_ENTRIES,
    Entries,
    behind,
    by_window,
    frame_entries,
    in_order,
    joined,
    key_of,
)
from rocketq_broker.store.timers.window_files import (
    NO_MARK,
    WindowFiles,
    WindowMark,
    WindowMarks,
)

#: Entries that are loaded at once; the head may grow to four times as many before it is cut.
HEAD_ENTRIES: Final = 1 << 17
#: Before and behind everything that is ever due.
_NEVER_MS: Final = -1
_FAR_MS: Final = 1 << 62
_ALL: Final = 1 << 62


class TimerIndex:
    """The index of one store. The thread that writes the log changes it; any thread may call `upcoming`."""

    def __init__(self, windows: WindowFiles, log: CommitLog) -> None:
        self.windows = windows
        self._log = log
        self._head_entries = HEAD_ENTRIES
        #: What is written, and what of it is confirmed.
        self.written: WindowMarks = {}
        self.confirmed: WindowMarks = {}
        self._head = NO_ENTRIES
        #: The due times of the head once more: numpy bisects only an array without gaps.
        self._head_due = np.empty(0, np.int64)
        #: New entries within what is known, which are not merged into the head yet, and when the first is
        #: due.
        self._fresh: list[Entries] = []
        self._fresh_due_ms = _FAR_MS
        self._known_ms = _NEVER_MS
        #: Windows that are delivered as a whole; their files go when a snapshot no longer needs them.
        self.over: set[int] = set()
        #: Earlier windows are over for readers as well.
        self._confirmed_window = -1
        #: Messages that were scheduled and delivered since the start.
        self.scheduled = 0
        self.delivered = 0
        #: When the next entry is due, as far as the writing thread has looked; None if nothing is held.
        self.next_ms: int | None = None
        #: Windows whose files are damaged; their entries are read from the log.
        self.damaged: set[int] = set()

    def reset(self, marks: Mapping[int, WindowMark]) -> None:
        """Begin with files as a snapshot marks them, or with none."""
        self.windows.reset(marks)
        self.confirmed = dict(marks)
        self.over, self.damaged = set(), set()
        self._confirmed_window = -1
        self.rewind()

    def rewind(self) -> None:
        """Forget the entries that are not confirmed; what is written next takes their places."""
        self.written = dict(self.confirmed)
        self._set_head(NO_ENTRIES)
        self._set_fresh([], _FAR_MS)
        self._known_ms = _NEVER_MS

    # --- the writing thread -------------------------------------------------------------

    def write(self, frames: Sequence[Entries]) -> WindowMarks:
        """Write the entries of frames to their files; return the marks for `added`, without which they are
        not there.
        """
        return self.windows.write(self.written, frames) if frames else {}

    def added(self, frames: Sequence[Entries], marks: Mapping[int, WindowMark]) -> None:
        """Take up entries that were written, now that the log has their frames."""
        if not frames:
            return
        self.written.update(marks)
        entries = joined(frames)
        known = entries[entries["due_ms"] <= self._known_ms]
        if not known.size:
            return
        self._set_fresh([*self._fresh, known], min(self._fresh_due_ms, int(known["due_ms"].min())))
        if sum(some.size for some in self._fresh) > self._head_entries:
            self._set_head(in_order(joined([self._head, *self._fresh])))
            self._set_fresh([], _FAR_MS)
            self._cut_head()

    def next_due_ms(self, table: TimerTable) -> int | None:
        """Return when the next entry behind the table's cursor is due; None if nothing is held."""
        self.next_ms = self._next_due_ms(table)
        return self.next_ms

    def _next_due_ms(self, table: TimerTable) -> int | None:
        if not (self._head.size or self._fresh):
            window = table.first_window
            if window is None:
                return None
            end_ms = (window + 1) * WINDOW_MS - 1
            if self._known_ms < end_ms:
                self._load(table, window)
            if not self._head.size:
                # The frames of the window were lost, and salvage could not know it: the cursor passes its
                # end.
                return end_ms
        return min(int(self._head_due[0]) if self._head.size else _FAR_MS, self._fresh_due_ms)

    def due(self, table: TimerTable, limit_ms: int) -> Entries:
        """Return the known entries behind the table's cursor that are due up to a time, in order."""
        found = self._head[: np.searchsorted(self._head_due, limit_ms, side="right")]
        if self._fresh_due_ms <= limit_ms:
            fresh = joined(self._fresh)
            self._fresh = [fresh]
            found = in_order(joined([found, fresh[fresh["due_ms"] <= limit_ms]]))
        return behind(found, table.cursor)

    def passed(self, cursor: DueKey) -> None:
        """Let go what was delivered, once that is in the log."""
        first = int(np.searchsorted(self._head_due, cursor.due_ms, side="left"))
        end = int(np.searchsorted(self._head_due, cursor.due_ms, side="right"))
        first += int((self._head["log_offset"][first:end] <= np.uint64(max(0, cursor.log_offset))).sum())
        self._head, self._head_due = self._head[first:], self._head_due[first:]
        if self._fresh_due_ms <= cursor.due_ms:
            fresh = behind(joined(self._fresh), cursor)
            self._set_fresh([fresh] if fresh.size else [], int(fresh["due_ms"].min(initial=_FAR_MS)))
        for window in [each for each in self.written if each < cursor.due_ms // WINDOW_MS]:
            del self.written[window]

    def confirm(self, marks: Mapping[int, WindowMark], cursor: DueKey) -> None:
        """Let readers and the snapshot know what is confirmed; called under the lock of the ends."""
        self.confirmed.update(marks)
        window = cursor.due_ms // WINDOW_MS
        if window != self._confirmed_window:
            self._confirmed_window = window
            over = [each for each in self.confirmed if each < window]
            self.over.update(over)
            self.damaged -= self.over
            for each in over:
                del self.confirmed[each]

    def count(self, scheduled: int, delivered: int) -> None:
        """Count messages of a confirmed commit; called under the lock of the ends."""
        self.scheduled += scheduled
        self.delivered += delivered

    def _set_fresh(self, fresh: list[Entries], due_ms: int) -> None:
        self._fresh, self._fresh_due_ms = fresh, due_ms

    def _cut_head(self) -> None:
        """Forget the later part of a long head, which is in the files. Equal due times stay together."""
        if self._head.size > 4 * self._head_entries:
            self._known_ms = int(self._head_due[self._head_entries])
            end = np.searchsorted(self._head_due, self._known_ms, side="right")
            self._set_head(self._head[:end].copy())

    def _set_head(self, entries: Entries) -> None:
        self._head, self._head_due = entries, np.ascontiguousarray(entries["due_ms"])

    def _load(self, table: TimerTable, window: int) -> None:
        entries = self._entries(window, self.written, table, self._log.end)
        head, known_ms = _earliest(entries, table.cursor, self._head_entries)
        self._set_head(head)
        self._known_ms = (window + 1) * WINDOW_MS - 1 if known_ms is None else known_ms

    # --- after salvage ------------------------------------------------------------------

    def ahead(self, table: TimerTable, limit_ms: int, end: int) -> Iterator[Entries]:
        """Yield what the files hold behind the table's cursor, by window, in the order of delivery.

        That is what is due up to a time, of the frames below the log's `end`.
        """
        for window in sorted(self.written):
            if window * WINDOW_MS <= limit_ms:
                entries, _ = _earliest(self._entries(window, self.written, table, end), table.cursor, _ALL)
                yield entries[: np.searchsorted(entries["due_ms"], limit_ms, side="right")]

    def recounted(self, table: TimerTable) -> TimerTable:
        """Return the table as the files have it: with its windows counted, and no cancelled message lost."""
        found: dict[int, TimerWindow] = {}
        places: set[int] = set()
        cancelled = np.array(list(table.cancelled), np.uint64)
        for entries in self.ahead(table, _FAR_MS, self._log.end):
            if entries.size:
                window = int(entries["due_ms"][0]) // WINDOW_MS
                found[window] = TimerWindow(int(entries["log_offset"].min()), int(entries["count"].sum()))
                places.update(cancelled[np.isin(cancelled, entries["log_offset"])].tolist())
        return table.recounted(found, places)

    # --- any thread ---------------------------------------------------------------------

    def upcoming(
        self, table: TimerTable, end: int, cursor: DueKey, topic: int, count: int
    ) -> Iterator[Entries]:
        """Yield a topic's entries behind a cursor in the order of delivery, until there are `count`.

        `table` is the confirmed one, `end` the confirmed end of the log.
        """
        cursor = max(cursor, table.cursor)
        for window in sorted(table.windows):
            while count > 0 and cursor.due_ms < (window + 1) * WINDOW_MS:
                chunks = (
                    some[some["topic"] == topic] for some in self._entries(window, self.confirmed, table, end)
                )
                found, known_ms = _earliest(chunks, cursor, count)
                if found.size:
                    yield found
                    count -= found.size
                    cursor = key_of(found, -1)
                if known_ms is None:
                    break

    def has(self, table: TimerTable, end: int, key: DueKey) -> bool:
        """Whether a frame has messages with this key, as the confirmed table and end of the log say."""
        return any(
            ((some["log_offset"] == key.log_offset) & (some["due_ms"] == key.due_ms)).any()
            for some in self._entries(key.due_ms // WINDOW_MS, self.confirmed, table, end)
        )

    def _entries(
        self, window: int, marks: Mapping[int, WindowMark], table: TimerTable, end: int
    ) -> Iterator[Entries]:
        """Yield the entries of a window, those of the frames below `end`: from its file, or from the log.

        None of a window that is over: a reader's table may be older than the snapshot that removed its file.
        """
        mark, seen = marks.get(window, NO_MARK), 0
        if window not in self.damaged:
            try:
                if self.windows.is_sound(window, mark):
                    for some in self.windows.read(window, mark):
                        yield some
                        seen += some.size
                    return
            except FileNotFoundError:
                if window < self._confirmed_window:
                    return
            self.damaged.add(window)
        held = table.windows.get(window)
        for frame in () if held is None else self._log.frames(held.first, end):
            if frame.header.kind == FrameKind.DELAYED:
                own = by_window(entries_of(frame)).get(window, NO_ENTRIES)
                # The log has them in the order of the file.
                yield own[seen:]
                seen = max(0, seen - own.size)


def _earliest(chunks: Iterable[Entries], cursor: DueKey, count: int) -> tuple[Entries, int | None]:
    """Return about `count` first entries behind a cursor, and up to which due time these are all.

    That is None if there are no more.
    """
    kept, known_ms = [NO_ENTRIES], None
    size = 0
    for chunk in chunks:
        some = behind(chunk, cursor)
        if known_ms is not None:
            some = some[some["due_ms"] <= known_ms]
        kept.append(some)
        size += some.size
        if size > 2 * count:
            whole = joined(kept)
            known_ms = int(np.partition(whole["due_ms"], count)[count])
            kept = [whole[whole["due_ms"] <= known_ms]]
            size = kept[0].size
    return in_order(joined(kept)), known_ms


def entries_of(frame: Frame) -> Entries:
    """Return the entries of a DELAYED frame of the log; its header has the topic's number as queue offset."""
    header = frame.header
    times = stored_times(read_stored(frame.body))
    at_ms = header.stored_at_us // 1000
    return frame_entries(times, at_ms, header.log_offset, header.size, header.queue, header.queue_offset)
