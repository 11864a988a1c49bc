"""Opens the files of a store and recovers them: what `MessageStore.open` does before it starts threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rocketq.clock import Clock
from rocketq_broker.store.commit.ends import LogEnds, LogTail
from rocketq_broker.store.commit.store_parts import StoreParts
from rocketq_broker.store.config import StoreConfig
from rocketq_broker.store.disk.files import Files
from rocketq_broker.store.disk.open_files import Handles
from rocketq_broker.store.disk.replica_standing import StandingFile
from rocketq_broker.store.log.commit_log import CommitLog
from rocketq_broker.store.log.consume_queues import Queues
from rocketq_broker.store.recovery.recovery import Recovery, RecoveryReport
from rocketq_broker.store.timers.timer_index import TimerIndex
from rocketq_broker.store.timers.window_files import WindowFiles

#: A file that is there while a store is open; found at a start, it says that the last one did not stop.
ABORT: Final = "abort"


@dataclass(frozen=True, slots=True)
class StoreStart:
    """A store that is recovered and not running yet."""

    parts: StoreParts
    tail: LogTail
    recovery: Recovery
    report: RecoveryReport
    standing: StandingFile


def recovered(
    config: StoreConfig, files: Files, handles: Handles, clock: Clock, *, is_replica: bool
) -> StoreStart:
    """Recover a store; the caller holds the directory's lock. Raises StoreError, OSError."""
    queues = Queues(files, handles, config.queue_file_units)
    log = CommitLog(files, handles)
    timers = TimerIndex(WindowFiles(files, handles), log)
    standing = StandingFile(files)
    kept = standing.kept
    recovery = Recovery(
        files, log, queues, timers, kept.confirmed if is_replica else None, kept.followed_from,
        lambda doubt: standing.keep(doubt=doubt),
    )  # fmt: skip
    report = recovery.run(clean=not files.exists(ABORT))
    # All that is there is on disk now; what a follower appends behind it is not at once.
    standing.keep(followed_from=log.end if is_replica else None)
    replay, shown = recovery.replay, recovery.shown
    epoch = max(replay.lineage.newest, config.epoch)
    ends = LogEnds(
        shown.state, shown.stored_at_us, epoch, log.end, log.end, recovery.shown_end, replay.lineage
    )
    parts = StoreParts(config, files, handles, clock, log, queues, timers, ends)
    tail = LogTail(replay.state, replay.stored_at_us, epoch, replay.lineage)
    return StoreStart(parts, tail, recovery, report, standing)
