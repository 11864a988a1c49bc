"""The message store: the facade over the log, its queues and its state.

Writes are handed to the log writer and answered on its thread; reads come from
memory and the page cache and may be called from anywhere; `housekeeping` does
the rest on threads of its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from rocketq.clock import Clock, SystemClock
from rocketq.errors import (
    BrokerUnavailable,
    CorruptFrame,
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
    GroupLag,
    GroupOffset,
    GroupOffsets,
    QueueStatistics,
    TimeOffsets,
    TopicOffsets,
    TopicStatistics,
)
from rocketq.protocol.model import Perm, PullStatus, QueueOffsets, TimeBoundary, TopicConfig
from rocketq.protocol.route import DataVersion
from rocketq.protocol.sinks import StageName
from rocketq_broker.store import decisions, reader
from rocketq_broker.store.clock_watch import ClockNotice, ClockWatch
from rocketq_broker.store.commit_log import CommitLog
from rocketq_broker.store.config import StoreConfig
from rocketq_broker.store.damage import located
from rocketq_broker.store.decisions import TopicLimits
from rocketq_broker.store.ends import ConfirmRule, LogEnds, LogTail, rule_of
from rocketq_broker.store.errors import CorruptQueue, LogFailed, SegmentGone, StoreError
from rocketq_broker.store.files import Files, OSFiles
from rocketq_broker.store.group import (
    AppendBatches,
    AppendOutcome,
    ChangeState,
    Operation,
    StagedOutcome,
)
from rocketq_broker.store.handles import Handles
from rocketq_broker.store.housekeeping import Housekeeping
from rocketq_broker.store.interval import FoundInTime, TimeQuery, find_in_time
from rocketq_broker.store.key_index import KeyIndex, KeyQuery
from rocketq_broker.store.merging import Addressed, QueueBatch, QueueMessage
from rocketq_broker.store.queue_reader import StoreQueueReader
from rocketq_broker.store.queue_repair import QueueRepair
from rocketq_broker.store.queues import Queues
from rocketq_broker.store.recovery import Recovery, RecoveryReport
from rocketq_broker.store.results import FoundMessages, StoreStatistics, uncovered_range
from rocketq_broker.store.retention import DiskUsage, Verdict
from rocketq_broker.store.selection import MessageFilter, select
from rocketq_broker.store.sink_operations import SinkOperations
from rocketq_broker.store.state import Change, State
from rocketq_broker.store.topic_table import TopicEntry
from rocketq_broker.store.writer import LogWriter

__all__ = [
    "AppendOutcome",
    "FoundMessages",
    "KeyQuery",
    "MessageStore",
    "PullResult",
    "QueueBatch",
    "QueueMessage",
    "StagedOutcome",
    "StoreStatistics",
]

ABORT: Final = "abort"

Done = Callable[[Any], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PullResult:
    """Whole frames that hold the asked messages, and where the queue stands."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    incarnation: str
    chunks: list[bytes]


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
        on_damage: Callable[[StoreError], None] | None = None,
        on_clock: Callable[[ClockNotice], None] | None = None,
        rule: ConfirmRule | None = None,
    ) -> None:
        """`on_damage` is told once of each damage, `on_clock` of each step of the wall clock.

        `rule` moves the confirmed end (default: that of the flush mode).
        """
        self._config = config
        self._files = files or OSFiles(config.directory)
        self._clock = clock or SystemClock()
        self._on_arrival = on_arrival or (lambda arrived: None)
        self._on_change = on_change or (lambda: None)
        self._on_fault = on_fault or (lambda error: None)
        self._on_damage = on_damage or (lambda error: None)
        self._on_clock = on_clock or (lambda notice: None)
        self._rule = rule
        self._handles = Handles(self._files, config.open_files_max)
        self._limits = TopicLimits(config.topics_max, config.queues_max)
        self._queues = Queues(self._files, self._handles, config.queue_file_units)

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
            replay = recovery.replay
            end = self._log.end
            epoch = max(replay.epoch, self._config.epoch)
            self._ends = LogEnds(replay.state, replay.stored_at_us, epoch, end, end, end)
            tail = LogTail(replay.state, replay.stored_at_us, epoch)
            self._index = KeyIndex(self._files, self._log, self._queues, self._ends, self._on_damage)
            self._index.load()
            self._repair = QueueRepair(self._log, self._queues, lambda: self._state, self._ends.lock)
            newest_us = replay.stored_at_us
            #: Whether the wall clock is believed, and who to ask.
            self.clock_watch = ClockWatch(self._files, self._clock, newest_us, self._on_clock)
            self._files.open(ABORT, create=True)
            self._files.sync_directory("")
        except OSError as error:
            self._let_go()
            raise LogFailed("be recovered", str(error)) from error
        except BaseException:
            self._let_go()
            raise
        rule = self._rule or rule_of(self._config.flush)
        self._writer = LogWriter(
            self._config, self._log, self._queues, self._ends, tail, rule, self._clock,
            self._on_arrival, self._on_change, self._on_fault, self._committed,
        )  # fmt: skip
        self._housekeeping = Housekeeping(
            self._config, self._files, self._handles, self._log, self._queues, self._ends,
            self._writer, self._index, self._repair, self._clock, self.clock_watch,
        )  # fmt: skip
        #: What can be asked of the exactly-once sinks.
        self.sinks = SinkOperations(self.broker, self._ends, self._submit)
        self._writer.start()
        self._housekeeping.start()
        return report

    def close(self) -> None:
        """Commit what was taken, put everything on disk and leave in good order."""
        self._writer.stop()
        self._housekeeping.stop()
        try:
            if not self._writer.failed:
                self.flush()
                self.take_snapshot()
                self._housekeeping.put_index_in_file()
                self.clock_watch.close()
                self._files.remove(ABORT)
                self._files.sync_directory("")
        finally:
            self._let_go()

    def _let_go(self) -> None:
        self._handles.close()
        self._files.unlock()

    def _committed(self, position: int) -> None:
        self._housekeeping.committed(position)

    def confirm(self) -> None:
        """Have the rule looked at again: what it depends on has changed."""
        self._writer.confirm()

    def flush(self) -> None:
        """Put the log on disk up to what is written now."""
        self._housekeeping.flush()

    def take_snapshot(self) -> None:
        """Write a snapshot if the log has grown since the last one."""
        self._housekeeping.take_snapshot()

    def catch_up_index(self) -> None:
        """Index what is on disk and not indexed yet."""
        self._housekeeping.index()

    def index_notes(self) -> tuple[str, ...]:
        """Return what was found damaged in the index, and built anew, since the start."""
        return tuple(self._index.notes)

    def troubles(self) -> dict[str, str]:
        """Return the tasks that met damaged data, or no room, when they last ran, and what they met."""
        found = {name: error.message for name, error in sorted(self._housekeeping.troubles.items())}
        if holes := self._index.holes():
            ranges = ", ".join(f"{each.begin} to {each.end}" for each in holes[:10])
            found["index"] = (
                f"{len(holes)} part(s) of the log cannot be read and are not in the key index: {ranges}."
            )
        if (trouble := self._writer.copying_trouble) is not None:
            found["publishing"] = trouble.message
        return found

    def retain(self) -> Verdict:
        """Let go what the retention policy condemns."""
        return self._housekeeping.retain()

    # --- reads ------------------------------------------------------------------------

    @property
    def _state(self) -> State:
        return self._ends.state

    @property
    def data_version(self) -> DataVersion:
        return self._state.topics.data_version

    def topics(self) -> tuple[TopicConfig, ...]:
        return tuple(entry.config for entry in self._state.topics.in_order())

    def topic(self, name: str) -> TopicConfig:
        """Return a topic's configuration; raise TopicNotFound."""
        return self._entry(name).config

    def _entry(self, name: str) -> TopicEntry:
        entry = self._state.topics.get(name)
        if entry is None:
            raise TopicNotFound(name, self.broker)
        return entry

    def offsets(self, topic: str) -> TopicOffsets:
        """Return [min, max) of every queue a topic ever had; raise TopicNotFound.

        Those beyond its present counts too: what they hold is still stored, and `total` never shrinks.
        """
        entry = self._entry(topic)
        ranges = [self._queues.range((entry.number, queue)) for queue in range(entry.queues)]
        return TopicOffsets(
            topic,
            self.broker,
            entry.config.incarnation,
            sum(each.end for each in ranges),
            tuple(QueueOffsets(each.min, each.end) for each in ranges),
        )

    def offsets_at(self, topic: str, at_us: int, boundary: TimeBoundary) -> TimeOffsets:
        """Return the offset that a time names in every queue of a topic; reads the disk."""
        config = self._entry(topic).config

        def offset_at(queue_id: int) -> int:
            queue = self._queues.get((self._entry(topic).number, queue_id))
            if queue is None:
                return 0
            return reader.offset_at(self._log, queue, queue.min, queue.end, at_us, boundary)

        offsets = [
            self._steady(topic, queue, partial(self._repair.read, partial(offset_at, queue)))
            for queue in range(config.queues)
        ]
        return TimeOffsets(topic, self.broker, config.incarnation, at_us, tuple(offsets))

    def group_offsets(self, group: str, topic: str | None = None) -> GroupOffsets:
        """Return a group's progress on this broker; queues without a commit are absent."""
        table = self._state.groups.offsets(group)
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
        self,
        topic: str,
        queue: int,
        offset: int,
        *,
        max_bytes: int,
        max_messages: int | None = None,
        chosen: MessageFilter | None = None,
        end: int | None = None,
        may_rebuild: bool = True,
    ) -> PullResult:
        """Return the frames that hold messages from `offset` on, at least one frame if there is any.

        With a filter, filtered frames of the messages it chooses, after a bounded scan that also stops
        before `end`: NO_MATCHED_MSG if there was none, with the offset to go on at. Raises TopicNotFound,
        QueueNotFound, NoPermission, or OffsetOutOfRange outside [min, max] (RocketMQ: PullMessageProcessor).

        ConsumeQueue units that are damaged are rebuilt from the log first, which can take long. A caller that
        cannot wait passes may_rebuild=False and gets CorruptQueue instead.
        """
        look = partial(self._pull, topic, queue, offset, max_bytes, max_messages, chosen, end)
        return self._steady(topic, queue, partial(self._repair.read, look) if may_rebuild else look)

    def _steady(self, topic: str, queue: int, read: Callable[[], T]) -> T:
        """Read from the files; if they went meanwhile with a topic or by retention, look again."""
        while True:
            entry = self._entry(topic)
            found = self._queues.get((entry.number, queue))
            low = None if found is None else found.min
            try:
                return read()
            except CorruptFrame as damage:
                raise self.located(topic, damage) from damage
            except (SegmentGone, FileNotFoundError) as error:
                if found is not None and self._entry(topic).number == entry.number and found.min == low:
                    # Nothing has moved, so the file should be there.
                    raise found.corrupt(found.min, str(error)) from error

    def _pull(
        self, topic: str, queue: int, offset: int, max_bytes: int, max_messages: int | None,
        chosen: MessageFilter | None, until: int | None,
    ) -> PullResult:  # fmt: skip
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
        if chosen is not None:
            stop = end if until is None else max(offset, min(end, until))
            selected = select(self._log, found, topic, offset, stop, chosen, max_bytes, max_messages)
            status = PullStatus.FOUND if selected.chunks else PullStatus.NO_MATCHED_MSG
            return PullResult(status, selected.next_offset, low, end, config.incarnation, selected.chunks)
        chunks, next_offset = reader.whole_frames(
            self._log, found, topic, offset, end, max_bytes, max_messages
        )
        status = PullStatus.FOUND if chunks else PullStatus.NO_MATCHED_MSG
        return PullResult(status, next_offset, low, end, config.incarnation, chunks)

    def find(self, query: KeyQuery) -> FoundMessages:
        """Return the messages with a key, newest first; raise TopicNotFound."""
        self._entry(query.topic)
        # Measured before the search, so that no lag means that nothing of then was missed.
        lag = max(0, self._ends.confirmed - self._index.position)
        found = self._repair.read(partial(self._index.find, query))
        queues = self._queues.of_topic(self._entry(query.topic).number)
        return FoundMessages(found.slices, lag, tuple(uncovered_range(hole, queues) for hole in found.holes))

    def located(self, topic: str, damage: CorruptFrame) -> CorruptFrame:
        """Return the error of the frame at log offset `damage.offset`, which a reader of `topic` met."""
        queues = self._queues.of_topic(self._entry(topic).number)
        try:
            return self._repair.read(partial(located, self._log, self.broker, topic, queues, damage))
        except (CorruptFrame, CorruptQueue):
            # The units that lead to the frame are damaged as well.
            return located(self._log, self.broker, topic, (), damage)

    def find_in_time(self, query: TimeQuery) -> FoundInTime:
        """Return the messages stored within an interval, oldest first; raise TopicNotFound."""

        def frame(topic: str, queue: int, offset: int) -> list[bytes]:
            return self.pull(topic, queue, offset, max_bytes=1, max_messages=1).chunks

        return find_in_time(
            StoreQueueReader(self._log, self._queues, self._entry, self._steady, frame), query
        )

    def topic_statistics(self, topic: str) -> TopicStatistics:
        """Return a topic at run time, with the lag of every group; reads two headers a queue."""
        entry = self._entry(topic)
        queues = [self._queue_statistics(entry.number, queue) for queue in range(entry.config.queues)]
        lags = tuple(
            GroupLag(group, queue, offset, max(0, queues[queue].max - offset))
            for group in sorted(self._state.groups)
            for (name, queue), offset in sorted(self._state.groups.offsets(group).items())
            if name == topic and queue < len(queues)
        )
        return TopicStatistics(self.broker, topic, tuple(queues), lags)

    def _queue_statistics(self, number: int, queue_id: int) -> QueueStatistics:
        queue = self._queues.get((number, queue_id))
        if queue is None:
            return QueueStatistics(queue_id, 0, 0, None, None)
        low, end = queue.min, queue.end
        if low == end:
            return QueueStatistics(queue_id, low, end, None, None)
        try:
            found = [self._repair.read(partial(queue.read, offset, 1)) for offset in (low, end - 1)]
            first, last = (self._log.header(int(unit["log_offset"][0])).stored_at_us for unit in found)
        except SegmentGone:
            # Retention has moved the first offset meanwhile.
            return self._queue_statistics(number, queue_id)
        return QueueStatistics(queue_id, low, end, first, last)

    def statistics(self) -> StoreStatistics:
        holes = self._index.holes()
        return StoreStatistics(
            self._log.begin, self._log.end, self._ends.durable, self._housekeeping.snapshot_position,
            self._index.position, len(holes), sum(each.end - each.begin for each in holes),
            self._writer.queued_bytes, self._writer.groups, len(self._state.topics), len(self._queues),
            len(self._handles), self._queues.rebuilt_blocks, self.clock_watch.record,
        )  # fmt: skip

    # --- writes -------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        batches: Sequence[Addressed],
        done: Done,
        *,
        stage: StageName | None = None,
        wake: bool = True,
    ) -> None:
        """Append batches to queues of one topic, all or none; `done` has the AppendOutcome or the error.

        With a stage they are staged instead, and `done` has a StagedOutcome. A caller with several
        appends at hand passes wake=False and calls `wake_writer` after the last.
        """
        size = sum(each.sent_bytes for each in batches)
        hold = None if stage is None else self.sinks.hold(stage)
        self._submit(AppendBatches(topic, batches, size, self._clock.monotonic_ms(), done, hold), wake)

    def wake_writer(self) -> None:
        """Have what was appended with wake=False written."""
        self._writer.wake()

    def create_topic(self, name: str, request: CreateTopicRequest, done: Done) -> None:
        """Create a topic; `done` has its TopicConfig, or Conflict, InvalidName, InvalidRequest."""
        incarnation = uuid.uuid4().hex

        def decide(state: State) -> Change | None:
            return decisions.create_topic(
                state, name, request, self._limits, self.broker, incarnation, self._now_ms()
            )

        self._submit(ChangeState(decide, lambda state: state.topics[name].config, done))

    def alter_topic(self, name: str, request: AlterTopicRequest, done: Done) -> None:
        """Change what the request gives; `done` has the new TopicConfig or the error."""

        def decide(state: State) -> Change | None:
            return decisions.alter_topic(
                state, self._queues, name, request, self._limits, self.broker, self._now_ms()
            )

        self._submit(ChangeState(decide, lambda state: state.topics[name].config, done))

    def delete_topic(self, name: str, done: Done) -> None:
        """Delete a topic with its messages and groups' offsets; `done` has None or the error."""

        def decide(state: State) -> Change | None:
            return decisions.delete_topic(state, name, self.broker, self._now_ms())

        self._submit(ChangeState(decide, lambda state: None, done))

    def commit_offsets(self, group: str, request: CommitOffsetsRequest, done: Done) -> None:
        """Store a group's progress; it only advances unless `reset`. `done` has GroupOffsets or the error."""

        def decide(state: State) -> Change | None:
            return decisions.commit_offsets(state, self._queues, group, request, self.broker)

        def answer(state: State) -> GroupOffsets:
            return decisions.committed(state, group, request, self.broker)

        self._submit(ChangeState(decide, answer, done))

    def _now_ms(self) -> int:
        return self._clock.now_us() // 1000

    def drain(self, draining: bool) -> None:
        """Refuse appends with BrokerUnavailable, or take them again; reads and commits go on."""
        refusal = BrokerUnavailable(self.broker, "it is being drained") if draining else None
        self._writer.refuse_appends("drain", refusal)

    def disk(self) -> DiskUsage:
        """Return the size of the file system under the store and what of it is free."""
        return self._files.usage()

    def _submit(self, operation: Operation, wake: bool = True) -> None:
        try:
            self._writer.submit(operation, wake)
        except RocketqError as error:
            operation.done(error)
