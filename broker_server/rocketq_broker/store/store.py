"""The message store: the facade over the log, its queues and its state.

Writes are handed to the log writer and answered on its thread; reads come from
memory and the page cache and may be called from anywhere. Two more threads keep
house: one writes the log back under async flush, one takes snapshots. Each only
calls a method that a test can call itself (`flush`, `take_snapshot`).
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from posixpath import dirname
from typing import Any, Final

from rocketq.clock import Clock, SystemClock
from rocketq.errors import (
    Conflict,
    InvalidName,
    InvalidRequest,
    NoPermission,
    OffsetOutOfRange,
    QueueNotFound,
    RocketqError,
    TopicNotFound,
)
from rocketq.protocol.calls import (
    AlterTopicRequest,
    CommitOffsetsRequest,
    CreateTopicRequest,
    GroupOffset,
    GroupOffsets,
    TimeOffsets,
    TopicOffsets,
)
from rocketq.protocol.model import (
    QUEUE_COUNT_MAX,
    FlushMode,
    Perm,
    PullStatus,
    QueueOffsets,
    TimeBoundary,
    TopicConfig,
    is_legal_name,
)
from rocketq.protocol.route import DataVersion
from rocketq_broker.store import reader
from rocketq_broker.store import snapshot as snapshots
from rocketq_broker.store.commit_log import CommitLog
from rocketq_broker.store.config import StoreConfig
from rocketq_broker.store.errors import LogFailed, StoreError
from rocketq_broker.store.files import Files, OSFiles
from rocketq_broker.store.group import AppendBatches, AppendOutcome, ChangeState, QueueBatch
from rocketq_broker.store.handles import Handles
from rocketq_broker.store.queues import Queues
from rocketq_broker.store.recovery import Recovery, RecoveryReport
from rocketq_broker.store.state import (
    OffsetsCommitted,
    Picture,
    State,
    TopicAltered,
    TopicCreated,
    TopicDeleted,
    TopicEntry,
)
from rocketq_broker.store.writer import LogWriter, Published

__all__ = ["AppendOutcome", "MessageStore", "PullResult", "QueueBatch", "StoreStatistics"]

ABORT: Final = "abort"

Done = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class PullResult:
    """Whole frames that hold the asked messages, and where the queue stands."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    incarnation: str
    chunks: list[bytes]


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Where the log stands (log offsets), what waits (bytes) and what is held."""

    log_begin: int
    log_end: int
    durable_end: int
    snapshot_position: int
    queued_bytes: int
    groups: int
    topics: int
    queues: int
    open_files: int


class MessageStore:
    """One broker's store in one directory; `start` before use, `close` in the end."""

    def __init__(
        self,
        config: StoreConfig,
        *,
        files: Files | None = None,
        clock: Clock | None = None,
        on_arrival: Callable[[Collection[tuple[str, int]]], None] | None = None,
        on_change: Callable[[], None] | None = None,
        on_fault: Callable[[StoreError], None] | None = None,
    ) -> None:
        self._config = config
        self._files = files or OSFiles(config.directory)
        self._clock = clock or SystemClock()
        self._on_arrival = on_arrival or (lambda arrived: None)
        self._on_change = on_change or (lambda: None)
        self._on_fault = on_fault or (lambda error: None)
        self._handles = Handles(self._files, config.open_files_max)
        self._queues = Queues(self._files, self._handles, config.queue_file_units)
        self._snapshot_position = 0
        self._snapshot_lock = threading.Lock()
        self._stopping = threading.Event()
        self._snapshot_due = threading.Event()
        self._keepers: list[threading.Thread] = []

    @property
    def broker(self) -> str:
        return self._config.broker

    # --- life ---------------------------------------------------------------------------

    def start(self) -> RecoveryReport:
        """Lock the directory, recover and take writes; raise StoreError if the data is not sound."""
        self._files.lock()
        try:
            clean = not self._files.exists(ABORT)
            self._log = CommitLog(self._files, self._handles)
            recovery = Recovery(self._files, self._log, self._queues)
            report = recovery.run(clean)
            self._files.open(ABORT, create=True)
            self._files.sync_directory("")
        except BaseException:
            self._handles.close()
            self._files.unlock()
            raise
        self._published = Published(recovery.state, recovery.stored_at_us, self._log.end, self._log.end)
        self._writer = LogWriter(
            self._config, self._log, self._queues, self._published, self._clock,
            self._on_arrival, self._on_change, self._on_fault, self._committed,
        )  # fmt: skip
        self._writer.start()
        if self._config.flush is FlushMode.ASYNC:
            self._keep("rocketq-flush", self._config.flush_interval_ms, self._stopping, self.flush)
        self._keep(
            "rocketq-snapshot", self._config.snapshot_interval_ms, self._snapshot_due, self.take_snapshot
        )
        return report

    def _keep(self, name: str, interval_ms: int, due: threading.Event, work: Callable[[], None]) -> None:
        """Do `work` on a thread of its own at each interval, and at once when `due` is set."""

        def run() -> None:
            while True:
                due.wait(interval_ms / 1000)
                if self._stopping.is_set():
                    return
                due.clear()
                try:
                    work()
                except OSError as error:
                    self._writer.fail(LogFailed(f"be kept ({name})", str(error)))
                    return

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._keepers.append(thread)
        thread.start()

    def _committed(self, position: int) -> None:
        """Ask for a snapshot when recovery would have too much log to replay."""
        if position - self._snapshot_position >= self._config.snapshot_log_bytes:
            self._snapshot_due.set()

    def close(self) -> None:
        """Commit what was taken, put everything on disk and leave in good order."""
        self._stopping.set()
        self._snapshot_due.set()
        self._writer.stop()
        for thread in self._keepers:
            thread.join()
        if not self._writer.failed:
            self.flush()
            self.take_snapshot()
            self._files.remove(ABORT)
            self._files.sync_directory("")
        self._handles.close()
        self._files.unlock()

    def flush(self) -> None:
        """Put the log on disk up to what is written now."""
        with self._published.lock:
            position = self._published.position
        if position <= self._published.durable_end:
            return
        self._log.sync()
        with self._published.lock:
            self._published.durable_end = max(self._published.durable_end, position)

    def take_snapshot(self) -> None:
        """Write a snapshot if the log has grown since the last one."""
        with self._snapshot_lock:
            published = self._published
            with published.lock:
                position = published.position
                if position == self._snapshot_position:
                    return
                ranges = self._queues.ranges(published.state)
                picture = Picture.of(published.state, ranges, published.stored_at_us)
                dirty = sorted(self._queues.dirty)
                self._queues.dirty.clear()
            self.flush()
            self._sync_queue_files(dirty)
            snapshots.write(self._files, snapshots.Snapshot(position, picture))
            self._snapshot_position = position

    def _sync_queue_files(self, paths: list[str]) -> None:
        directories = set()
        for path in paths:
            try:
                self._handles.get(path).sync()
            except FileNotFoundError:
                # Its topic was deleted meanwhile; nothing is left to vouch for.
                continue
            directories.add(dirname(path))
        parents = {dirname(each) for each in directories}
        for directory in sorted(directories | parents | {dirname(each) for each in parents}):
            if self._files.exists(directory):
                self._files.sync_directory(directory)

    # --- reads ------------------------------------------------------------------------

    @property
    def _state(self) -> State:
        return self._published.state

    @property
    def data_version(self) -> DataVersion:
        return self._state.data_version

    def topics(self) -> tuple[TopicConfig, ...]:
        return tuple(entry.config for entry in self._state.topics.values())

    def topic(self, name: str) -> TopicConfig:
        """Return a topic's configuration; raise TopicNotFound."""
        return self._entry(name).config

    def _entry(self, name: str) -> TopicEntry:
        entry = self._state.topics.get(name)
        if entry is None:
            raise TopicNotFound(name, self.broker)
        return entry

    def offsets(self, topic: str) -> TopicOffsets:
        """Return [min, max) of every queue of a topic; raise TopicNotFound."""
        entry = self._entry(topic)
        ranges = [self._queues.range((entry.number, queue)) for queue in range(entry.config.queues)]
        return TopicOffsets(
            topic,
            self.broker,
            entry.config.incarnation,
            sum(each.end for each in ranges),
            tuple(QueueOffsets(each.min, each.end) for each in ranges),
        )

    def offsets_at(self, topic: str, at_us: int, boundary: TimeBoundary) -> TimeOffsets:
        """Return the offset that a time names in every queue of a topic; reads the disk."""
        entry = self._entry(topic)
        offsets = []
        for queue_id in range(entry.config.queues):
            queue = self._queues.get((entry.number, queue_id))
            offsets.append(
                0
                if queue is None
                else reader.offset_at(self._log, queue, queue.min, queue.end, at_us, boundary)
            )
        return TimeOffsets(topic, self.broker, entry.config.incarnation, at_us, tuple(offsets))

    def group_offsets(self, group: str, topic: str | None = None) -> GroupOffsets:
        """Return a group's progress on this broker; queues without a commit are absent."""
        table = self._state.groups.get(group, {})
        return GroupOffsets(
            self.broker,
            group,
            tuple(
                GroupOffset(name, queue, offset)
                for (name, queue), offset in sorted(table.items())
                if topic is None or name == topic
            ),
        )

    def groups(self) -> tuple[str, ...]:
        """Return the names of all groups that ever committed here."""
        return tuple(sorted(self._state.groups))

    def pull(
        self, topic: str, queue: int, offset: int, *, max_bytes: int, max_messages: int | None = None
    ) -> PullResult:
        """Return the frames that hold messages from `offset` on, at least one frame if there is any.

        Raises TopicNotFound, QueueNotFound, NoPermission, or OffsetOutOfRange outside [min, max]
        (RocketMQ: PullMessageProcessor).
        """
        entry = self._entry(topic)
        config = entry.config
        if not config.perm & Perm.READ:
            raise NoPermission("Reading", f"topic {topic}")
        if not 0 <= queue < config.read_queues:
            raise QueueNotFound(topic, queue, config.read_queues)
        found = self._queues.get((entry.number, queue))
        low, end = (0, 0) if found is None else (found.min, found.end)
        if not low <= offset <= end:
            raise OffsetOutOfRange(topic, self.broker, queue, offset, low, end)
        if found is None or offset == end:
            return PullResult(PullStatus.NO_NEW_MSG, offset, low, end, config.incarnation, [])
        frames, next_offset = reader.locate(self._log, found, offset, end, max_bytes, max_messages)
        chunks = reader.read(self._log, frames)
        return PullResult(PullStatus.FOUND, next_offset, low, end, config.incarnation, chunks)

    def statistics(self) -> StoreStatistics:
        return StoreStatistics(
            self._log.begin, self._log.end, self._published.durable_end, self._snapshot_position,
            self._writer.queued_bytes, self._writer.groups, len(self._state.topics), len(self._queues),
            len(self._handles),
        )  # fmt: skip

    # --- writes -------------------------------------------------------------------------

    def append(
        self, topic: str, batches: Sequence[QueueBatch], done: Callable[[AppendOutcome | RocketqError], None]
    ) -> None:
        """Append batches to queues of one topic, all or none; `done` has the outcome or the error."""
        size = sum(len(each.encapsulated) for each in batches)
        self._submit(AppendBatches(topic, batches, size, done))

    def create_topic(self, name: str, request: CreateTopicRequest, done: Done) -> None:
        """Create a topic; `done` has its TopicConfig, or Conflict, InvalidName, InvalidRequest."""

        def decide(state: State) -> TopicCreated | None:
            if name in state.topics:
                if request.if_absent:
                    return None
                raise Conflict(f"topic {name!r}", "it exists already", "Alter it, or pass if_absent.")
            config = TopicConfig(
                name, request.read_queues, request.write_queues, request.perm, uuid.uuid4().hex,
                request.message_bytes_max, request.retention_ms, request.retention_bytes,
            )  # fmt: skip
            _check_topic(config)
            return TopicCreated(config, state.next_number, self._clock.now_us() // 1000)

        self._submit(ChangeState(decide, lambda state: state.topics[name].config, done))

    def alter_topic(self, name: str, request: AlterTopicRequest, done: Done) -> None:
        """Change what the request gives; `done` has the new TopicConfig or the error."""

        def decide(state: State) -> TopicAltered | None:
            if name not in state.topics:
                raise TopicNotFound(name, self.broker)
            old = state.topics[name].config
            given = {
                field: value
                for field in AlterTopicRequest.__dataclass_fields__
                if (value := getattr(request, field)) is not None
            }
            config = replace(old, **given)
            _check_topic(config)
            return None if config == old else TopicAltered(config, self._clock.now_us() // 1000)

        self._submit(ChangeState(decide, lambda state: state.topics[name].config, done))

    def delete_topic(self, name: str, done: Done) -> None:
        """Delete a topic with its messages and groups' offsets; `done` has None or the error."""

        def decide(state: State) -> TopicDeleted:
            if name not in state.topics:
                raise TopicNotFound(name, self.broker)
            return TopicDeleted(name, self._clock.now_us() // 1000)

        self._submit(ChangeState(decide, lambda state: None, done))

    def commit_offsets(self, group: str, request: CommitOffsetsRequest, done: Done) -> None:
        """Store a group's progress; it only advances unless `reset`. `done` has GroupOffsets or the error."""

        def decide(state: State) -> OffsetsCommitted | None:
            if not is_legal_name(group):
                raise InvalidName("group", group)
            table = state.groups.get(group, {})
            for each in request.offsets:
                self._check_commit(state, each)
            moved = tuple(
                each
                for each in request.offsets
                if request.reset or each.offset > table.get((each.topic, each.queue), -1)
            )
            return OffsetsCommitted(group, moved) if moved else None

        def answer(state: State) -> GroupOffsets:
            table = state.groups.get(group, {})
            places = {(each.topic, each.queue) for each in request.offsets}
            return GroupOffsets(
                self.broker,
                group,
                tuple(GroupOffset(*place, table[place]) for place in sorted(places) if place in table),
            )

        self._submit(ChangeState(decide, answer, done))

    def _check_commit(self, state: State, each: GroupOffset) -> None:
        entry = state.topics.get(each.topic)
        if entry is None:
            raise TopicNotFound(each.topic, self.broker)
        if not 0 <= each.queue < entry.queues:
            raise QueueNotFound(each.topic, each.queue, entry.queues)
        held = self._queues.range((entry.number, each.queue))
        if not 0 <= each.offset <= held.end:
            raise OffsetOutOfRange(each.topic, self.broker, each.queue, each.offset, held.min, held.end)

    def _submit(self, operation: AppendBatches | ChangeState) -> None:
        try:
            self._writer.submit(operation)
        except RocketqError as error:
            operation.done(error)


def _check_topic(config: TopicConfig) -> None:
    """Raise InvalidName or InvalidRequest if a topic may not be so."""
    if not is_legal_name(config.name):
        raise InvalidName("topic", config.name)
    for name in ("read_queues", "write_queues"):
        if not 1 <= getattr(config, name) <= QUEUE_COUNT_MAX:
            raise InvalidRequest(name, f"{getattr(config, name)} is not from 1 to {QUEUE_COUNT_MAX}")
    if config.perm not in (Perm.NONE, Perm.WRITE, Perm.READ, Perm.READ_WRITE):
        raise InvalidRequest("perm", f"{config.perm} is not 0, 2 (write), 4 (read) or 6 (both)")
    for name in ("message_bytes_max", "retention_ms", "retention_bytes"):
        if (value := getattr(config, name)) is not None and value < 1:
            raise InvalidRequest(name, f"{value} is not positive")
