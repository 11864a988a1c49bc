"""The log writer: one thread that commits whatever is waiting, as one group.

Senders hand operations over and go on. The thread takes all that have come
together while it was busy, plans them (`group`), writes the log with one
gathering write, and under sync flush makes it durable with one fdatasync: the
more senders there are, the more share the price of a sync.

The order within a commit is the promise: log and ConsumeQueue units, then disk
(sync flush), then the queue's end and the state, then the answers. Whoever has an
answer can read what it speaks of. Until the queue's end moves nobody sees a thing,
so a disk that is full before that is the senders' to know, and no more.

While decided batches of sinks wait to be published, each group also copies some of
their frames (`publishing`), and an idle writer goes on with nothing else: the copies
share the log with the sends that come, and neither waits for more than one group.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Final

import numpy as np

from rocketq.clock import Clock
from rocketq.errors import BrokerUnavailable, CorruptFrame, RocketqError, StoreFull, SystemBusy
from rocketq.protocol.model import FlushMode, SendStatus
from rocketq.sink_errors import StageNotFound
from rocketq_broker.store.commit_log import CommitLog
from rocketq_broker.store.config import StoreConfig
from rocketq_broker.store.consume_queue import Units, units
from rocketq_broker.store.errors import LogFailed, StoreError
from rocketq_broker.store.files import FULL_ERRORS
from rocketq_broker.store.gathering import Gathering
from rocketq_broker.store.group import AppendBatches, GroupPlan, Operation, PublishBatch, Receipt
from rocketq_broker.store.publishing import read_copies
from rocketq_broker.store.queues import QueueKey, Queues
from rocketq_broker.store.sinks import PublicationName
from rocketq_broker.store.state import State

#: What a full queue tells senders to wait; roughly the time to write a group or two.
RETRY_AFTER_MS: Final = 50
_OPERATION_BYTES: Final = 256


@dataclass(slots=True)
class Published:
    """What readers may see; the writer replaces it whole, under `lock`."""

    state: State
    stored_at_us: int
    #: Log offset below which everything is dispatched, and below which it is on disk.
    position: int
    durable_end: int
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True, slots=True)
class _Syncing:
    """A group that was written and is being put on disk."""

    plan: GroupPlan
    started_ms: int


class LogWriter:
    """Takes operations from any thread and commits them in groups on its own."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: Queues,
        published: Published,
        clock: Clock,
        on_arrival: Callable[[Collection[tuple[str, int]]], None],
        on_change: Callable[[], None],
        on_fault: Callable[[StoreError], None],
        on_commit: Callable[[int], None],
    ) -> None:
        self._config = config
        self._log = log
        self._queues = queues
        self._published = published
        self._clock = clock
        self._on_arrival = on_arrival
        self._on_change = on_change
        self._on_fault = on_fault
        self._on_commit = on_commit
        self._inbox: deque[Operation | None] = deque()
        #: What an idle writer waits on; at most one token is in it.
        self._tokens: SimpleQueue[None] = SimpleQueue()
        self._token_sent = False
        self._lock = threading.Lock()
        self._queued_bytes = 0
        self._stopped_why = ""
        #: Why appends are refused while everything else goes on, by who says so.
        self._append_refusals: dict[str, RocketqError] = {}
        self._failure: StoreError | None = None
        self._syncing: _Syncing | None = None
        self._gathering = Gathering()
        #: Who waits for which batch to be published.
        self._awaited: dict[PublicationName, list[PublishBatch]] = {}
        #: Why publishing pauses until `resume_publishing`, if it does.
        self.publishing_trouble: RocketqError | None = None
        self._thread = threading.Thread(target=self._run, name="rocketq-log-writer", daemon=True)
        self.groups = 0

    # --- any thread -------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def submit(self, operation: Operation, wake: bool = True) -> None:
        """Take an operation; raise SystemBusy or BrokerUnavailable if it cannot be taken now.

        A caller that has more to submit wakes the writer once, after the last, by `wake`: an
        idle writer that is woken for each competes with its caller and makes groups of one.
        """
        size = operation.size + _OPERATION_BYTES
        with self._lock:
            if self._stopped_why:
                raise BrokerUnavailable(self._config.broker, self._stopped_why)
            if self._append_refusals and isinstance(operation, AppendBatches):
                raise next(iter(self._append_refusals.values()))
            if self._queued_bytes and self._queued_bytes + size > self._config.queued_bytes_max:
                raise SystemBusy(f"{self._queued_bytes} bytes wait to be written", RETRY_AFTER_MS)
            self._queued_bytes += size
            self._inbox.append(operation)
        if wake:
            self.wake()

    def wake(self) -> None:
        """Have the writer look at what was submitted."""
        if not self._token_sent:
            self._token_sent = True
            self._tokens.put(None)

    def refuse_appends(self, who: str, error: RocketqError | None) -> None:
        """Refuse appends with this error until the same `who` takes it back with None."""
        with self._lock:
            self._append_refusals.pop(who, None)
            if error is not None:
                self._append_refusals[who] = error

    def resume_publishing(self) -> None:
        """Go on publishing, if a full disk or damage made it pause; called from time to time."""
        if self.publishing_trouble is not None:
            self.publishing_trouble = None
            self.wake()

    @property
    def failed(self) -> bool:
        return self._failure is not None

    @property
    def queued_bytes(self) -> int:
        return self._queued_bytes

    def stop(self) -> None:
        """Commit what has been taken, then end the thread; later operations are refused."""
        with self._lock:
            first = not self._stopped_why
            self._stopped_why = self._stopped_why or "it is shutting down"
            if first:
                self._inbox.append(None)
        self.wake()
        self._thread.join()

    def fail(self, error: StoreError) -> None:
        """Stop acknowledging for good: refuse what waits and what comes; tell the owner once."""
        with self._lock:
            first = self._failure is None
            self._failure = error
            self._stopped_why = f"its log failed ({error.message})"
            if first:
                self._inbox.append(None)
        if first:
            self.wake()
            self._on_fault(error)

    # --- the writer thread --------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            # A defect of ours or of a caller's `done`: nobody may wait for ever on a thread that is gone.
            self.fail(LogFailed("be served", repr(error)))
            raise
        finally:
            self._refuse_rest()

    def _serve(self) -> None:
        running = True
        while running:
            group: list[Operation] = []
            running = self._take(group)
            if self._failure is not None:
                self._refuse(group, BrokerUnavailable(self._config.broker, self._stopped_why))
                continue
            if not (group or (running and self._has_to_publish)):
                continue
            self._commit(self._in_time(group))

    def _take(self, group: list[Operation]) -> bool:
        """Wait for one operation and take all that came with it; return False at the end.

        Nothing is waited for while there is something to publish.
        """
        while not self._inbox:
            if self._has_to_publish:
                return True
            self._tokens.get()
            # Cleared before the inbox is looked at: whoever submits later sends another token.
            self._token_sent = False
        self._gather()
        size = 0
        operation: Operation | None = None
        while self._inbox and size < self._config.group_bytes_max:
            operation = self._inbox.popleft()
            if operation is None:
                break
            group.append(operation)
            size += operation.size + _OPERATION_BYTES
        with self._lock:
            self._queued_bytes -= size
        return operation is not None

    def _gather(self) -> None:
        """Let others join a group that is worth waiting for."""
        began = time.perf_counter()
        while not (self._has_to_publish or self._stopped_why):
            wait_s = self._gathering.wait_s(len(self._inbox), time.perf_counter() - began)
            if wait_s <= 0:
                return
            try:
                self._tokens.get(timeout=wait_s)
            except Empty:
                return
            self._token_sent = False

    @property
    def _has_to_publish(self) -> bool:
        idle = self._failure is not None or self.publishing_trouble is not None
        return bool(self._published.state.sinks.publishing) and not idle

    def _in_time(self, group: list[Operation]) -> list[Operation]:
        """Refuse appends that waited too long: their senders have given up or soon will."""
        oldest = self._clock.monotonic_ms() - self._config.queue_wait_ms_max
        late = [each for each in group if isinstance(each, AppendBatches) and each.submitted_ms < oldest]
        if not late:
            return group
        why = f"a send waited more than {self._config.queue_wait_ms_max} ms for the log"
        self._refuse(late, SystemBusy(why, RETRY_AFTER_MS))
        return [each for each in group if each not in late]

    def _refuse_rest(self) -> None:
        rest = [operation for operation in self._inbox if operation is not None]
        self._inbox.clear()
        error = BrokerUnavailable(self._config.broker, self._stopped_why)
        self._refuse(rest, error)
        self._disappoint(error)

    def _disappoint(self, error: RocketqError) -> None:
        """Tell everybody who waits for a batch to be published that it is not now; it will be in time."""
        awaited, self._awaited = self._awaited, {}
        for operations in awaited.values():
            self._refuse(operations, error)

    def _refuse(self, group: Sequence[Operation], error: RocketqError) -> None:
        for operation in group:
            operation.done(error)

    def _commit(self, group: list[Operation]) -> None:
        plan = self._plan(group)
        before = self._log.end
        try:
            self._log.append(plan.extents)
            self._write_units(plan)
        except OSError as error:
            self._write_failed(plan, before, error)
            return
        except LogFailed as failure:
            self._fail_group(plan, failure)
            return
        durable = self._published.durable_end
        try:
            if plan.extents and self._config.flush is FlushMode.SYNC:
                self._syncing = _Syncing(plan, self._clock.monotonic_ms())
                began = time.perf_counter()
                self._log.sync()
                sync_s = time.perf_counter() - began
                self._gathering = Gathering.after(sync_s, len(group), len(self._inbox))
                durable = self._log.end
            self._publish(plan, durable)
        except LogFailed as failure:
            self._fail_group(plan, failure)
            return
        except OSError as error:
            self._fail_group(plan, LogFailed("be rid of a deleted topic's files", str(error)))
            return
        self.groups += 1
        answers: list[tuple[Callable[[Any], None], Any]] = [
            *((operation.done, outcome) for operation, outcome in self._published_now(plan)),
            *((receipt.answer, SendStatus.SEND_OK) for receipt in self._unanswered(plan)),
            *plan.answers,
        ]
        _make_all(answers)
        self._announce(plan)
        self._on_commit(self._published.position)

    def _published_now(self, plan: GroupPlan) -> list[tuple[PublishBatch, RocketqError | None]]:
        """Take those whose batch is in its queues, or was given up; the others go on waiting."""
        for operation in plan.awaited:
            self._awaited.setdefault(operation.name, []).append(operation)
        found: list[tuple[PublishBatch, RocketqError | None]] = []
        for name in [each for each in self._awaited if not plan.state.sinks.is_publishing(each)]:
            given_up = None
            if not plan.state.sinks.has_published(name):
                given_up = StageNotFound(*name, self._config.broker, "its sink was deleted meanwhile")
            found += [(operation, given_up) for operation in self._awaited.pop(name)]
        return found

    def _unanswered(self, plan: GroupPlan) -> list[Receipt]:
        """Take the appends that no flush timeout has answered yet."""
        with self._lock:
            receipts, plan.receipts = plan.receipts, []
            self._syncing = None
        return receipts

    def answer_slow_sync(self) -> None:
        """Answer FLUSH_DISK_TIMEOUT to senders whose sync takes longer than `flush_timeout_ms`.

        Called from time to time by another thread, since the writer's own is in the sync.
        """
        with self._lock:
            syncing = self._syncing
            if syncing is None:
                return
            if self._clock.monotonic_ms() - syncing.started_ms < self._config.flush_timeout_ms:
                return
            receipts, syncing.plan.receipts = syncing.plan.receipts, []
        for receipt in receipts:
            receipt.answer(SendStatus.FLUSH_DISK_TIMEOUT)

    def _fail_group(self, plan: GroupPlan, failure: LogFailed) -> None:
        self.fail(failure)
        self._refuse_plan(plan, BrokerUnavailable(self._config.broker, failure.message))

    def _refuse_plan(self, plan: GroupPlan, error: RocketqError) -> None:
        """Answer everything in the plan with `error`, but for what it had refused by itself."""
        for receipt in self._unanswered(plan):
            receipt.operation.done(error)
        for done, value in plan.answers:
            done(value if isinstance(value, RocketqError) else error)
        self._refuse(plan.awaited, error)

    def _plan(self, group: list[Operation]) -> GroupPlan:
        published = self._published
        plan = GroupPlan(
            broker=self._config.broker,
            state=published.state,
            queues=self._queues,
            cursor=self._log.cursor(self._config.segment_bytes),
            # Store times never decrease along the log, even if the clock is set back.
            stored_at_us=max(self._clock.now_us(), published.stored_at_us),
            durable_end=published.durable_end,
            merge_bytes=self._config.merge_bytes,
        )
        for operation in group:
            plan.add(operation)
        plan.place_waiting()
        if self.publishing_trouble is None:
            self._plan_publishing(plan)
        return plan

    def _plan_publishing(self, plan: GroupPlan) -> None:
        try:
            plan.publish(read_copies(self._log, plan.state.sinks, self._config.publish_bytes_max))
        except CorruptFrame as damage:
            # What was decided is not given up: it stays the next to be published, and people are told.
            self._pause_publishing(damage)

    def _pause_publishing(self, why: RocketqError) -> None:
        self.publishing_trouble = why
        self._disappoint(why)

    def _write_failed(self, plan: GroupPlan, before: int, error: OSError) -> None:
        """Cut what was written of the group; a full disk is the senders' to know, all else is fatal."""
        try:
            self._log.truncate(before)
        except OSError as second:
            self._fail_group(plan, LogFailed("be cut back after a failed write", str(second)))
            return
        if error.errno in FULL_ERRORS:
            full = StoreFull(self._config.broker, 100)
            self._refuse_plan(plan, full)
            if self._published.state.sinks.publishing:
                self._pause_publishing(full)
            return
        self._fail_group(plan, LogFailed("be written", str(error)))

    def _write_units(self, plan: GroupPlan) -> None:
        """Write a group's ConsumeQueue units, behind the queues' ends, where nobody reads yet."""
        by_queue: dict[QueueKey, list[Units]] = {}
        for frame in plan.frames:
            by_queue.setdefault(frame.key, []).append(units(frame.log_offset, frame.size, frame.tag_hashes))
        # The set of files to sync, to which this adds, is the snapshot's as well.
        with self._published.lock:
            for key, runs in by_queue.items():
                made = runs[0] if len(runs) == 1 else np.concatenate(runs)
                self._queues.make(key).write(made)

    def _publish(self, plan: GroupPlan, durable: int) -> None:
        published = self._published
        with published.lock:
            for key, end in plan.ends.items():
                self._queues.make(key).advance(end)
            published.state = plan.state
            published.stored_at_us = plan.stored_at_us
            published.position = self._log.end
            published.durable_end = max(published.durable_end, durable)
            for number in plan.deleted:
                self._queues.drop_topic(number)

    def _announce(self, plan: GroupPlan) -> None:
        if plan.frames:
            self._on_arrival({(frame.topic, frame.key[1]) for frame in plan.frames})
        if plan.topics_changed:
            self._on_change()


def _make_all(calls: Sequence[tuple[Callable[[Any], None], Any]]) -> None:
    """Make every call, even if one of them raises; then raise what the first one raised."""
    failure: BaseException | None = None
    for call, argument in calls:
        try:
            call(argument)
        except BaseException as error:  # noqa: BLE001  raised below
            failure = failure or error
    if failure is not None:
        raise failure
