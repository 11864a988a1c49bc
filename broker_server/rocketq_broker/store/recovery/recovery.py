"""Recovery: opens a store, whatever state a stop or a crash has left its files in.

1. The log must have no holes between its segments.
2. If the snapshot is sound and lies within the log, and its ConsumeQueue files are there, the replay begins
   at the snapshot. Otherwise it begins at the state frame of the first segment, and the ConsumeQueues are
   written again.
3. The queues are cut to what the snapshot or state frame contains. Then the log behind it is replayed: units
   are written, changes and staged frames are folded.
4. The replay ends at the first damaged frame. Three things show that this frame was on disk before: it is not
   in the last segment, it lies before the snapshot, or a later frame says that it was durable. Then good data
   has rotted: recovery raises CorruptLog and changes nothing. Otherwise the frame is the torn end of a write
   that was never acknowledged as flushed, and the log is cut there.
5. An append may have several frames; all but the last are marked unfinished. If the sound frames end with one
   that is marked so, the crash came within that append, and all its frames are cut off. The append was not
   acknowledged, because the answer follows the whole commit.
6. A replica shows readers only what it knows to be confirmed. What lies behind is folded, and waits
   (`Recovery.waiting`).
7. After an unclean stop, what no snapshot covers is written again, and the log is synced before anything of
   it is served.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from rocketq.errors import CorruptFrame
from rocketq.protocol.frame import Frame
from rocketq_broker.store.commit.confirmation import Shown
from rocketq_broker.store.disk.files import Files
from rocketq_broker.store.errors import CorruptLog, CorruptSnapshot
from rocketq_broker.store.log.commit_log import CommitLog
from rocketq_broker.store.log.consume_queues import Queues
from rocketq_broker.store.log.sound_frames import evidence_against_tear
from rocketq_broker.store.recovery.queue_repair import QueueRepair
from rocketq_broker.store.recovery.replay import Replay
from rocketq_broker.store.state import snapshot as snapshots
from rocketq_broker.store.state.snapshot import Snapshot
from rocketq_broker.store.timers.timer_index import TimerIndex


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
    #: Why what was cut off as torn may have been on disk; empty if nothing says so. Only at a follower.
    doubt: str = ""


@dataclass(slots=True)
class Recovery:
    """One recovery; `run` does all steps."""

    files: Files
    log: CommitLog
    queues: Queues
    timers: TimerIndex
    #: Readers are shown the log up to here, or up to the snapshot; None: all of it.
    shown_to: int | None = None
    #: What a frame behind this log offset says of others proves nothing (`disk.standing`); None: all prove.
    followed_from: int | None = None
    #: Called with the reason before an end is cut off that may have been on disk.
    on_doubt: Callable[[str], None] = lambda doubt: None
    replay: Replay = field(init=False)
    notes: list[str] = field(default_factory=list)
    #: What is shown, and where that ends in the log.
    shown: Shown = field(init=False)
    shown_end: int = 0
    #: What is folded behind it and not shown.
    waiting: Shown | None = None
    _doubt: str = ""
    #: Sound frames at the end of the log whose append has no end there.
    _unfinished: int = 0
    #: A snapshot says that the log was on disk up to this log offset, also if the queues are damaged.
    _vouched: int = 0

    def __post_init__(self) -> None:
        self.replay = Replay(self.queues, self.timers, self.log)

    def run(self, clean: bool) -> RecoveryReport:
        """Recover; raise CorruptLog or MissingSegment and change nothing if data is damaged."""
        self.log.check_no_hole()
        snapshot = self._sound_snapshot()
        if snapshot is None:
            snapshots.mark_queues_untrusted(self.files)
        begin = self._start_from(snapshot)
        end = self._replay(begin)
        torn = self.log.end - end
        if torn:
            note = f"cut a torn tail of {torn} bytes at log offset {end}"
            if self._unfinished:
                note += f"; it held {self._unfinished} sound frame(s) of an append that was not finished"
            self.notes.append(note)
            self.log.truncate(end)
        self._finish(end)
        repair = QueueRepair(self.log, self.queues, lambda: self.replay.state, threading.Lock())
        for queue in self.queues.all():
            # Retention may have removed segments after the snapshot that knew of them.
            queue.raise_min(repair.read(partial(queue.first_at, self.log.begin)))
        if not clean:
            self.log.write_again(begin)
        self.log.sync()
        replay = self.replay
        return RecoveryReport(
            clean,
            self.log.begin,
            self.log.end,
            begin,
            replay.frames,
            replay.messages,
            torn,
            tuple(self.notes),
            self._doubt,
        )

    # --- what readers see -----------------------------------------------------------

    def _show(self, end: int, is_last: bool = False) -> None:
        self.shown = self.replay.take(is_last)
        self.shown.show(self.queues, self.timers)
        self.shown.drop(self.queues)
        self.shown_end = end

    @property
    def _limit(self) -> int:
        return self.log.end if self.shown_to is None else self.shown_to

    def _finish(self, end: int) -> None:
        """Show what is folded and not shown yet, or have it wait."""
        if end <= self._limit:
            self._show(end, is_last=True)
        elif end > self.shown_end:
            self.waiting = self.replay.take(is_last=True)

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
        if snapshot.position == self.log.begin:
            # An empty log, or one that begins there: its first frame has everything.
            return None
        if (
            snapshot.position < self.log.begin
            or snapshot.open_blocks is None
            or (snapshot.picture.lineage is None and snapshot.picture.epoch)
            or not snapshots.are_queues_trusted(self.files)
            or not self.queues.hold_files_for(snapshot.picture.ranges)
        ):
            self.notes.append(
                "ConsumeQueue files or their checksums were missing or short; they were rebuilt from the log."
            )
            return None
        return snapshot

    def _start_from(self, snapshot: Snapshot | None) -> int:
        self.replay.start_from(snapshot)
        return self.log.begin if snapshot is None else snapshot.position

    # --- replay ---------------------------------------------------------------------

    def _replay(self, begin: int) -> int:
        """Fold all sound frames from `begin` on, each append whole; return where they end."""
        at = end = begin
        append: list[Frame] = []
        self._show(begin)
        try:
            for frame in self.log.frames(begin):
                append.append(frame)
                at += frame.header.size
                if not frame.header.unfinished:
                    # The files of a deleted topic go at once, so that the disk does not fill with them.
                    if self.shown_end < end <= self._limit and (at > self._limit or self.replay.has_deleted):
                        self._show(end)
                    for each in append:
                        self.replay.fold(each)
                    append.clear()
                    end = at
        except CorruptFrame as damage:
            self._refuse_rot(at, damage)
        self._unfinished = len(append)
        return end

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
        witness = evidence_against_tear(self.log, at)
        if witness is not None:
            evidence = (
                f"the frame at {witness.log_offset} says that all below {witness.durable_end} was on disk"
            )
            if self.followed_from is None or at < self.followed_from:
                raise CorruptLog(self.log.path(start), at, why, evidence)
            self._doubt = f"{why}; {evidence}, on the disk of the master that wrote it"
            self.on_doubt(self._doubt)
            self.notes.append(f"What was cut off at log offset {at} may have been on disk: {self._doubt}.")
