"""The log writer: one thread that writes all waiting operations to the log at once (group commit).

What it writes at once is a commit group.

Callers submit operations and do not wait for the thread. The thread takes all operations that arrived
while it was busy, plans them (`commit_plan`), and writes them to the log with one vectored write. Under
synchronous flush one fdatasync makes the whole commit group durable, so many senders share its cost.

The steps of a commit group have a fixed order:
  1. the log and the ConsumeQueue units are written;
  2. under synchronous flush, the log is synced;
  3. `confirm` moves the queues' ends and the state for readers, and answers the senders.
So a sender that has its answer can read its messages. Readers see nothing of a commit group before step 3:
if the disk fills up in step 1, the commit group is cut off the log again and only its senders get an error.

A written commit group waits until the confirmed end (`ends`) has passed it. The thread does not wait for
that: it plans the next commit group from its own tail. `confirm` may be called on any thread.

While held frames are due (`machine`), each commit group also copies some of them to their queues
(`held_copies`), and while delayed messages are due it delivers some of them (`due_frames`). A writer without
other work writes commit groups of copies only. Sends and copies share the log: a send waits for at most one
commit group of copies, and a copy for at most one commit group of sends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

from rocketq.errors import BrokerUnavailable, CorruptFrame, RocketqError, StoreFull, SystemBusy
from rocketq.model import FlushMode
from rocketq_broker.store.commit.commit_plan import CommitPlan
from rocketq_broker.store.commit.confirmation import Confirmation, Shown, WriterHooks, WrittenGroup
from rocketq_broker.store.commit.ends import ConfirmRule, LogTail, rule_of
from rocketq_broker.store.commit.held_copies import read_copies
from rocketq_broker.store.commit.inbox import RETRY_AFTER_MS, Inbox
from rocketq_broker.store.commit.store_parts import StoreParts
from rocketq_broker.store.commit.sync_delay import SyncDelay
from rocketq_broker.store.commit.waiting_operations import AppendBatches, Operation, WorkAlone
from rocketq_broker.store.disk.files import FULL_ERRORS
from rocketq_broker.store.errors import LogFailed, SegmentGone, StoreError
from rocketq_broker.store.log.consume_queue import OpenBlock, Units, units
from rocketq_broker.store.log.consume_queues import QueueKey
from rocketq_broker.store.timers.deliveries import Deliveries

T = TypeVar("T")

#: An idle writer looks at the clock at least this often while delayed messages are outstanding; seconds.
_IDLE_S_MAX = 1.0


class LogWriter:
    """Takes operations from any thread and commits them on its own thread."""

    def __init__(self, parts: StoreParts, tail: LogTail, rule: ConfirmRule, hooks: WriterHooks) -> None:
        """Plan from `tail`; `rule` moves the confirmed end."""
        self._config = parts.config
        self._log = parts.log
        self._queues = parts.queues
        self._ends = parts.ends
        self._clock = parts.clock
        self._timers = parts.timers
        self._deliveries = Deliveries(parts.timers, parts.log, parts.config.publish_bytes_max)
        self._tail = tail
        self._hooks = hooks
        self._inbox = Inbox(parts.config)
        #: Guards `_failure`.
        self._lock = threading.Lock()
        self._failure: StoreError | None = None
        #: What is written and not confirmed.
        self.confirmation = Confirmation(parts, rule, rule_of(parts.config.flush), hooks, self.fail)
        #: Whether this store follows a master: then the thread does what others hand it (`alone`), no more.
        self._is_following = False
        self._sync_delay = SyncDelay()
        #: The error that paused copying, until `resume_copying`; None while copying goes on.
        self.copying_paused_by: RocketqError | None = None
        self._thread = threading.Thread(target=self._run, name="rocketq-log-writer", daemon=True)

    # --- any thread -------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def submit(self, operation: Operation, wake: bool = True) -> None:
        """Take an operation; raise SystemBusy or BrokerUnavailable if it cannot be taken now.

        A caller with several operations passes `wake=False`, then calls `wake` once, after the last.
        """
        self._inbox.submit(operation, wake)

    def wake(self) -> None:
        """Have the writer look at what was submitted."""
        self._inbox.wake()

    def refuse_appends(self, who: str, error: RocketqError | None) -> None:
        """Refuse appends with this error until the same `who` takes it back with None."""
        self._inbox.refuse_appends(who, error)

    def refuse_writes(self, who: str, error: RocketqError | None) -> None:
        """Refuse appends and changes with this error until the same `who` takes it back with None."""
        self._inbox.refuse_writes(who, error)

    def alone(self, work: Callable[[LogTail], T]) -> T:
        """Have work done on the writer's thread between two commit groups; return or raise what it does.

        The caller waits. It is not the writer's thread, nor one that the writer's hooks wait for.
        """
        future: Future[T | RocketqError] = Future()

        def run() -> None:
            try:
                future.set_result(work(self._tail))
            except Exception as error:  # noqa: BLE001 - the caller raises it
                future.set_exception(error)

        self._inbox.submit(WorkAlone(run, future.set_result), wake=True)
        result = future.result()
        if isinstance(result, RocketqError):
            raise result
        return result

    def follow(self, is_following: bool) -> None:
        """Stop copying and delivering, or begin again; called within `alone`."""
        self._is_following = is_following
        self.copying_paused_by = None

    def resume_copying(self) -> None:
        """Go on copying held frames, if a full disk or damage made it pause; called from time to time."""
        if self.copying_paused_by is not None:
            self.copying_paused_by = None
            self.wake()

    @property
    def failed(self) -> bool:
        return self._failure is not None

    @property
    def queued_bytes(self) -> int:
        return self._inbox.queued_bytes

    def stop(self) -> None:
        """Commit what has been taken, then end the thread; later operations are refused."""
        self._inbox.close("it is shutting down")
        self._thread.join()

    def fail(self, error: StoreError) -> None:
        """Stop acknowledging for good: refuse what waits and what comes; tell the owner once."""
        with self._lock:
            first = self._failure is None
            self._failure = error
        self._inbox.close(f"its log failed ({error.message})", anew=True)
        if first:
            self._hooks.on_fault(error)

    # --- the writer thread --------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            # A defect here or in a caller's `done`: no caller may wait for ever on a thread that has ended.
            self.fail(LogFailed("be served", repr(error)))
            raise
        finally:
            self._refuse_rest()

    def _serve(self) -> None:
        running = True
        while running:
            operations: list[Operation] = []
            running = self._take(operations)
            if self._failure is not None:
                self._refuse(operations, BrokerUnavailable(self._config.broker, self._inbox.closed_why))
                continue
            if not (operations or (running and self._has_to_copy)):
                continue
            self._serve_in_order(self._in_time(operations))

    def _serve_in_order(self, operations: list[Operation]) -> None:
        """Commit operations together, but for work that is to be alone: it divides them."""
        together: list[Operation] = []
        for operation in operations:
            if isinstance(operation, WorkAlone):
                if together:
                    self._commit(together)
                    together = []
                operation.work()
            else:
                together.append(operation)
        if together or not operations:
            self._commit(together)

    def _take(self, operations: list[Operation]) -> bool:
        """Wait for an operation and take all that wait; return False when the inbox is closed and empty.

        While a held frame is due, the thread does not wait.
        """
        while not self._inbox:
            if self._has_to_copy:
                return True
            self._inbox.wait(self._idle_s())
        self._wait_for_others()
        return self._inbox.take(operations)

    def _wait_for_others(self) -> None:
        """Wait for more operations, for as long as `sync_delay` allows."""
        began = time.perf_counter()
        # Without a sync there is nothing to wait for, so this is looked at first.
        while (wait_s := self._sync_delay.wait_s(len(self._inbox), time.perf_counter() - began)) > 0:
            if self._has_to_copy or self._inbox.closed_why or not self._inbox.wait(wait_s):
                return

    @property
    def _stands_still(self) -> bool:
        """Whether nothing is copied or delivered now."""
        return self._failure is not None or self._is_following or self.copying_paused_by is not None

    @property
    def _has_to_copy(self) -> bool:
        if self._stands_still:
            return False
        at_ms = self._now_us() // 1000
        if self._tail.state.is_due(at_ms):
            return True
        next_ms = self._next_delivery_ms()
        return next_ms is not None and next_ms <= at_ms

    def _idle_s(self) -> float | None:
        """Return how long an idle writer sleeps until delayed messages are due; None: until it is woken."""
        if self._stands_still:
            return None
        next_ms = self._next_delivery_ms()
        if next_ms is None:
            return None
        # It looks at the wall clock now and then, because that may be set forward.
        return min(max(0.0, next_ms / 1000 - self._now_us() / 1_000_000), _IDLE_S_MAX)

    def _next_delivery_ms(self) -> int | None:
        """Return when the next delayed messages leave; None if there are none, or they cannot be read."""
        with self._timer_trouble():
            return self._deliveries.next_at_ms(self._tail.state.timers)
        return None

    @contextmanager
    def _timer_trouble(self) -> Iterator[None]:
        """Pause copying at damage, which `MessageStore.troubles` reports; fail if the disk does."""
        try:
            yield
        except (CorruptFrame, SegmentGone) as damage:
            self._pause_copying(damage)
        except OSError as error:
            self.fail(LogFailed("be read for delayed messages", str(error)))

    def _now_us(self) -> int:
        """Return the time of a commit group: store times never fall, also if the clock is set back."""
        return max(self._clock.now_us(), self._tail.stored_at_us)

    def _in_time(self, operations: list[Operation]) -> list[Operation]:
        """Refuse appends that waited too long: their senders have given up or soon will."""
        oldest = self._clock.monotonic_ms() - self._config.queue_wait_ms_max
        late = [each for each in operations if isinstance(each, AppendBatches) and each.submitted_ms < oldest]
        if not late:
            return operations
        why = f"a send waited more than {self._config.queue_wait_ms_max} ms for the log"
        self._refuse(late, SystemBusy(why, RETRY_AFTER_MS))
        return [each for each in operations if each not in late]

    def _refuse_rest(self) -> None:
        rest = self._inbox.empty()
        error = BrokerUnavailable(self._config.broker, self._inbox.closed_why)
        self._refuse(rest, error)
        self.confirmation.refuse_waiting(error)
        self.confirmation.refuse_awaiting(error)

    def _refuse(self, operations: Sequence[Operation], error: RocketqError) -> None:
        for operation in operations:
            operation.done(error)

    def _commit(self, operations: list[Operation]) -> None:
        plan = self._plan(operations)
        before = self._log.end
        try:
            self._log.append(plan.extents)
            self._write_units(plan)
            self._write_timers(plan)
        except OSError as error:
            self._write_failed(plan, before, error)
            return
        except LogFailed as failure:
            self._fail_plan(plan, failure)
            return
        has_bytes = bool(plan.extents)
        self._move_tail(plan, has_bytes)
        if has_bytes and self._config.flush is FlushMode.SYNC and not self._sync(len(operations)):
            return
        self.confirmation.confirm()

    def _move_tail(self, plan: CommitPlan, has_bytes: bool) -> None:
        """Plan the next commit group behind this one, which now waits to be confirmed."""
        plan.extents.clear()
        self._timers.added(plan.delayed, plan.timer_marks)
        if plan.state.timers.cursor != self._tail.state.timers.cursor:
            self._timers.passed(plan.state.timers.cursor)
        self._tail.state, self._tail.stored_at_us = plan.state, plan.stored_at_us
        if has_bytes:
            self._tail.lineage = plan.lineage
        written_ms = self._clock.monotonic_ms()
        self.confirmation.add(WrittenGroup(Shown.of(plan), self._log.end, written_ms, plan))
        with self._ends.lock:
            self._ends.written, self._ends.lineage = self._log.end, self._tail.lineage
        if has_bytes:
            self._hooks.on_log_moved()

    def _sync(self, served: int) -> bool:
        """Make the log durable up to its end; return False after a failure, when the writer has stopped."""
        end = self._log.end
        began = time.perf_counter()
        try:
            self._log.sync()
        except LogFailed as failure:
            self.fail(failure)
            self.confirmation.refuse_waiting(BrokerUnavailable(self._config.broker, failure.message))
            return False
        sync_s = time.perf_counter() - began
        self._sync_delay = SyncDelay.after(sync_s, served, len(self._inbox))
        with self._ends.lock:
            self._ends.durable = max(self._ends.durable, end)
        self._hooks.on_log_moved()
        return True

    def _fail_plan(self, plan: CommitPlan, failure: LogFailed) -> None:
        """Stop for good because of a plan that was not written."""
        self.fail(failure)
        error = BrokerUnavailable(self._config.broker, failure.message)
        self.confirmation.refuse_plan(plan, error)
        self.confirmation.refuse_waiting(error)

    def _plan(self, operations: list[Operation]) -> CommitPlan:
        tail = self._tail
        plan = CommitPlan(
            broker=self._config.broker,
            state=tail.state,
            queues=self._queues,
            cursor=self._log.cursor(self._config.segment_bytes),
            stored_at_us=self._now_us(),
            durable_end=self._ends.durable,
            epoch=tail.epoch,
            lineage=tail.lineage.begun_at(self._log.begin).with_epoch(tail.epoch, self._log.end),
            merge_bytes=self._config.merge_bytes,
        )
        for operation in operations:
            plan.add(operation)
        plan.place_waiting()
        if not self._stands_still:
            self._plan_copies(plan)
            self._plan_delivery(plan)
        return plan

    def _plan_delivery(self, plan: CommitPlan) -> None:
        """Deliver some of the delayed messages that are due."""
        state = plan.state
        with self._timer_trouble():
            delivery = self._deliveries.next(state.timers, state.topics, plan.stored_at_us // 1000)
            if delivery is not None:
                plan.place_delivery(delivery)

    def _plan_copies(self, plan: CommitPlan) -> None:
        at_ms = plan.stored_at_us // 1000
        try:
            copies = read_copies(self._log, plan.state, at_ms, self._config.publish_bytes_max)
        except CorruptFrame as damage:
            # The frame stays the next to be copied, and `MessageStore.troubles` reports the damage.
            self._pause_copying(damage)
        else:
            plan.place_copies(copies)

    def _pause_copying(self, why: RocketqError) -> None:
        self.copying_paused_by = why
        self.confirmation.refuse_awaiting(why)

    def _write_failed(self, plan: CommitPlan, before: int, error: OSError) -> None:
        """Cut the commit group off; a full disk refuses its senders, every other error stops the store."""
        try:
            self._log.truncate(before)
        except OSError as second:
            self._fail_plan(plan, LogFailed("be cut back after a failed write", str(second)))
            return
        if error.errno in FULL_ERRORS:
            full = StoreFull(self._config.broker, 100)
            self.confirmation.refuse_plan(plan, full)
            if self._has_to_copy:
                self._pause_copying(full)
            return
        self._fail_plan(plan, LogFailed("be written", str(error)))

    def _write_units(self, plan: CommitPlan) -> None:
        """Write the commit group's ConsumeQueue units behind the ends that readers see."""
        by_queue: dict[QueueKey, list[Units]] = {}
        open_blocks: dict[QueueKey, OpenBlock] = {}
        for frame in plan.frames:
            by_queue.setdefault(frame.key, []).append(units(frame.log_offset, frame.size, frame.tag_hashes))
        # This adds to `Queues.dirty`, which the snapshot reads too.
        with self._ends.lock:
            for key, runs in by_queue.items():
                made = runs[0] if len(runs) == 1 else np.concatenate(runs)
                open_blocks[key] = self._queues.make(key).write(made)
            for key, open_block in open_blocks.items():
                self._queues.make(key).written_block = open_block
        plan.open_blocks = open_blocks

    def _write_timers(self, plan: CommitPlan) -> None:
        """Write the entries of the commit group's DELAYED frames."""
        if plan.delayed:
            with self._ends.lock:
                plan.timer_marks = self._timers.write(plan.delayed)
