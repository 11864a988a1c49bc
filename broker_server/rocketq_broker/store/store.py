"""The message store: the facade over the log, its queues and its state.

Writes are handed to the log writer and answered on its thread; reads come from
memory and the page cache and may be called from anywhere; `housekeeping` does
the rest on threads of its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from typing import Any

from rocketq.clock import Clock, SystemClock
from rocketq.errors import (
    BrokerUnavailable,
    RocketqError,
)
from rocketq.protocol.documents.broker import (
    AlterTopicRequest,
    CreateTopicRequest,
)
from rocketq.protocol.documents.sinks import StageName
from rocketq.protocol.documents.transactions import HalfName
from rocketq.protocol.send_number import SendNumber
from rocketq_broker.store.commit.confirmation import WriterHooks
from rocketq_broker.store.commit.ends import ConfirmRule, ReplicaRule, rule_of
from rocketq_broker.store.commit.log_writer import LogWriter
from rocketq_broker.store.commit.small_batches import Addressed, QueueBatch, QueueMessage
from rocketq_broker.store.commit.store_parts import StoreParts
from rocketq_broker.store.commit.waiting_operations import (
    AppendBatches,
    AppendOutcome,
    ChangeState,
    Operation,
    StagedOutcome,
)
from rocketq_broker.store.config import StoreConfig
from rocketq_broker.store.disk.files import DiskUsage, Files, OSFiles
from rocketq_broker.store.disk.open_files import Handles
from rocketq_broker.store.errors import LogFailed, StoreError
from rocketq_broker.store.group_operations import GroupOperations
from rocketq_broker.store.index.key_index import KeyIndex
from rocketq_broker.store.index.key_query import KeyQuery
from rocketq_broker.store.lease_operations import LeaseOperations
from rocketq_broker.store.machines.timer_table import TimerPlace
from rocketq_broker.store.reads import PullResult, StoreReads
from rocketq_broker.store.recovery.queue_repair import QueueRepair
from rocketq_broker.store.recovery.recovery import RecoveryReport
from rocketq_broker.store.recovery.start import ABORT, recovered
from rocketq_broker.store.replica.operations import ReplicaHooks, ReplicaOperations
from rocketq_broker.store.replica.start import following
from rocketq_broker.store.results import FoundMessages, StoreStatistics
from rocketq_broker.store.sink_operations import SinkOperations
from rocketq_broker.store.state import topic_decisions as decisions
from rocketq_broker.store.state.state import Change, State
from rocketq_broker.store.state.topic_decisions import TopicLimits
from rocketq_broker.store.timer_operations import TimerOperations
from rocketq_broker.store.transaction_operations import HalfMessages, Outcome, TransactionOperations
from rocketq_broker.store.upkeep.clock_watch import ClockNotice, ClockWatch
from rocketq_broker.store.upkeep.housekeeping import Housekeeping, TasksDue
from rocketq_broker.store.upkeep.retention import RetentionDecision

__all__ = [
    "AppendOutcome",
    "FoundMessages",
    "HalfMessages",
    "KeyQuery",
    "MessageStore",
    "Outcome",
    "PullResult",
    "QueueBatch",
    "QueueMessage",
    "StagedOutcome",
    "StoreStatistics",
    "TimerPlace",
    "TransactionOperations",
]

Done = Callable[[Any], None]


class MessageStore(StoreReads):
    """One broker's store in one directory, from `open` to `close`."""

    @classmethod
    def open(
        cls,
        config: StoreConfig,
        *,
        files: Files | None = None,
        clock: Clock | None = None,
        on_arrival: Callable[[Collection[tuple[str, int]]], None] = lambda arrived: None,
        on_change: Callable[[], None] = lambda: None,
        on_fault: Callable[[StoreError], None] = lambda error: None,
        on_damage: Callable[[StoreError], None] = lambda error: None,
        on_clock: Callable[[ClockNotice], None] = lambda notice: None,
        rule: ConfirmRule | None = None,
        replica: ReplicaHooks | None = None,
    ) -> MessageStore:
        """Lock the directory, recover, and return a store that takes writes; `report` says what was found.

        Raises StoreLocked, LogFailed, or another StoreError if the data is not sound; the directory is then
        not locked. The hooks are called on the store's threads, possibly before `open` returns: `on_damage`
        once for each damage, `on_clock` for each step of the wall clock. `rule` moves the confirmed end
        (default: that of the flush mode). With `replica` the store opens as a follower, and has a rule of
        its own.
        """
        files = files or OSFiles(config.directory)
        clock = clock or SystemClock()
        handles = Handles(files, config.open_files_max)
        files.lock()
        try:
            start = recovered(config, files, handles, clock, is_replica=replica is not None)
            parts, ends = start.parts, start.parts.ends
            index = KeyIndex(files, parts.log, parts.queues, ends, on_damage)
            index.load()
            repair = QueueRepair(parts.log, parts.queues, lambda: ends.state, ends.lock)
            watch = ClockWatch(files, clock, start.tail.stored_at_us, on_clock)
            files.open(ABORT, create=True)
            files.sync_directory("")
            due = TasksDue(index, config.snapshot_log_bytes)
            hooks = WriterHooks(on_arrival, on_change, on_fault, due.committed)
            if replica is None:
                writer = LogWriter(parts, start.tail, rule or rule_of(config.flush), hooks)
                housekeeping = Housekeeping(parts, writer, index, repair, watch, due)
                operations = None
            else:
                replica_rule = ReplicaRule(rule_of(config.flush))
                writer = LogWriter(parts, start.tail, replica_rule, replica.hooks(hooks))
                housekeeping = Housekeeping(parts, writer, index, repair, watch, due, replica.on_log_moved)
                operations = following(start, writer, index, housekeeping, replica_rule, replica, on_change)
            writer.start()
            housekeeping.start()
        except OSError as error:
            _let_go(handles, files)
            raise LogFailed("be recovered", str(error)) from error
        except BaseException:
            _let_go(handles, files)
            raise
        return cls(parts, index, repair, writer, housekeeping, watch, start.report, operations)

    def __init__(
        self,
        parts: StoreParts,
        index: KeyIndex,
        repair: QueueRepair,
        writer: LogWriter,
        housekeeping: Housekeeping,
        watch: ClockWatch,
        report: RecoveryReport,
        replica: ReplicaOperations | None = None,
    ) -> None:
        """Take what `open` has recovered and started; nothing else calls this."""
        super().__init__(parts, index, repair)
        self._files = parts.files
        self._handles = parts.handles
        self._clock = parts.clock
        self._writer = writer
        self._housekeeping = housekeeping
        self._limits = TopicLimits(parts.config.topics_max, parts.config.queues_max)
        #: What recovery found when the store was opened.
        self.report = report
        #: What replication asks of the store; None if it is no replica.
        self.replica = replica
        #: Whether the wall clock is believed, and who to ask.
        self.clock_watch = watch
        #: What can be asked of the consumer groups.
        self.consumer_groups = GroupOperations(self.broker, parts.ends, parts.queues, self._submit)
        #: What can be asked of the exactly-once sinks.
        self.sinks = SinkOperations(self.broker, parts.ends, self._submit)
        #: What can be asked of the delayed messages.
        self.timers = TimerOperations(parts, self._submit)
        #: What can be asked of the transactional messages.
        self.transactions = TransactionOperations(parts, self._submit)
        #: What can be asked of messages that are leased one by one.
        self.leases = LeaseOperations(parts, self._submit)

    # --- life ---------------------------------------------------------------------------

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
            _let_go(self._handles, self._files)

    def confirm(self) -> None:
        """Have the rule looked at again: what it depends on has changed."""
        self._writer.confirmation.confirm()

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
        found = {name: error.message for name, error in sorted(dict(self._housekeeping.troubles).items())}
        if holes := self._index.holes():
            ranges = ", ".join(f"{each.begin} to {each.end}" for each in holes[:10])
            found["index"] = (
                f"{len(holes)} part(s) of the log cannot be read and are not in the key index: {ranges}."
            )
        if damaged := sorted(self.timers.damaged):
            found["timers"] = (
                f"{len(damaged)} file(s) of the timer index are damaged, and the log is read instead: "
                f"windows {', '.join(map(str, damaged[:10]))}."
            )
        if (trouble := self._writer.copying_paused_by) is not None:
            found["publishing"] = trouble.message
        return found

    def retain(self) -> RetentionDecision:
        """Let go what the retention policy condemns."""
        return self._housekeeping.retain()

    def statistics(self) -> StoreStatistics:
        holes, confirmation = self._index.holes(), self._writer.confirmation
        return StoreStatistics(
            self._log.begin, self._log.end, self._ends.durable, self._housekeeping.snapshot_position,
            self._index.position, len(holes), sum(each.end - each.begin for each in holes),
            self._writer.queued_bytes, confirmation.commits, len(self._state.topics), len(self._queues),
            len(self._handles), len(self._state.slots), confirmation.repeated_sends,
            self._queues.rebuilt_blocks, self.clock_watch.record,
        )  # fmt: skip

    # --- writes -------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        batches: Sequence[Addressed],
        done: Done,
        *,
        stage: StageName | HalfName | None = None,
        number: SendNumber | None = None,
        pieces: tuple[int, ...] = (),
        wake: bool = True,
        check: Callable[[State], None] = lambda state: None,
        decide: Callable[[State, int], Change | None] | None = None,
    ) -> None:
        """Append batches to queues of one topic, all or none; `done` has the AppendOutcome or the error.

        With a stage they are staged instead, with a HalfName they are half messages, and `done` has a
        StagedOutcome. With a number a repetition has the outcome of the first append, or SendOutdated,
        SendNumberReused; `pieces` is a part of the outcome. `check` and `decide` are those of
        `AppendBatches`. A caller with several appends at hand passes wake=False and calls `wake_writer`
        after the last.
        """
        size = sum(each.sent_bytes for each in batches)
        hold = None
        if isinstance(stage, HalfName):
            hold = self.transactions.hold(stage)
        elif stage is not None:
            hold = self.sinks.hold(stage)
        submitted_ms = self._clock.monotonic_ms()
        operation = AppendBatches(
            topic, batches, size, submitted_ms, done, hold, decide, check, number=number, pieces=pieces
        )
        self._submit(operation, wake)

    def wake_writer(self) -> None:
        """Have what was appended with wake=False written."""
        self._writer.wake()

    def create_topic(self, name: str, request: CreateTopicRequest, done: Done) -> None:
        """Create a topic; `done` has its TopicConfig, or Conflict, InvalidName, InvalidRequest."""
        incarnation = uuid.uuid4().hex

        def decide(state: State) -> Change | None:
            return decisions.create_topic(
                state, name, request, self._limits, self.broker, incarnation, self.now_ms()
            )

        self._submit(ChangeState(decide, lambda state: state.topics[name].config, done))

    def alter_topic(self, name: str, request: AlterTopicRequest, done: Done) -> None:
        """Change what the request gives; `done` has the new TopicConfig or the error."""

        def decide(state: State) -> Change | None:
            return decisions.alter_topic(
                state, self._queues, name, request, self._limits, self.broker, self.now_ms()
            )

        self._submit(ChangeState(decide, lambda state: state.topics[name].config, done))

    def delete_topic(self, name: str, done: Done) -> None:
        """Delete a topic with its messages and groups' offsets; `done` has None or the error."""

        def decide(state: State) -> Change | None:
            return decisions.delete_topic(state, name, self.broker, self.now_ms())

        self._submit(ChangeState(decide, lambda state: None, done))

    def now_ms(self) -> int:
        """Return the store's wall clock in milliseconds since 1970."""
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


def _let_go(handles: Handles, files: Files) -> None:
    handles.close()
    files.unlock()
