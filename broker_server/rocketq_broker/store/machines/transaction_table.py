"""The table of transactional messages: a state machine (`machine`) that is folded from the log.

A *half message* is stored and in no queue yet: a HALF frame, held under the number of its transaction.

    TransactionBegun ─> HALF frames ─> TransactionDecided: committed ────> copies in the queues, one for each
    frame
                            │    └──────────────────────── rolled back ──> nothing
                            └> TransactionsChecked, TransactionParked, and decided after that

A producer that is asked for the outcome is *checked*: `TransactionsChecked` says that a check was handed out
(RocketMQ: TransactionalMessageServiceImpl.check). A transaction that stays undecided is *parked*; it is asked
for no more, and an operator decides it. One that salvage found damaged is parked too; it cannot be committed.

Checks fall due at a fixed time after the begin, or after the check before. So a group's transactions stand in
three rows, in each of which the first is always the next: those that were never checked, those that were, and
those that had their last check. What is due is found at the heads of the rows, however many are open.

The outcomes of the last DECIDED_MAX transactions are remembered, so that a decision that comes again changes
nothing and one that contradicts it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, NamedTuple, TypeAlias

import msgspec
from rpds import HashTrieMap

from rocketq.protocol.frame import FrameKind
from rocketq_broker.store.machines.machine import CopyName, HeldFrame, Holding, Machine
from rocketq_broker.store.machines.ordered_map import OrderedMap
from rocketq_broker.store.machines.topic_table import TopicDeleted, TopicTable

#: Outcomes that are remembered; each is in every picture of the state.
DECIDED_MAX: Final = 10_000
#: A colon is legal in no name, so copies of a transaction are never taken for those of a sink.
_NAME_PREFIX: Final = "transaction:"


class TransactionBegun(msgspec.Struct, frozen=True, tag="transaction_begun"):
    """A transaction of a producer group began; its half messages lie under `number`."""

    number: int
    id: str
    group: str
    at_ms: int


class TransactionDecided(msgspec.Struct, frozen=True, tag="transaction_decided"):
    """A transaction of so many half frames is committed, or rolled back."""

    number: int
    committed: bool
    frames: int


class TransactionsChecked(msgspec.Struct, frozen=True, tag="transactions_checked"):
    """The outcome of these transactions was asked for; of those in `last` it is asked no more."""

    numbers: tuple[int, ...]
    at_ms: int
    last: tuple[int, ...] = ()


class TransactionParked(msgspec.Struct, frozen=True, tag="transaction_parked"):
    """A transaction stayed undecided for too long; an operator is to decide it."""

    number: int
    at_ms: int


TransactionChange = TransactionBegun | TransactionDecided | TransactionsChecked | TransactionParked


@dataclass(frozen=True, slots=True)
class Transaction:
    """An undecided transaction; times are store times in milliseconds, 0 for what has not happened."""

    number: int
    id: str
    group: str
    begun_at_ms: int
    frames: tuple[HeldFrame, ...] = ()
    #: How many checks were handed out, and when the last one was.
    checks: int = 0
    checked_at_ms: int = 0
    had_last_check: bool = False
    parked_at_ms: int = 0
    #: Whether half messages of it are lost, or may be: salvage found damage while it was open.
    is_damaged: bool = False

    @property
    def is_parked(self) -> bool:
        return self.parked_at_ms > 0

    @property
    def messages(self) -> int:
        return sum(each.messages for each in self.frames)

    @property
    def name(self) -> CopyName:
        return copy_name(self.group, self.id)


def copy_name(group: str, transaction: str) -> CopyName:
    """Return what the copies of a transaction are called."""
    return f"{_NAME_PREFIX}{group}", 0, transaction


def transaction_of(name: CopyName) -> tuple[str, str] | None:
    """Return group and id of the transaction that copies are of; None if they are of something else."""
    whose, _, transaction = name
    return (whose.removeprefix(_NAME_PREFIX), transaction) if whose.startswith(_NAME_PREFIX) else None


#: Numbers of transactions, in the order in which something falls due for them.
Row: TypeAlias = "OrderedMap[int, None]"


@dataclass(frozen=True, slots=True)
class GroupTransactions:
    """The open transactions of one producer group that are not parked, by what comes next for them."""

    unchecked: Row = field(default_factory=OrderedMap)
    checked: Row = field(default_factory=OrderedMap)
    last_checked: Row = field(default_factory=OrderedMap)

    def __len__(self) -> int:
        return len(self.unchecked) + len(self.checked) + len(self.last_checked)

    def with_transaction(self, each: Transaction) -> GroupTransactions:
        name = _row_of(each)
        row: Row = getattr(self, name)
        return replace(self, **{name: row.with_entry(each.number, None)})

    def without(self, each: Transaction) -> GroupTransactions:
        name = _row_of(each)
        row: Row = getattr(self, name)
        return replace(self, **{name: row.without(each.number)})


def _row_of(each: Transaction) -> str:
    return "last_checked" if each.had_last_check else "checked" if each.checks else "unchecked"


class HalfCopy(NamedTuple):
    """A half frame of a committed transaction that is still to be copied, and the name of its copies."""

    frame: HeldFrame
    name: CopyName


_NO_GROUP: Final = GroupTransactions()


@dataclass(frozen=True, slots=True)
class TransactionTable(Machine):
    """The open transactions of one broker, what is committed and not copied yet, and the last outcomes."""

    HELD_KIND: ClassVar[FrameKind | None] = FrameKind.HALF
    CHANGES: ClassVar[tuple[type, ...]] = (
        TransactionBegun, TransactionDecided, TransactionsChecked, TransactionParked, TopicDeleted,
    )  # fmt: skip

    open: HashTrieMap[int, Transaction] = field(default_factory=HashTrieMap)
    numbers: HashTrieMap[str, int] = field(default_factory=HashTrieMap)
    #: By name; a group without an open transaction is not there.
    groups: HashTrieMap[str, GroupTransactions] = field(default_factory=HashTrieMap)
    #: Parked transactions in the order in which they were parked.
    parked: Row = field(default_factory=OrderedMap)
    #: How many half messages are undecided.
    half_messages: int = 0
    #: Whether each of the last transactions was committed, by id, in the order of their decision.
    decided: OrderedMap[str, bool] = field(default_factory=OrderedMap)
    next_number: int = 0
    #: What is committed and not copied yet, by the log offset of the half frame, in the order of the
    #: decisions.
    copying: OrderedMap[int, HalfCopy] = field(default_factory=OrderedMap)
    #: How many frames of each committed transaction are still to be copied.
    copying_left: HashTrieMap[CopyName, int] = field(default_factory=HashTrieMap)

    # --- what there is ------------------------------------------------------------------

    def find(self, transaction: str) -> Transaction | None:
        """Return an undecided transaction by its id."""
        number = self.numbers.get(transaction)
        return None if number is None else self.open[number]

    def group(self, name: str) -> GroupTransactions:
        """Return the open transactions of a group; none for a group that is not known."""
        return self.groups.get(name, _NO_GROUP)

    def in_row(self, row: Row) -> Iterator[Transaction]:
        """Yield the transactions of a row, in its order."""
        return (self.open[number] for number in row)

    # --- held frames --------------------------------------------------------------------

    def holds(self, number: int) -> bool:
        """Whether an open transaction has this number."""
        return number in self.open

    def held(self, number: int, frame: HeldFrame, at_ms: int) -> TransactionTable:
        """Return the table after a half frame."""
        before = self.open[number]
        made = replace(before, frames=(*before.frames, frame))
        return replace(
            self, open=self.open.insert(number, made), half_messages=self.half_messages + frame.messages
        )

    def due(self, at_ms: int) -> Iterator[HeldFrame]:
        """Yield the frames of committed transactions, in the order of the decisions, whatever the time."""
        return (each.frame for each in self.copying.values())

    def copied(self) -> TransactionTable:
        """Return the table after the first frame that is due was copied, or passed over as lost."""
        first = self.copying.first
        assert first is not None
        return self._copied(first)

    def _copied(self, log_offset: int) -> TransactionTable:
        each = self.copying.get(log_offset)
        assert each is not None
        left = self.copying_left[each.name] - 1
        lefts = self.copying_left.insert(each.name, left) if left else self.copying_left.remove(each.name)
        return replace(self, copying=self.copying.without(log_offset), copying_left=lefts)

    def is_copying(self, name: CopyName) -> bool:
        return name in self.copying_left

    def holdings(self) -> Iterator[Holding]:
        for number in sorted(self.open):
            each = self.open[number]
            yield Holding(each.name, False, each.frames)
        copies: dict[CopyName, list[HeldFrame]] = {}
        for frame, name in self.copying.values():
            copies.setdefault(name, []).append(frame)
        for name, frames in copies.items():
            yield Holding(name, True, tuple(frames))

    @property
    def floor(self) -> int | None:
        """The lowest log offset that an undecided or uncopied half message needs; None if there is none."""
        needed = [each.frames[0].log_offset for each in self.open.values() if each.frames]
        return min((*needed, *self.copying), default=None)

    # --- folds --------------------------------------------------------------------------

    def knows(self, change: TransactionChange | TopicDeleted) -> bool:
        """Whether what a change speaks of is here; if not, what brought it was lost."""
        match change:
            case TransactionDecided(number=number) | TransactionParked(number=number):
                return number in self.open
            case TransactionsChecked(numbers=numbers):
                return all(number in self.open for number in numbers)
            case _:
                return True

    def lost(self, change: TransactionChange | TopicDeleted) -> tuple[CopyName, int] | None:
        """Return how many half frames of a committed transaction are not here, and their name."""
        if not isinstance(change, TransactionDecided) or change.number not in self.open:
            return None
        found = self.open[change.number]
        missing = change.frames - len(found.frames)
        return (found.name, missing) if change.committed and missing > 0 else None

    def apply(self, change: TransactionChange | TopicDeleted, topics: TopicTable) -> TransactionTable:
        """Return the table after `change`; `topics` are those there were before it."""
        match change:
            case TransactionBegun(number, transaction, group, at_ms):
                made = Transaction(number, transaction, group, at_ms)
                begun = replace(
                    self,
                    numbers=self.numbers.insert(transaction, number),
                    next_number=max(self.next_number, number + 1),
                )
                return begun._with_open(made)
            case TransactionDecided(number, committed):
                return self._decided(self.open[number], committed, topics)
            case TransactionsChecked(numbers, at_ms, last):
                return self._checked(numbers, at_ms, frozenset(last))
            case TransactionParked(number, at_ms):
                before = self.open[number]
                parked = replace(before, parked_at_ms=max(1, at_ms))
                return self._without_open(before)._with_open(parked)
            case TopicDeleted(name):
                return self._without_topic(topics[name].number)

    def _with_open(self, each: Transaction) -> TransactionTable:
        """Return the table with an open transaction, last in the row where it stands now."""
        opened = replace(self, open=self.open.insert(each.number, each))
        if each.is_parked:
            return replace(opened, parked=self.parked.with_entry(each.number, None))
        group = self.group(each.group).with_transaction(each)
        return replace(opened, groups=self.groups.insert(each.group, group))

    def _without_open(self, each: Transaction) -> TransactionTable:
        closed = replace(self, open=self.open.remove(each.number))
        if each.is_parked:
            return replace(closed, parked=self.parked.without(each.number))
        group = self.groups[each.group].without(each)
        groups = self.groups.insert(each.group, group) if len(group) else self.groups.remove(each.group)
        return replace(closed, groups=groups)

    def _checked(self, numbers: Iterable[int], at_ms: int, last: frozenset[int]) -> TransactionTable:
        after = self
        for number in numbers:
            before = after.open[number]
            made = replace(
                before, checks=before.checks + 1, checked_at_ms=at_ms, had_last_check=number in last
            )
            after = after._without_open(before)._with_open(made)
        return after

    def damaged(self, numbers: Iterable[int], at_ms: int) -> TransactionTable:
        """Return the table after salvage: these may have lost half messages, and an operator looks at them.

        They are parked, because no check can make them whole.
        """
        after = self
        for number in numbers:
            before = after.open[number]
            made = replace(before, is_damaged=True, parked_at_ms=before.parked_at_ms or max(1, at_ms))
            if before.is_parked:
                after = replace(after, open=after.open.insert(number, made))
            else:
                after = after._without_open(before)._with_open(made)
        return after

    def _decided(self, found: Transaction, committed: bool, topics: TopicTable) -> TransactionTable:
        decided = self.decided.with_entry(found.id, committed)
        if len(decided) > DECIDED_MAX and decided.first is not None:
            decided = decided.without(decided.first)
        copying, lefts = self.copying, self.copying_left
        if committed:
            frames = [each for each in found.frames if topics.has_number(each.topic_number)]
            for frame in frames:
                copying = copying.with_entry(frame.log_offset, HalfCopy(frame, found.name))
            if frames:
                lefts = lefts.insert(found.name, len(frames))
        return replace(
            self._without_open(found),
            numbers=self.numbers.remove(found.id),
            half_messages=self.half_messages - found.messages,
            decided=decided,
            copying=copying,
            copying_left=lefts,
        )

    def _without_topic(self, number: int) -> TransactionTable:
        """Return the table after a topic went: nothing is copied to it any more."""
        after = self
        for log_offset, (frame, _) in self.copying.items():
            if frame.topic_number == number:
                after = after._copied(log_offset)
        return after


# --- in a picture of the state ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TransactionPicture:
    """A whole table, as a state frame and the snapshot hold it; each row's transactions are in its order."""

    open: tuple[Transaction, ...] = ()
    copying: tuple[HalfCopy, ...] = ()
    decided: tuple[tuple[str, bool], ...] = ()
    next_number: int = 0

    @staticmethod
    def of(table: TransactionTable) -> TransactionPicture:
        rows = [
            row
            for group in table.groups.values()
            for row in (group.unchecked, group.checked, group.last_checked)
        ]
        return TransactionPicture(
            tuple(each for row in (*rows, table.parked) for each in table.in_row(row)),
            tuple(table.copying.values()),
            tuple(table.decided.items()),
            table.next_number,
        )

    def table(self) -> TransactionTable:
        lefts: dict[CopyName, int] = {}
        for _, name in self.copying:
            lefts[name] = lefts.get(name, 0) + 1
        made = TransactionTable(
            numbers=HashTrieMap({each.id: each.number for each in self.open}),
            half_messages=sum(each.messages for each in self.open),
            decided=OrderedMap.of(self.decided),
            next_number=self.next_number,
            copying=OrderedMap.of((each.frame.log_offset, each) for each in self.copying),
            copying_left=HashTrieMap(lefts),
        )
        for each in self.open:
            made = made._with_open(each)
        return made
