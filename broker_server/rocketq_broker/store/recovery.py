"""Bringing a store back: what its files say, whatever moment they were left in.

1. The log must have no holes between its segments.
2. The snapshot, if it is sound, lies within the log and its ConsumeQueue files
   are there, is where replay begins; else the first segment's state frame is,
   and the ConsumeQueues are written anew.
3. Queues are cut to what that starting point vouches for, then the log behind it
   is replayed: units are written, changes and staged frames folded.
4. The first damaged frame ends the replay. If any evidence says that it was once
   on disk (it is not in the last segment, the snapshot lies beyond it, or a later
   frame's durable end does), good data has rotted: CorruptLog, and nothing is
   changed. Otherwise it is the torn tail of a write that was never
   acknowledged as flushed, and the log is cut there.
5. An append may take several frames, all but the last marked unfinished. If the sound
   frames end with one that is marked so, the crash came in the middle of that append: all its
   frames are cut off. It was never acknowledged, because an answer follows the whole group.
6. After an unclean stop, what no snapshot vouches for is written again, and the
   log is synced before anything of it is served.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import msgspec
import numpy as np

from rocketq.errors import CorruptFrame
from rocketq.protocol.frame import Frame, FrameHeader, FrameKind
from rocketq.protocol.hashing import hash_column
from rocketq.protocol.slices import open_batch
from rocketq_broker.store import snapshot as snapshots
from rocketq_broker.store.commit_log import CommitLog
from rocketq_broker.store.consume_queue import Units, units
from rocketq_broker.store.damage import witness_against
from rocketq_broker.store.errors import CorruptLog, CorruptSnapshot
from rocketq_broker.store.files import Files
from rocketq_broker.store.queue_repair import QueueRepair
from rocketq_broker.store.queues import QueueKey, Queues, keyed
from rocketq_broker.store.sink_changes import BatchPublished
from rocketq_broker.store.sinks import PublicationName, StagedFrame
from rocketq_broker.store.snapshot import Snapshot
from rocketq_broker.store.state import (
    TOPIC_CHANGES,
    Change,
    OffsetsCommitted,
    Picture,
    State,
    TopicAltered,
    TopicDeleted,
    decode_change,
    decode_picture,
)

#: Units are written in runs of about this many while replaying.
_PENDING_UNITS: Final = 262_144


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What recovery found and did; sizes in bytes, positions are log offsets."""

    clean: bool
    log_begin: int
    log_end: int
    replayed_from: int
    frames_replayed: int
    messages_replayed: int
    torn_bytes: int
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Recovery:
    """One recovery under way; `run` does it all."""

    files: Files
    log: CommitLog
    queues: Queues
    state: State = field(default_factory=State)
    stored_at_us: int = 0
    notes: list[str] = field(default_factory=list)
    _pending: dict[QueueKey, list[Units]] = field(default_factory=dict)
    _pending_units: int = 0
    _frames: int = 0
    _messages: int = 0
    #: Sound frames at the end of the log whose append has no end there.
    _unfinished: int = 0
    #: Where the last lost frame lies, once salvage has left one; offsets may be missing after it.
    _lost_at: int | None = None
    #: The queue offsets [first, end) that a lost frame took.
    lost: list[tuple[QueueKey, int, int]] = field(default_factory=list)
    #: Of decided batches, how many staged frames a lost frame took.
    lost_staged: dict[PublicationName, int] = field(default_factory=dict)
    #: A log replayed from its begin takes its state from the first state frame.
    _needs_picture: bool = False
    #: The log offset below which a snapshot says that all was on disk, whatever became of the queues.
    _vouched: int = 0

    def run(self, clean: bool) -> RecoveryReport:
        """Recover; raise CorruptLog or MissingSegment and change nothing if data is damaged."""
        self.log.check_no_hole()
        snapshot = self._sound_snapshot()
        if snapshot is None:
            snapshots.distrust_queues(self.files)
        begin = self._start_from(snapshot)
        end = self._replay(begin)
        torn = self.log.end - end
        if torn:
            note = f"cut a torn tail of {torn} bytes at log offset {end}"
            if self._unfinished:
                note += f"; it held {self._unfinished} sound frame(s) of an append that was not finished"
            self.notes.append(note)
            self.log.truncate(end)
        self._write_pending()
        repair = QueueRepair(self.log, self.queues, lambda: self.state, threading.Lock())
        for queue in self.queues.all():
            # Retention may have removed segments after the snapshot that knew of them.
            queue.raise_min(repair.read(partial(queue.first_at, self.log.begin)))
        if not clean:
            self.log.write_again(begin)
        self.log.sync()
        return RecoveryReport(
            clean, self.log.begin, self.log.end, begin, self._frames, self._messages, torn, tuple(self.notes)
        )

    # --- where replay begins --------------------------------------------------------

    def _sound_snapshot(self) -> Snapshot | None:
        try:
            snapshot = snapshots.read(self.files)
        except CorruptSnapshot as error:
            self.notes.append(f"{error.message} Everything was rebuilt from the log.")
            return None
        if snapshot is None:
            return None
        if snapshot.position > self.log.end:
            raise CorruptLog(
                self.log.path(self.log.starts[-1]) if self.log.starts else "commitlog",
                self.log.end,
                f"it ends at {self.log.end}",
                f"the snapshot vouches for everything below {snapshot.position}",
            )
        self._vouched = snapshot.position
        if (
            snapshot.position < self.log.begin
            or snapshot.tails is None
            or not snapshots.vouches_for_queues(self.files)
            or not self.queues.hold_files_for(snapshot.picture.ranges)
        ):
            self.notes.append(
                "ConsumeQueue files or their checksums were missing or short; they were rebuilt from the log."
            )
            return None
        return snapshot

    def _start_from(self, snapshot: Snapshot | None) -> int:
        if snapshot is not None:
            self.state = snapshot.picture.state()
            self.stored_at_us = snapshot.picture.stored_at_us
            self.queues.reset(snapshot.picture.ranges, snapshot.tails or {})
            return snapshot.position
        self._needs_picture = True
        self.queues.reset({}, {})
        return self.log.begin

    # --- replay ---------------------------------------------------------------------

    def _replay(self, begin: int) -> int:
        """Fold all sound frames from `begin` on, each append whole; return where they end."""
        at = end = begin
        append: list[Frame] = []
        try:
            for frame in self.log.frames(begin):
                append.append(frame)
                at += frame.header.size
                if not frame.header.unfinished:
                    for each in append:
                        self._fold(each)
                    append.clear()
                    end = at
        except CorruptFrame as damage:
            self._refuse_rot(at, damage)
        self._unfinished = len(append)
        return end

    def _fold(self, frame: Frame) -> None:
        header = frame.header
        self._frames += 1
        self.stored_at_us = max(self.stored_at_us, header.stored_at_us)
        try:
            if header.kind == FrameKind.MESSAGES:
                self._fold_messages(frame)
            elif header.kind == FrameKind.STAGED:
                self._fold_staged(frame)
            elif header.kind == FrameKind.CHANGE:
                self._fold_change(decode_change(frame.body.to_pybytes()), header.log_offset)
            elif header.kind == FrameKind.STATE:
                self._fold_picture(decode_picture(frame.body.to_pybytes()))
            elif header.kind == FrameKind.LOST:
                self._lost_at = header.log_offset
        except msgspec.DecodeError as error:
            raise self._nonsense(header.log_offset, f"its body cannot be read: {error}") from error

    def _nonsense(self, log_offset: int, why: str) -> CorruptLog:
        """Return the error for a sound frame that does not fit: no torn write can have made it."""
        segment = self.log.path(self.log.segment_of(log_offset))
        return CorruptLog(segment, log_offset, why, "its checksum holds, so it was written like this")

    def _fold_staged(self, frame: Frame) -> None:
        header = frame.header
        entry, number = self.state.topics.get(frame.topic), header.queue_offset
        if entry is None or number not in self.state.sinks.stages:
            if self._lost_at is not None:
                return
            raise self._nonsense(header.log_offset, f"its topic or its stage {number} does not exist there")
        staged = StagedFrame(header.log_offset, header.size, header.count, header.queue, entry.number)
        self.state = self.state.staged(number, staged, header.stored_at_us // 1000)

    def _fold_published(self, key: QueueKey, header: FrameHeader) -> None:
        """Move `publishing` on behind a copy; after a loss, behind the copies that were lost as well."""
        waiting = [frame for each in self.state.sinks.publishing for frame in each.rest]
        candidates = waiting if self._lost_at is not None else waiting[:1]
        for place, frame in enumerate(candidates):
            if (frame.topic_number, frame.queue, frame.messages) == (*key, header.count):
                for _ in range(place + 1):
                    self.state = self.state.published()
                return
        if self._lost_at is None:
            raise self._nonsense(header.log_offset, "it is no copy of the frame that was to be published")

    def _fold_change(self, change: Change, log_offset: int) -> None:
        if not isinstance(change, (*TOPIC_CHANGES, OffsetsCommitted)):
            if not self.state.sinks.knows(change):
                if self._lost_at is None:
                    raise self._nonsense(log_offset, f"what {change} speaks of does not exist there")
                if isinstance(change, BatchPublished):
                    self.lost_staged[change.sink, change.batch, change.run] = len(change.frames)
                return
            if isinstance(change, BatchPublished) and (missing := self.state.sinks.missing(change)):
                if self._lost_at is None:
                    raise self._nonsense(log_offset, f"{missing} frames that it names are not staged there")
                self.lost_staged[change.sink, change.batch, change.run] = missing
        name = change.config.name if isinstance(change, TopicAltered) else getattr(change, "name", None)
        known = name is None or name in self.state.topics
        if not known and self._lost_at is not None:
            # The topic's creation was lost; the next state frame has it.
            return
        if isinstance(change, TopicDeleted) and known:
            self._write_pending()
            self.queues.drop_topic(self.state.topics[change.name].number)
        self.state = self.state.apply(change)

    def _fold_picture(self, picture: Picture) -> None:
        if self._needs_picture:
            self._needs_picture = False
            self.state = picture.state()
            # Nothing of what lies before this frame is left, so every queue begins at its end.
            for key, each in keyed(picture.ranges):
                if each.end:
                    self.queues.make(key).reset(each.end, each.end)
        elif self._lost_at is not None:
            self.state = picture.state()
            for key, each in keyed(picture.ranges):
                self._fill_lost(key, each.end)

    def _fold_messages(self, frame: Frame) -> None:
        header = frame.header
        entry = self.state.topics.get(frame.topic)
        if entry is None:
            if self._lost_at is not None:
                return
            raise self._nonsense(header.log_offset, f"its topic {frame.topic!r} does not exist there")
        key = (entry.number, header.queue)
        if self._lost_at is not None:
            self._fill_lost(key, header.queue_offset)
        if header.published:
            self._fold_published(key, header)
        queue = self.queues.make(key)
        if header.queue_offset != queue.end:
            raise self._nonsense(
                header.log_offset, f"queue offset {header.queue_offset} does not follow {queue.end}"
            )
        hashes = hash_column(open_batch(frame, header.log_offset).column("tag"))
        self._pending.setdefault(key, []).append(units(header.log_offset, header.size, hashes))
        self._pending_units += header.count
        queue.end += header.count
        self._messages += header.count
        if self._pending_units >= _PENDING_UNITS:
            self._write_pending()

    def _fill_lost(self, key: QueueKey, end: int) -> None:
        """Give the offsets up to `end` that a lost frame took units that say so: of size 0."""
        queue = self.queues.make(key)
        if self._lost_at is None or queue.end >= end:
            return
        self.lost.append((key, queue.end, end))
        nothing = np.zeros(end - queue.end, dtype=np.uint64)
        self._pending.setdefault(key, []).append(units(self._lost_at, 0, nothing))
        queue.end = end

    def _write_pending(self) -> None:
        for key, runs in self._pending.items():
            queue = self.queues.make(key)
            queue.write(np.concatenate(runs))
            queue.advance(queue.end)
        self._pending.clear()
        self._pending_units = 0

    # --- torn tail or rot -----------------------------------------------------------

    def _refuse_rot(self, at: int, damage: CorruptFrame) -> None:
        """Raise CorruptLog if there is evidence that the frame at `at` was once on disk."""
        start = self.log.segment_of(at)
        why = str(damage.facts["why"])
        if start != self.log.starts[-1]:
            raise CorruptLog(
                self.log.path(start),
                at,
                why,
                "a later segment exists, and one is synced before the next begins",
            )
        if at < self._vouched:
            evidence = f"the snapshot vouches for everything below {self._vouched}"
            raise CorruptLog(self.log.path(start), at, why, evidence)
        witness = witness_against(self.log, at)
        if witness is not None:
            raise CorruptLog(
                self.log.path(start),
                at,
                why,
                f"the frame at {witness.log_offset} says that all below {witness.durable_end} was on disk",
            )
