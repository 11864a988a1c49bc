"""The background tasks of the store: flush, snapshots, the key index, retention.

Each task is a method, which a test can call; threads call it at intervals. If a task fails with an OSError,
the log is stopped (`LogWriter.fail`), because the next write to that disk may fail as well. A full disk alone
is no failure: snapshots and index files wait until there is space.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from posixpath import dirname
from typing import Final

from rocketq.errors import CorruptFrame, StoreFull
from rocketq.model import FlushMode, TimeBoundary
from rocketq_broker.store.commit.log_writer import LogWriter
from rocketq_broker.store.commit.store_parts import StoreParts
from rocketq_broker.store.disk.files import FULL_ERRORS
from rocketq_broker.store.errors import CorruptQueue, LogFailed, SegmentGone, StoreError
from rocketq_broker.store.index.key_index import KeyIndex
from rocketq_broker.store.log import frame_lookup as reader
from rocketq_broker.store.machines.topic_table import TopicEntry
from rocketq_broker.store.recovery.queue_repair import QueueRepair
from rocketq_broker.store.state import snapshot as snapshots
from rocketq_broker.store.state.state import Picture
from rocketq_broker.store.upkeep import retention
from rocketq_broker.store.upkeep.clock_watch import ClockWatch
from rocketq_broker.store.upkeep.retention import RetentionDecision, SegmentFacts


@contextmanager
def _full_disk_is_no_fault() -> Iterator[None]:
    """Ignore that the disk is full: the task is repeated at its next interval."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL_ERRORS:
            raise


#: With more log than this to index, the indexer does not wait for its interval.
_INDEX_LOG_BYTES: Final = 8 << 20


class TasksDue:
    """Tasks that a commit makes due before their interval: indexing much log, and a snapshot."""

    def __init__(self, index: KeyIndex, snapshot_log_bytes: int) -> None:
        self._index = index
        self._snapshot_log_bytes = snapshot_log_bytes
        #: The confirmed end at the last snapshot, a log offset.
        self.snapshot_position = 0
        self.snapshot_due = threading.Event()
        self.index_due = threading.Event()

    def committed(self, position: int) -> None:
        """Ask for the tasks that are due now that the log is confirmed up to `position`.

        A small commit wakes no thread: it would only compete with the log writer for the processor.
        """
        if position - self._index.position >= _INDEX_LOG_BYTES:
            self.index_due.set()
        if position - self.snapshot_position >= self._snapshot_log_bytes:
            self.snapshot_due.set()


class Housekeeping:
    """The tasks and their threads."""

    def __init__(
        self,
        parts: StoreParts,
        writer: LogWriter,
        index: KeyIndex,
        repair: QueueRepair,
        watch: ClockWatch,
        due: TasksDue,
        on_log_moved: Callable[[], None] | None = None,
    ) -> None:
        """`on_log_moved` is called when more is durable; a store that is no replica has none."""
        self._config = parts.config
        self._files = parts.files
        self._handles = parts.handles
        self._log = parts.log
        self._queues = parts.queues
        self._timers = parts.timers
        self._ends = parts.ends
        self._clock = parts.clock
        self._writer = writer
        self._index = index
        self._repair = repair
        self._watch = watch
        self._due = due
        self._is_replica = on_log_moved is not None
        self._on_log_moved = on_log_moved or (lambda: None)
        #: Held while a snapshot is taken, segments are removed, or the log is cut (`paused`).
        self._files_lock = threading.RLock()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._dues: list[threading.Event] = []
        #: The tasks that found damaged data when they last ran, and what they found.
        self.troubles: dict[str, StoreError | CorruptFrame] = {}

    def start(self) -> None:
        if self._config.flush is FlushMode.ASYNC:
            self._keep("rocketq-flush", self._config.flush_interval_ms, threading.Event(), self.flush)
        if self._config.flush is FlushMode.SYNC or self._is_replica:
            half_ms = max(1, min(self._config.flush_timeout_ms, self._config.slave_timeout_ms) // 2)
            confirmation = self._writer.confirmation
            self._keep("rocketq-flush-watch", half_ms, threading.Event(), confirmation.answer_late)
        self._keep(
            "rocketq-snapshot", self._config.snapshot_interval_ms, self._due.snapshot_due, self.take_snapshot
        )
        self._keep("rocketq-retention", self._config.retention_interval_ms, threading.Event(), self.retain)
        self._keep("rocketq-index", self._config.index_interval_ms, self._due.index_due, self.index)

    def stop(self) -> None:
        self._stopping.set()
        for due in self._dues:
            due.set()
        for thread in self._threads:
            thread.join()

    @property
    def snapshot_position(self) -> int:
        """The confirmed end at the last snapshot, a log offset."""
        return self._due.snapshot_position

    def _keep(self, name: str, interval_ms: int, due: threading.Event, work: Callable[[], object]) -> None:
        """Do `work` on a thread of its own at each interval, and at once when `due` is set."""

        def run() -> None:
            while True:
                due.wait(interval_ms / 1000)
                # Clear first: a set that comes after the look at `_stopping` then ends the next wait.
                due.clear()
                if self._stopping.is_set():
                    return
                try:
                    work()
                    self.troubles.pop(name, None)
                except SegmentGone:
                    # Retention overtook the task; next time it starts from the new begin.
                    continue
                except (CorruptFrame, CorruptQueue) as damage:
                    # The broker still serves sound data; a caller that asks for damaged data gets an error.
                    self.troubles[name] = damage
                except LogFailed as failure:
                    self._writer.fail(failure)
                    return
                except OSError as error:
                    self._writer.fail(LogFailed(f"be kept ({name})", str(error)))
                    return

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        self._dues.append(due)
        thread.start()

    # --- write back -------------------------------------------------------------------

    def flush(self) -> None:
        """Put the log on disk up to what is written now (RocketMQ: FlushRealTimeService)."""
        with self._ends.lock:
            position, cuts = self._ends.written, self._ends.cuts
        if position <= self._ends.durable:
            return
        self._log.sync()
        with self._ends.lock:
            if cuts == self._ends.cuts:
                self._ends.durable = max(self._ends.durable, position)
        self._on_log_moved()
        self._writer.confirmation.confirm()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keep snapshots, retention and the index away while the log is cut and folded again."""
        with self._files_lock, self._index.building:
            yield
            self._due.snapshot_position = 0

    # --- snapshots --------------------------------------------------------------------

    def take_snapshot(self, even_if_current: bool = False) -> None:
        """Write a snapshot if the log has grown since the last one."""
        with self._files_lock:
            ends = self._ends
            with ends.lock:
                position = ends.confirmed
                if position == self.snapshot_position and not even_if_current:
                    return
                ranges = self._queues.ranges(ends.state.topics)
                lineage = ends.lineage.begun_at(self._log.begin).truncated(position)
                picture = Picture.of(ends.state, ranges, ends.stored_at_us, ends.epoch, lineage)
                checksums = self._queues.open_block_checksums()
                timers = self._timers
                marks, over = dict(timers.confirmed), set(timers.over)
                dirty, dirty_timers = sorted(self._queues.dirty), sorted(timers.windows.dirty)
                self._queues.dirty.clear()
                timers.windows.dirty.clear()
            try:
                self.flush()
                self._sync_queue_files(dirty + dirty_timers)
            except BaseException:
                with ends.lock:
                    self._queues.dirty.update(dirty)
                    timers.windows.dirty.update(dirty_timers)
                raise
            # On a full disk the snapshot before stays; recovery then replays more of the log.
            with _full_disk_is_no_fault():
                snapshots.write(self._files, snapshots.Snapshot(position, picture, checksums, marks))
                self._due.snapshot_position = position
                self._forget_timers(over)

    def _forget_timers(self, over: set[int]) -> None:
        """Remove the timer index's files of windows that are delivered; the snapshot needs them no longer."""
        for window in over:
            self._timers.windows.remove(window)
        with self._ends.lock:
            self._timers.over -= over

    def _sync_queue_files(self, paths: list[str]) -> None:
        directories = set()
        for path in paths:
            try:
                self._handles.get(path).sync()
            except FileNotFoundError:
                # The topic was deleted, or retention removed the file: there is nothing to sync.
                continue
            except OSError as error:
                raise LogFailed(f"have {path} synced", str(error)) from error
            directories.add(dirname(path))
        parents = {dirname(each) for each in directories}
        for directory in sorted(directories | parents | {dirname(each) for each in parents}):
            with suppress(FileNotFoundError):
                self._files.sync_directory(directory)

    # --- the key index ------------------------------------------------------------------

    def index(self) -> None:
        """Index what is on disk and not indexed yet."""
        with _full_disk_is_no_fault():
            while self._index.catch_up() and not self._stopping.is_set():
                continue

    def put_index_in_file(self) -> None:
        """Index some more and write it to a file; the next start indexes the rest."""
        with _full_disk_is_no_fault():
            self._index.catch_up()
            self._index.write_file()

    # --- retention --------------------------------------------------------------------

    def retain(self) -> RetentionDecision:
        """Remove what the policy says, and refuse or admit writes by the disk's watermark."""
        now_us = self._watch.check()
        disk = self._files.usage()
        floor = self._ends.state.floor
        with self._files_lock:
            decision = retention.decide(self._config.retention, self._segments(), now_us, disk, floor)
            if decision.remove:
                self._remove_segments(decision.remove)
        refusal = StoreFull(self._config.broker, disk.used_percent) if decision.refuse_writes else None
        self._writer.refuse_appends("retention", refusal)
        # There may be space again for held frames that could not be copied on a full disk.
        self._writer.resume_copying()
        for entry in self._ends.state.topics.values():
            if entry.config.retention_ms is not None or entry.config.retention_bytes is not None:
                self._retain_topic(entry, now_us)
        return decision

    def _segments(self) -> list[SegmentFacts]:
        starts = self._log.starts
        facts: list[SegmentFacts] = []
        for start, following in pairwise(starts):
            if following >= self._ends.confirmed:
                # The writer has opened the segment `following` and may not have written to it yet.
                return facts
            # Store times never fall: the next segment's first frame is at least as new as all of this one.
            facts.append(SegmentFacts(start, following - start, self._log.header(following).stored_at_us))
        if starts:
            facts.append(SegmentFacts(starts[-1], self._log.end - starts[-1], self._clock.now_us()))
        return facts

    def _remove_segments(self, count: int) -> None:
        """Move the queues' first offsets up, make that durable, and only then remove files."""
        begin = self._log.starts[count]
        for queue in self._queues.all():
            # The queue may be deleted at this moment.
            with suppress(FileNotFoundError):
                queue.raise_min(self._repair.read(partial(queue.first_at, begin)))
        self.take_snapshot(even_if_current=True)
        self._log.remove_oldest(count)
        self._index.forget_below(begin)

    def _retain_topic(self, entry: TopicEntry, now_us: int | None) -> None:
        config = entry.config
        for queue_id in range(entry.queues):
            queue = self._queues.get((entry.number, queue_id))
            if queue is None:
                continue
            low = queue.min
            try:
                if config.retention_ms is not None and now_us is not None:
                    oldest_us = now_us - config.retention_ms * 1000
                    look = partial(
                        reader.offset_at, self._log, queue, low, queue.end, oldest_us, TimeBoundary.LOWER
                    )
                    low = self._repair.read(look)
                if config.retention_bytes is not None:
                    low = max(low, self._repair.read(partial(queue.first_within, config.retention_bytes)))
            except (SegmentGone, FileNotFoundError):
                # The queue's first offset has just moved up, or its topic went; the next round sees it.
                continue
            queue.raise_min(low)
