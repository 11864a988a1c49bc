"""Replay: folds frames of the log into the state and writes the ConsumeQueue units of their messages.

The caller passes frames in the order of the log. Recovery is a replay that ends at the end of the log; a
follower is a replay that goes on with each frame its master sends. The log writer wrote these frames, so
a frame that does not fit the state before it is damage (CorruptLog), unless salvage has left a *lost* frame
before it: any change may have been in there.

Readers see nothing of what is folded before the caller shows it: `take` returns what is to be shown.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
import numpy as np

from rocketq.protocol.frame import Frame, FrameHeader, FrameKind
from rocketq.protocol.frame_slices import open_batch
from rocketq.protocol.hashing import hash_column
from rocketq_broker.epoch_lineage import EpochLineage
from rocketq_broker.store.commit.confirmation import Shown
from rocketq_broker.store.errors import CorruptLog
from rocketq_broker.store.log.commit_log import CommitLog
from rocketq_broker.store.log.consume_queue import OpenBlock, Units, units
from rocketq_broker.store.log.consume_queues import QueueKey, Queues, keyed
from rocketq_broker.store.machines.machine import CopyName, HeldFrame
from rocketq_broker.store.machines.timer_table import TimersDelivered
from rocketq_broker.store.recovery.torn_deliveries import TornDeliveries
from rocketq_broker.store.state.snapshot import Snapshot
from rocketq_broker.store.state.state import HELD_KINDS, Change, Picture, State, decode_change, decode_picture
from rocketq_broker.store.timers.entries import Entries, messages_by_window
from rocketq_broker.store.timers.timer_index import TimerIndex, entries_of
from rocketq_broker.store.timers.window_files import WindowMarks

#: Units are written in runs of about this many.
_PENDING_UNITS: Final = 262_144


@dataclass(slots=True)
class Replay:
    """The state and the queues as of the last folded frame; `log` is read only where salvage was."""

    queues: Queues
    timers: TimerIndex
    log: CommitLog
    state: State = field(default_factory=State)
    stored_at_us: int = 0
    #: Which epochs wrote the log; its newest never falls along the log.
    lineage: EpochLineage = field(default_factory=EpochLineage)
    #: Held while the files of queues and timers grow: the snapshot looks at what did.
    lock: threading.Lock = field(default_factory=threading.Lock)
    #: A log that is replayed from its begin takes its state from the first state frame.
    begins_log: bool = False
    frames: int = 0
    messages: int = 0
    #: The queue offsets [first, end) that a lost frame took.
    lost: list[tuple[QueueKey, int, int]] = field(default_factory=list)
    #: Of what was to be copied for certain, how many held frames a lost frame took.
    lost_copies: dict[CopyName, int] = field(default_factory=dict)
    _pending: dict[QueueKey, list[Units]] = field(default_factory=dict)
    _pending_units: int = 0
    #: Entries of delayed messages that are not written yet.
    _pending_timers: list[Entries] = field(default_factory=list)
    _pending_entries: int = 0
    #: Where each lost frame lies, [at, end), and half frames of which the transaction's begin was lost.
    lost_frames: list[tuple[int, int]] = field(default_factory=list)
    lost_begins: dict[int, int] = field(default_factory=dict)
    _torn: TornDeliveries = field(default_factory=TornDeliveries)
    #: Where the last lost frame lies, once salvage has left one; offsets may be missing after it.
    _lost_at: int | None = None
    #: Of what is folded and not taken yet: the end of each queue, and what `Shown` has.
    _ends: dict[QueueKey, int] = field(default_factory=dict)
    _open_blocks: dict[QueueKey, OpenBlock] = field(default_factory=dict)
    _timer_marks: WindowMarks = field(default_factory=dict)
    _deleted: list[int] = field(default_factory=list)
    _arrived: set[tuple[str, int]] = field(default_factory=set)

    def start_from(self, snapshot: Snapshot | None) -> None:
        """Begin with a snapshot and the derived files that it vouches for, or at the begin of the log.

        The first frame of a log has a picture of its own.
        """
        if snapshot is None:
            self.begins_log = True
            self.queues.reset({}, {})
            self.timers.reset({})
            return
        picture = snapshot.picture
        self.state = picture.state()
        self.stored_at_us = picture.stored_at_us
        self.lineage = picture.lineage or EpochLineage()
        self.queues.reset(picture.ranges, snapshot.open_blocks or {})
        self.timers.reset(snapshot.timer_marks)

    def fold(self, frame: Frame) -> None:
        """Fold the next frame; raise CorruptLog if it does not fit."""
        header = frame.header
        self.frames += 1
        self.stored_at_us = max(self.stored_at_us, header.stored_at_us)
        newest = self.lineage.newest
        if header.epoch < newest and header.kind != FrameKind.LOST:
            raise self._corrupt(
                header.log_offset, f"its epoch {header.epoch} is below {newest}, that of an earlier frame"
            )
        try:
            if header.kind == FrameKind.MESSAGES:
                self._fold_messages(frame)
            elif header.kind == FrameKind.DELAYED:
                self._fold_delayed(frame)
            elif header.kind in HELD_KINDS:
                self._fold_held(frame, FrameKind(header.kind))
            elif header.kind == FrameKind.CHANGE:
                self._fold_change(decode_change(frame.body.to_pybytes()), header.log_offset)
            elif header.kind == FrameKind.STATE:
                self._fold_picture(decode_picture(frame.body.to_pybytes()), header.log_offset)
            elif header.kind == FrameKind.LOST:
                self._fold_lost(header)
        except msgspec.DecodeError as error:
            raise self._corrupt(header.log_offset, f"its body cannot be read: {error}") from error
        if header.kind != FrameKind.LOST:
            self._torn.folded(header)
        if header.epoch > self.lineage.newest:
            self.lineage = self.lineage.with_epoch(header.epoch, header.log_offset)

    def take(self, is_last: bool = False) -> Shown:
        """Write what is still in memory, and return what readers see of what was folded since the last call.

        `Shown.show` shows it, and the caller its state. Every append is folded whole by then. The last call
        of a recovery looks, after a loss, what is left of what the log's frames hold.
        """
        self._write_units()
        self._write_timers()
        if is_last and self._lost_at is not None:
            timers, transactions = self.state.timers, self.state.transactions
            timers = timers.moved_to(self._torn.cursor(timers, self.timers, self.log))
            damaged = [each.number for each in transactions.open.values() if self._has_lost(each.frames)]
            self.state = replace(
                self.state, timers=self.timers.recounted(timers),
                transactions=transactions.damaged(damaged, self.stored_at_us // 1000),
            )  # fmt: skip
        self.timers.passed(self.state.timers.cursor)
        shown = Shown(
            self.state, self.stored_at_us, self.lineage.newest, self._open_blocks, self._timer_marks,
            self._deleted, self._arrived,
        )  # fmt: skip
        self._ends, self._open_blocks, self._timer_marks, self._deleted = {}, {}, {}, []
        self._arrived = set()
        return shown

    @property
    def has_deleted(self) -> bool:
        """Whether a topic was deleted, whose files go when that is shown."""
        return bool(self._deleted)

    def _write_timers(self) -> None:
        if self._pending_timers:
            with self.lock:
                marks = self.timers.write(self._pending_timers)
            self.timers.added(self._pending_timers, marks)
            self._timer_marks.update(marks)
            self._pending_timers.clear()
            self._pending_entries = 0

    def _write_units(self) -> None:
        with self.lock:
            for key, runs in self._pending.items():
                queue = self.queues.make(key)
                queue.written_block = self._open_blocks[key] = queue.write(np.concatenate(runs))
        self._pending.clear()
        self._pending_units = 0

    def _end(self, key: QueueKey) -> int:
        """Return the offset that a queue's next message has."""
        planned = self._ends.get(key)
        return self.queues.written_end(key) if planned is None else planned

    def _corrupt(self, log_offset: int, why: str) -> CorruptLog:
        """Return the error for a sound frame that does not fit: no torn write can have made it."""
        return CorruptLog(
            self.log.path(self.log.segment_of(log_offset)),
            log_offset,
            why,
            "its checksum holds, so it was written like this",
        )

    def _fold_lost(self, header: FrameHeader) -> None:
        """Fold a lost frame: anything may have been in there, and half messages of what is open too."""
        self._lost_at = header.log_offset
        self.lost_frames.append((header.log_offset, header.log_offset + header.size))
        self._torn.lost()
        transactions = self.state.transactions
        at_ms = header.stored_at_us // 1000
        self.state = replace(self.state, transactions=transactions.damaged(transactions.open, at_ms))

    def _has_lost(self, frames: Iterable[HeldFrame]) -> bool:
        return any(at <= each.log_offset < end for each in frames for at, end in self.lost_frames)

    def _fold_delayed(self, frame: Frame) -> None:
        header = frame.header
        if header.published:
            self._fold_copy((header.queue_offset, header.queue), frame)
        entries = entries_of(frame)
        self.state = self.state.scheduled(header.log_offset, messages_by_window(entries))
        self._pending_timers.append(entries)
        self._pending_entries += entries.size
        if self._pending_entries >= _PENDING_UNITS:
            self._write_timers()

    def _fold_held(self, frame: Frame, kind: FrameKind) -> None:
        header = frame.header
        entry, number = self.state.topics.get(frame.topic), header.queue_offset
        if entry is None or not self.state.holds(kind, number):
            if self._lost_at is not None:
                if kind == FrameKind.HALF:
                    self.lost_begins[number] = self.lost_begins.get(number, 0) + 1
                return
            raise self._corrupt(header.log_offset, f"its topic or its stage {number} does not exist there")
        held = HeldFrame(header.log_offset, header.size, header.count, header.queue, entry.number)
        self.state = self.state.held(kind, number, held, header.stored_at_us // 1000)

    def _fold_copy(self, key: QueueKey, frame: Frame) -> None:
        """Move the machine on whose held frame this copies; after a loss, behind lost copies as well."""
        header = frame.header
        at_ms = header.stored_at_us // 1000
        copied = self._copied(key, frame, at_ms)
        if copied is None and self._lost_at is None:
            raise self._corrupt(header.log_offset, "it is no copy of the frame that was to be copied next")
        for _ in range(copied or 0):
            self.state = self.state.copied(at_ms)

    def _copied(self, key: QueueKey, frame: Frame, at_ms: int) -> int | None:
        """Return how many held frames are copied with this copy; None if it copies none of them.

        After a loss, bytes tell which one it copies: for some before it the copies may be lost. For the copy
        of a lost frame that is the first lost one of this size.
        """
        lost: int | None = None
        for count, held in enumerate(self.state.due(at_ms), 1):
            may_be = (held.topic_number, held.queue, held.messages) == (*key, frame.header.count)
            if self._lost_at is None:
                return count if may_be else None
            if may_be and self._has_lost((held,)):
                lost = lost or count
            elif may_be and self.log.frame(held.log_offset, held.size).body.equals(frame.body):
                return count
        return lost

    def _fold_change(self, change: Change, log_offset: int) -> None:
        is_known, lost = self.state.knows(change), self.state.lost(change)
        if not (is_known and lost is None) and self._lost_at is None:
            why = (
                f"{lost[1]} frames that it names are not held there"
                if is_known and lost is not None
                else f"what {change} speaks of does not exist there"
            )
            raise self._corrupt(log_offset, why)
        if isinstance(change, TimersDelivered):
            self._torn.passed()
        if lost is not None:
            self.lost_copies[lost[0]] = lost[1]
        if not is_known and not isinstance(change, TimersDelivered):
            # What brought it was lost; the next state frame has it. What was delivered is so nevertheless.
            return
        before, self.state = self.state, self.state.apply(change)
        self._deleted += before.dropped(self.state)

    def _fold_picture(self, picture: Picture, log_offset: int) -> None:
        if self.begins_log:
            self.begins_log = False
            self.state = picture.state()
            self.lineage = (picture.lineage or self.lineage).begun_at(log_offset)
            # Nothing of what lies before this frame is left, so every queue begins at its end.
            with self.lock:
                for key, each in keyed(picture.ranges):
                    if each.end:
                        self.queues.make(key).reset(each.end, each.end)
        elif self._lost_at is not None:
            # What came before the picture is in it: the cursor, and the frames of what is open.
            self._torn.passed()
            self.lost_begins.clear()
            self.state = picture.state()
            for key, each in keyed(picture.ranges):
                self._fill_lost(key, each.end)

    def _fold_messages(self, frame: Frame) -> None:
        header = frame.header
        entry = self.state.topics.get(frame.topic)
        if entry is None:
            if self._lost_at is not None:
                return
            raise self._corrupt(header.log_offset, f"its topic {frame.topic!r} does not exist there")
        key = (entry.number, header.queue)
        if self._lost_at is not None:
            self._fill_lost(key, header.queue_offset)
        if header.published:
            self._fold_copy(key, frame)
        end = self._end(key)
        if header.queue_offset != end:
            raise self._corrupt(
                header.log_offset, f"queue offset {header.queue_offset} does not follow {end}"
            )
        batch = open_batch(frame, header.log_offset)
        self._torn.messages(key, header, batch)
        hashes = hash_column(batch.column("tag"))
        self._pending.setdefault(key, []).append(units(header.log_offset, header.size, hashes))
        self._pending_units += header.count
        self._ends[key] = end + header.count
        self._arrived.add((frame.topic, header.queue))
        self.messages += header.count
        if self._pending_units >= _PENDING_UNITS:
            self._write_units()

    def _fill_lost(self, key: QueueKey, end: int) -> None:
        """Give the offsets up to `end` that a lost frame took units that say so: of size 0."""
        first = self._end(key)
        if self._lost_at is None or first >= end:
            return
        self.lost.append((key, first, end))
        nothing = np.zeros(end - first, dtype=np.uint64)
        self._pending.setdefault(key, []).append(units(self._lost_at, 0, nothing))
        self._ends[key] = end
