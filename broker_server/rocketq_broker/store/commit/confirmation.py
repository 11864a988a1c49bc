"""Written commit groups, until the confirmed end has passed them: then readers see them, and senders have
their answers.

The log writer adds a group after it has written it, and does not wait. `confirm` may be called on any
thread. It asks the rule (`ends`) how far it may go, and then, group by group: the queues' ends and the state
move for readers, and the senders are answered.

A group of a follower has no senders. Everything else about it is the same.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rocketq.errors import RocketqError
from rocketq.model import SendStatus
from rocketq_broker.store.commit.answers import answer_of, call_all
from rocketq_broker.store.commit.commit_plan import CommitPlan
from rocketq_broker.store.commit.ends import ConfirmRule, LogEnds
from rocketq_broker.store.commit.store_parts import StoreParts
from rocketq_broker.store.commit.waiting_operations import ChangeState, Operation, Receipt
from rocketq_broker.store.errors import LogFailed, StoreError
from rocketq_broker.store.log.consume_queue import OpenBlock
from rocketq_broker.store.log.consume_queues import QueueKey, Queues
from rocketq_broker.store.machines.machine import CopyName
from rocketq_broker.store.state.state import State
from rocketq_broker.store.timers.timer_index import TimerIndex
from rocketq_broker.store.timers.window_files import WindowMarks


@dataclass(frozen=True, slots=True)
class WriterHooks:
    """Whom the writer tells. Called on the thread that confirms; `on_fault` on the thread that failed.

    `on_arrival` gets the (topic, queue) pairs that have new messages, `on_commit` the confirmed log offset.
    `on_log_moved` is called when more is written or durable, on the thread that did it. `late_status` says
    what a sender is told whose messages are safe here, and wait for slaves.
    """

    on_arrival: Callable[[Collection[tuple[str, int]]], None]
    on_change: Callable[[], None]
    on_fault: Callable[[StoreError], None]
    on_commit: Callable[[int], None]
    on_log_moved: Callable[[], None] = lambda: None
    late_status: Callable[[], SendStatus] = lambda: SendStatus.FLUSH_SLAVE_TIMEOUT


@dataclass(frozen=True, slots=True)
class Shown:
    """What frames change for readers, once they are confirmed."""

    state: State
    stored_at_us: int
    epoch: int
    #: Each queue's open block behind these frames.
    open_blocks: Mapping[QueueKey, OpenBlock]
    timer_marks: WindowMarks
    #: Numbers of topics that were deleted; their queues go.
    deleted: Sequence[int]
    arrived: Collection[tuple[str, int]]
    #: How many messages went into the timer, and how many left it.
    scheduled: int = 0
    delivered: int = 0

    @staticmethod
    def of(plan: CommitPlan) -> Shown:
        """Return what a plan changes that was written."""
        return Shown(
            plan.state, plan.stored_at_us, plan.epoch, plan.open_blocks, plan.timer_marks, plan.deleted,
            {(frame.topic, frame.key[1]) for frame in plan.frames}, plan.scheduled, plan.delivered,
        )  # fmt: skip

    def show(self, queues: Queues, timers: TimerIndex) -> None:
        """Let readers see the messages; called under the lock of the ends. The state is next, then `drop`."""
        for key, open_block in self.open_blocks.items():
            queues.make(key).advance(open_block)
        timers.confirm(self.timer_marks, self.state.timers.cursor)
        timers.count(self.scheduled, self.delivered)

    def drop(self, queues: Queues) -> None:
        """Remove the files of deleted topics, which readers no longer find in the state. Raises OSError."""
        for number in self.deleted:
            queues.drop_topic(number)


@dataclass(frozen=True, slots=True)
class WrittenGroup:
    """Frames that lie in the log below `end` since `at_ms` (monotonic); `plan` has the senders, if any."""

    shown: Shown
    end: int
    at_ms: int
    plan: CommitPlan | None = None


class Confirmation:
    """The groups that wait, in the order of the log."""

    def __init__(
        self,
        parts: StoreParts,
        rule: ConfirmRule,
        local: ConfirmRule,
        hooks: WriterHooks,
        fail: Callable[[StoreError], None],
    ) -> None:
        """`rule` moves the confirmed end; `local` is the flush mode's, and `fail` stops the writer."""
        self._config = parts.config
        self._ends: LogEnds = parts.ends
        self._queues = parts.queues
        self._timers = parts.timers
        self._clock = parts.clock
        self._rule = rule
        self._local = local
        self._hooks = hooks
        self._fail = fail
        self._waiting: deque[WrittenGroup] = deque()
        self._confirming = threading.Lock()
        #: Guards the receipts of plans, which `answer_late` may take.
        self._receipts = threading.Lock()
        #: Operations that wait until the held frames of a name have been copied.
        self._awaiting: dict[CopyName, list[ChangeState]] = {}
        #: How many commit groups were confirmed.
        self.commits = 0
        #: How many numbered sends came again and were answered with their first places.
        self.repeated_sends = 0

    def add(self, group: WrittenGroup) -> None:
        """Have a written group wait; it lies behind all others."""
        with self._confirming:
            self._waiting.append(group)

    def confirm(self) -> None:
        """Move the confirmed end as far as the rule says; show and answer the groups below it."""
        with self._confirming:
            confirmed = self._rule(self._ends)
            while self._waiting and self._waiting[0].end <= confirmed:
                group = self._waiting.popleft()
                before = self._ends.state.topics.data_version
                try:
                    self._show(group)
                except OSError as error:
                    self._waiting.appendleft(group)
                    self._fail(LogFailed("be rid of a deleted topic's files", str(error)))
                    return
                if group.plan is not None:
                    self.commits += 1
                    self.repeated_sends += group.plan.repeated
                    call_all(self._answers(group.plan))
                self._announce(group.shown, group.shown.state.topics.data_version != before)
                self._hooks.on_commit(group.end)

    def _show(self, group: WrittenGroup) -> None:
        ends, shown = self._ends, group.shown
        with ends.lock:
            shown.show(self._queues, self._timers)
            ends.state = shown.state
            ends.stored_at_us, ends.epoch = shown.stored_at_us, shown.epoch
            ends.confirmed = group.end
            shown.drop(self._queues)

    def _announce(self, shown: Shown, changed: bool) -> None:
        if shown.arrived:
            self._hooks.on_arrival(shown.arrived)
        if changed:
            self._hooks.on_change()

    # --- answers ------------------------------------------------------------------------

    def _answers(self, plan: CommitPlan) -> list[tuple[Callable[[Any], None], Any]]:
        """Return the answers of a confirmed commit group, and of operations whose copies are all made now."""
        copied = self._no_longer_awaiting(plan)
        return [
            *((operation.done, answer_of(operation, plan.state)) for operation in copied),
            *((receipt.answer, SendStatus.SEND_OK) for receipt in self._unanswered(plan)),
            *plan.answers,
        ]

    def _no_longer_awaiting(self, plan: CommitPlan) -> list[ChangeState]:
        """Take the operations whose held frames are in their queues, or were given up; the others wait on."""
        for operation in plan.awaiting:
            assert operation.awaits is not None
            self._awaiting.setdefault(operation.awaits, []).append(operation)
        finished = [name for name in self._awaiting if not plan.state.is_copying(name)]
        return [operation for name in finished for operation in self._awaiting.pop(name)]

    def _unanswered(self, plan: CommitPlan) -> list[Receipt]:
        """Take the appends that no timeout has answered yet."""
        with self._receipts:
            receipts, plan.receipts = plan.receipts, []
        return receipts

    def answer_late(self) -> None:
        """Answer senders whose group waits for too long, and say for what: the disk here, or the slaves.

        Called from time to time by another thread, because the writer's own may be in the sync.
        """
        now_ms = self._clock.monotonic_ms()
        with self._confirming:
            waiting = list(self._waiting)
        safe = self._local(self._ends)
        late: list[tuple[Receipt, SendStatus]] = []
        for group in waiting:
            is_safe = group.end <= safe
            limit_ms = self._config.slave_timeout_ms if is_safe else self._config.flush_timeout_ms
            if group.plan is not None and now_ms - group.at_ms >= limit_ms:
                status = self._hooks.late_status() if is_safe else SendStatus.FLUSH_DISK_TIMEOUT
                late += [(receipt, status) for receipt in self._unanswered(group.plan)]
        for receipt, status in late:
            receipt.answer(status)

    # --- refusals -----------------------------------------------------------------------

    def refuse_awaiting(self, error: RocketqError) -> None:
        """Refuse the operations that wait for copies; the frames are copied later all the same."""
        with self._confirming:
            awaiting, self._awaiting = self._awaiting, {}
        for operations in awaiting.values():
            _refuse(operations, error)

    def refuse_waiting(self, error: RocketqError) -> None:
        """Answer the senders of every group that waits; whether their messages are stored is not known.

        The groups wait on, for readers.
        """
        with self._confirming:
            waiting = list(self._waiting)
            self._waiting = deque(WrittenGroup(each.shown, each.end, each.at_ms) for each in waiting)
        for group in waiting:
            if group.plan is not None:
                self.refuse_plan(group.plan, error)

    def refuse_plan(self, plan: CommitPlan, error: RocketqError) -> None:
        """Answer every operation of the plan with `error`, except those that the plan refused itself."""
        for receipt in self._unanswered(plan):
            receipt.operation.done(error)
        for done, value in plan.answers:
            done(value if isinstance(value, RocketqError) else error)
        _refuse(plan.awaiting, error)

    def forget(self) -> None:
        """Let go of every group that waits: a cut takes their frames, or they are folded again."""
        with self._confirming:
            self._waiting.clear()


def _refuse(operations: Sequence[Operation], error: RocketqError) -> None:
    for operation in operations:
        operation.done(error)
