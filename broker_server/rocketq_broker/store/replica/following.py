"""A follower's log: frames of the master are appended as they are, and folded by the replay of recovery.

Everything here runs on the log writer's thread (`LogWriter.alone`), which is the only one that changes the
log, whoever is master. What is appended waits to be confirmed as a master's commit groups do.

*A cut* at or above the confirmed end takes only what no reader has seen. The queues and the timer index go
back to what is confirmed, and what is left behind that is folded again. A cut below it, and a log that begins
anew, are a recovery of the whole store; no reads are answered meanwhile. In both cases the snapshot that
would say more than the log has goes first, and the log is cut from its end. So whenever the power goes, the
log is a beginning of what it was, and the next start folds that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rocketq.errors import BrokerUnavailable, CorruptFrame, StoreFull
from rocketq.model import FlushMode
from rocketq.protocol.frame import Frame
from rocketq_broker.epoch_lineage import EpochLineage
from rocketq_broker.store.commit.confirmation import WrittenGroup
from rocketq_broker.store.commit.ends import LogTail, ReplicaRule
from rocketq_broker.store.commit.log_writer import LogWriter
from rocketq_broker.store.commit.store_parts import StoreParts
from rocketq_broker.store.disk.files import FULL_ERRORS
from rocketq_broker.store.errors import CorruptLog, LogFailed, ShipmentMisplaced, StoreError
from rocketq_broker.store.index.key_index import KeyIndex
from rocketq_broker.store.recovery.recovery import Recovery
from rocketq_broker.store.recovery.replay import Replay
from rocketq_broker.store.replica.raw_frames import RawFrames, extents_of
from rocketq_broker.store.state import snapshot as snapshots
from rocketq_broker.store.upkeep.housekeeping import Housekeeping


@dataclass(slots=True)
class Follower:
    """Changes the log of a store that follows. `replay` has folded the log up to its end."""

    parts: StoreParts
    writer: LogWriter
    index: KeyIndex
    housekeeping: Housekeeping
    rule: ReplicaRule
    replay: Replay
    on_log_moved: Callable[[], None]
    on_change: Callable[[], None]

    def __post_init__(self) -> None:
        self.replay.lock = self.parts.ends.lock

    def begin(self, tail: LogTail) -> None:
        """Go on behind what this store has written as master."""
        self.replay = self._replay_from(tail)

    def _replay_from(self, tail: LogTail) -> Replay:
        log, parts = self.parts.log, self.parts
        return Replay(
            parts.queues, parts.timers, log, tail.state, tail.stored_at_us, tail.lineage, parts.ends.lock,
            begins_log=log.end == log.begin,
        )  # fmt: skip

    # --- appending ----------------------------------------------------------------------

    def append(self, raw: RawFrames, frames: Sequence[Frame], tail: LogTail) -> None:
        """Append verified frames behind the end of the log; nothing is applied if it raises.

        Raises ShipmentMisplaced, CorruptLog, StoreFull, or LogFailed, after which the store has stopped.
        """
        log = self.parts.log
        before = log.end
        if raw.at != before:
            raise ShipmentMisplaced(raw.at, before, "it begins elsewhere")
        if not frames:
            return
        extents = extents_of(raw, log.starts[-1] if log.starts else None)
        try:
            for frame in frames:
                self.replay.fold(frame)
            shown = self.replay.take()
            log.append(extents)
        except (CorruptFrame, CorruptLog):
            self._fold_again(tail)
            raise
        except OSError as error:
            raise self._not_written(tail, before, error) from error
        except LogFailed as failure:
            self.writer.fail(failure)
            raise
        _move(tail, self.replay)
        group = WrittenGroup(shown, log.end, self.parts.clock.monotonic_ms())
        self.writer.confirmation.add(group)
        self._moved(log.end, self.replay.lineage)
        if self.parts.config.flush is FlushMode.SYNC:
            self.sync()
        self.writer.confirmation.confirm()

    def sync(self) -> None:
        """Put the log on disk up to its end; raise LogFailed, after which the store has stopped."""
        log, ends = self.parts.log, self.parts.ends
        try:
            log.sync()
        except LogFailed as failure:
            self.writer.fail(failure)
            raise
        with ends.lock:
            ends.durable = max(ends.durable, log.end)
        self.on_log_moved()

    def _moved(self, written: int, lineage: EpochLineage) -> None:
        ends = self.parts.ends
        with ends.lock:
            ends.written, ends.lineage = written, lineage
        self.on_log_moved()

    def _not_written(self, tail: LogTail, before: int, error: OSError) -> StoreError | StoreFull:
        """Cut off what was written in part; return the error to raise."""
        if error.errno not in FULL_ERRORS:
            return self._failed("be written", error)
        try:
            if self.parts.log.end != before:
                self.parts.log.truncate(before)
            self._fold_again(tail)
        except OSError as second:
            return self._failed("be cut back after a failed write", second)
        return StoreFull(self.parts.config.broker, 100)

    def _failed(self, action: str, error: OSError) -> LogFailed:
        failure = LogFailed(action, str(error))
        self.writer.fail(failure)
        return failure

    # --- cutting ------------------------------------------------------------------------

    def cut(self, end: int, tail: LogTail) -> None:
        """Cut the log at the end of an append, durably; raise ValueError if none ends there."""
        log, ends = self.parts.log, self.parts.ends
        if end == log.end:
            return
        self._check_border(end)
        if end == log.begin:
            self.begin_at(end, ends.lineage.begun_at(end).before, tail)
            return
        with ends.lock:
            is_confirmed = end < ends.confirmed
        if is_confirmed:
            self._recover(tail, end, lambda: log.truncate(end))
            return
        with ends.lock:
            ends.cuts += 1
        try:
            log.truncate(end)
            with ends.lock:
                ends.written = ends.durable = end
                ends.lineage = ends.lineage.truncated(end)
            self.rule.cut(end)
            self._fold_again(tail)
        except OSError as error:
            raise self._failed("be cut", error) from error
        self.on_log_moved()

    def _check_border(self, end: int) -> None:
        log = self.parts.log
        if not log.begin <= end < log.end:
            raise ValueError(f"log offset {end} is not within the log [{log.begin}, {log.end})")
        at, is_whole = log.segment_of(max(log.begin, end - 1)), True
        while at < end:
            header = log.header(at)
            at, is_whole = at + header.size, not header.unfinished
        if at != end or not is_whole:
            raise ValueError(f"no append ends at log offset {end}")

    def begin_at(self, begin: int, before: int, tail: LogTail) -> None:
        """Drop the log and begin an empty one at `begin`, behind a frame of epoch `before`; durably."""
        self._recover(tail, begin, lambda: self.parts.log.begin_anew(begin), EpochLineage(begin, before))

    def _fold_again(self, tail: LogTail) -> None:
        """Go back to what is confirmed, and fold what the log has behind it."""
        parts, confirmation = self.parts, self.writer.confirmation
        # From here on the confirmed end stands, until the group is back.
        confirmation.forget()
        ends, log = parts.ends, parts.log
        with ends.lock:
            confirmed = ends.confirmed
            before = LogTail(ends.state, ends.stored_at_us, tail.epoch, ends.lineage.truncated(confirmed))
            for queue in parts.queues.all():
                queue.written_block = queue.open_block
            parts.timers.rewind()
        self.replay = self._replay_from(before)
        self.replay.begins_log = confirmed == log.begin
        for frame in log.frames(confirmed):
            self.replay.fold(frame)
        shown = self.replay.take()
        if log.end > confirmed:
            confirmation.add(WrittenGroup(shown, log.end, parts.clock.monotonic_ms()))
        _move(tail, self.replay)

    def _recover(
        self, tail: LogTail, end: int, change: Callable[[], None], lineage: EpochLineage | None = None
    ) -> None:
        """Cut the log below what is confirmed, and recover the whole store from what is left."""
        parts, ends, log = self.parts, self.parts.ends, self.parts.log
        self.writer.confirmation.forget()
        with self.housekeeping.paused():
            with ends.lock:
                ends.cuts += 1
                ends.unreadable = BrokerUnavailable(parts.config.broker, "its log is being cut back")
            try:
                snapshots.remove_beyond(parts.files, end)
                change()
                self.index.reload()
                recovery = Recovery(parts.files, log, parts.queues, parts.timers)
                recovery.run(clean=True)
                self.replay = replace(recovery.replay, lock=ends.lock)
                self.replay.lineage = lineage or self.replay.lineage
                with ends.lock:
                    ends.state, ends.stored_at_us = self.replay.state, self.replay.stored_at_us
                    ends.epoch, ends.lineage = self.replay.lineage.newest, self.replay.lineage
                    ends.written = ends.durable = ends.confirmed = log.end
                self.rule.cut(log.end)
                _move(tail, self.replay)
            except OSError as error:
                raise self._failed("be cut", error) from error
            except StoreError as error:
                self.writer.fail(error)
                raise
            finally:
                ends.unreadable = None
        self.on_log_moved()
        self.on_change()


def _move(tail: LogTail, replay: Replay) -> None:
    tail.state, tail.stored_at_us, tail.lineage = replay.state, replay.stored_at_us, replay.lineage
