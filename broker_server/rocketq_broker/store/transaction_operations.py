"""The store's door for transactional messages: half messages, outcomes, checks, and what stays undecided.

A half message is stored by an append with a `HalfName`, as every other message is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa

from rocketq.errors import CorruptFrame
from rocketq.errors.transaction_errors import TransactionNotFound
from rocketq.model import MessageQueue, TransactionState
from rocketq.protocol.arrow.stream_reader import read_stored
from rocketq.protocol.documents.transactions import HalfName
from rocketq.protocol.frame import FrameKind
from rocketq_broker.store.commit.small_batches import QueueBatch
from rocketq_broker.store.commit.store_parts import StoreParts
from rocketq_broker.store.commit.waiting_operations import AppendBatches, ChangeState, Hold, Operation
from rocketq_broker.store.config import TransactionPolicy
from rocketq_broker.store.machines.machine import HeldFrame
from rocketq_broker.store.machines.topic_table import TopicTable
from rocketq_broker.store.machines.transaction_table import (
    Transaction,
    TransactionsChecked,
    TransactionTable,
    copy_name,
)
from rocketq_broker.store.state.state import Change, State
from rocketq_broker.store.transactions import decisions
from rocketq_broker.store.transactions.parked_batches import PARKING_TOPIC, parked_batch

Done = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class HalfMessages:
    """The messages of a half frame, and where they are to go."""

    queue: MessageQueue
    stored_at_us: int
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a transaction.

    `messages` of each topic were decided by this call; there are none if it had been decided before.
    """

    state: TransactionState
    messages: Mapping[str, int] = field(hash=False)


class TransactionOperations:
    """What can be asked of the transactions of one store."""

    def __init__(self, parts: StoreParts, submit: Callable[[Operation], None]) -> None:
        self._broker = parts.config.broker
        self._parts = parts
        self._submit = submit
        #: When transactions are checked, and how many there may be.
        self.policy: TransactionPolicy = parts.config.transactions

    @property
    def table(self) -> TransactionTable:
        """The transactions as they are now; a value that never changes."""
        return self._parts.ends.state.transactions

    @property
    def topics(self) -> TopicTable:
        """The topics as they are now."""
        return self._parts.ends.state.topics

    def find(self, transaction: str) -> Transaction:
        """Return an undecided transaction; raise TransactionNotFound."""
        found = self.table.find(transaction)
        if found is None:
            raise TransactionNotFound(transaction, self._broker)
        return found

    def read(self, frame: HeldFrame) -> HalfMessages | None:
        """Read a half frame, None if its topic was deleted or salvage lost it; it may wait for the disk.

        Raises CorruptFrame.
        """
        topic = self.topics.names.get(frame.topic_number)
        if topic is None:
            return None
        try:
            found = self._parts.log.frame(frame.log_offset, frame.size)
        except CorruptFrame:
            if self._parts.log.is_lost(frame.log_offset):
                return None
            raise
        queue = MessageQueue(topic, self._broker, frame.queue)
        return HalfMessages(queue, found.header.stored_at_us, read_stored(found.body))

    # --- half messages and outcomes -----------------------------------------------------

    def hold(self, name: HalfName) -> Hold:
        """Return how an append is held: its transaction is begun where it is new, and holds its frame."""

        def begin(state: State, at_ms: int) -> Change | None:
            return decisions.begin(state.transactions, name, self.policy, self._broker, at_ms)

        def number(state: State) -> int:
            return state.transactions.numbers[name.transaction]

        def holds(state: State) -> bool:
            return decisions.has_part(state.transactions, name)

        return Hold(FrameKind.HALF, begin, number, holds)

    def decide(self, transaction: str, group: str, outcome: TransactionState, done: Done) -> None:
        """Commit or roll back; `done` has the Outcome, once all messages are in their queues, or the refusal.

        Raises as `decisions.decide`.
        """
        counted: dict[str, int] = {}

        def decide(state: State) -> Change | None:
            change = decisions.decide(state.transactions, transaction, group, outcome, self._broker)
            if change is not None:
                counted.update(messages_by_topic(state.transactions.open[change.number], state.topics))
            return change

        name = copy_name(group, transaction)
        self._submit(ChangeState(decide, lambda state: Outcome(outcome, counted), done, awaits=name))

    # --- checks -------------------------------------------------------------------------

    def has_check(self, group: str, at_ms: int) -> bool:
        """Whether a check of a group is due."""
        return next(decisions.due_checks(self.table, group, self.policy, at_ms), None) is not None

    def groups_to_check(self, at_ms: int) -> list[str]:
        """Return the producer groups for which a check is due."""
        return decisions.groups_to_check(self.table, self.policy, at_ms)

    def hand_out(self, group: str, count: int, at_ms: int, done: Done) -> None:
        """Hand out at most `count` checks that are due; `done` has the transactions as they are then."""
        handed: tuple[int, ...] = ()

        def decide(state: State) -> TransactionsChecked | None:
            nonlocal handed
            change = decisions.hand_out(state.transactions, group, self.policy, at_ms, count)
            handed = () if change is None else change.numbers
            return change

        def answer(state: State) -> tuple[Transaction, ...]:
            # The state is that of the moment after the change, in which each is still open.
            return tuple(state.transactions.open[number] for number in handed)

        self._submit(ChangeState(decide, answer, done))

    # --- what stays undecided -----------------------------------------------------------

    def to_park(self, at_ms: int, count: int) -> list[Transaction]:
        """Return transactions that are to be parked, at most `count`."""
        return list(islice(decisions.to_park(self.table, self.policy, at_ms), count))

    def to_give_up(self, at_ms: int, count: int) -> list[Transaction]:
        """Return parked transactions that are to be rolled back, at most `count`."""
        return list(islice(decisions.to_give_up(self.table, self.policy, at_ms), count))

    def parked_batches(self, each: Transaction) -> list[QueueBatch]:
        """Return copies of a transaction's messages for the parking topic; it may wait for the disk.

        What cannot be read is left out. Whoever reads or commits the transaction meets the damage.
        """
        batches: list[QueueBatch] = []
        for frame in each.frames:
            with suppress(CorruptFrame):
                found = self.read(frame)
                if found is not None:
                    batches.append(parked_batch(found.batch, each, frame, found.queue.topic))
        return batches

    def park(self, each: Transaction, batches: Sequence[QueueBatch], done: Done) -> None:
        """Park a transaction, and store its `parked_batches` in the parking topic, which exists.

        `done` has an AppendOutcome, or TopicNotFound.
        """

        def decide(state: State, at_ms: int) -> Change | None:
            return decisions.park(state.transactions, each.id, at_ms)

        size = sum(batch.sent_bytes for batch in batches)
        submitted_ms = self._parts.clock.monotonic_ms()
        self._submit(AppendBatches(PARKING_TOPIC, batches, size, submitted_ms, done, decide=decide))


def messages_by_topic(each: Transaction, topics: TopicTable) -> dict[str, int]:
    """Return how many messages of a transaction are for each topic that still exists."""
    counted: dict[str, int] = {}
    for frame in each.frames:
        topic = topics.names.get(frame.topic_number)
        if topic is not None:
            counted[topic] = counted.get(topic, 0) + frame.messages
    return counted
