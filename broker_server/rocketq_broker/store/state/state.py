"""The state of the broker: its state machines (`machine`), folded together, and their picture.

`State.apply` folds one change into a new State and leaves the old one as it was. A change carries what
was decided, never what was asked: the incarnation and the number of a new topic are in it, so replaying the
log decides nothing anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from rocketq.protocol.documents.broker import GroupOffset
from rocketq.protocol.documents.nameserver import DataVersion
from rocketq.protocol.frame import FrameKind
from rocketq_broker.epoch_lineage import EpochLineage
from rocketq_broker.store.log.consume_queues import QueueRange
from rocketq_broker.store.machines.claim_table import ClaimPicture, ClaimTable, QueuesClaimed
from rocketq_broker.store.machines.group_table import (
    GroupDeleted,
    GroupEntry,
    GroupSet,
    GroupTable,
    OffsetsCommitted,
    QueuesReleased,
)
from rocketq_broker.store.machines.lease_changes import LeasesSettled, LeasesTaken
from rocketq_broker.store.machines.lease_table import LeasePicture, LeaseTable
from rocketq_broker.store.machines.letter_table import LetterPicture, LettersSent, LetterTable
from rocketq_broker.store.machines.machine import CopyName, CopySkipped, HeldFrame, Holding, Machine
from rocketq_broker.store.machines.slot_table import SendsNumbered, SlotPicture, SlotTable
from rocketq_broker.store.machines.timer_table import (
    TimerCancelled,
    TimerPicture,
    TimersDelivered,
    TimerTable,
)
from rocketq_broker.store.machines.topic_table import TopicChange, TopicEntry, TopicTable
from rocketq_broker.store.machines.transaction_table import (
    TransactionChange,
    TransactionPicture,
    TransactionTable,
)
from rocketq_broker.store.sinks.changes import SinkChange
from rocketq_broker.store.sinks.table import SinkPicture, SinkTable

Change = (
    TopicChange
    | OffsetsCommitted
    | GroupSet
    | GroupDeleted
    | QueuesClaimed
    | QueuesReleased
    | LeasesTaken
    | LeasesSettled
    | SinkChange
    | CopySkipped
    | TimersDelivered
    | TimerCancelled
    | TransactionChange
    | LettersSent
    | SendsNumbered
)

#: The kinds of frames that machines hold.
HELD_KINDS: Final = frozenset({SinkTable.HELD_KIND, TransactionTable.HELD_KIND} - {None})

#: A store time behind all others, in milliseconds.
_END_OF_TIME_MS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class State:
    """All that the broker remembers at one point of the log; a value that is never changed."""

    topics: TopicTable = field(default_factory=TopicTable)
    groups: GroupTable = field(default_factory=GroupTable)
    sinks: SinkTable = field(default_factory=SinkTable)
    claims: ClaimTable = field(default_factory=ClaimTable)
    timers: TimerTable = field(default_factory=TimerTable)
    transactions: TransactionTable = field(default_factory=TransactionTable)
    letters: LetterTable = field(default_factory=LetterTable)
    leases: LeaseTable = field(default_factory=LeaseTable)
    slots: SlotTable = field(default_factory=SlotTable)

    def machines(self) -> tuple[tuple[str, Machine], ...]:
        """Return the machines above the topics by field name; the first has its held frames copied first."""
        return (
            ("groups", self.groups), ("claims", self.claims), ("sinks", self.sinks), ("timers", self.timers),
            ("transactions", self.transactions), ("letters", self.letters), ("leases", self.leases),
            ("slots", self.slots),
        )  # fmt: skip

    # --- folds --------------------------------------------------------------------------

    def apply(self, change: Change) -> State:
        """Return the state after `change`."""
        if isinstance(change, CopySkipped):
            return self._skipped(change)
        made: dict[str, Any] = {
            name: machine.apply(change, self.topics)
            for name, machine in self.machines()
            if isinstance(change, machine.CHANGES)
        }
        if isinstance(change, TopicChange):
            made["topics"] = self.topics.apply(change)
        return replace(self, **made)

    def numbered(self, change: SendsNumbered) -> State:
        """Return the state after numbered sends, as `apply` does; it is called for every small send."""
        slots = self.slots.apply(change, self.topics)
        return State(
            self.topics, self.groups, self.sinks, self.claims, self.timers, self.transactions, self.letters,
            self.leases, slots,
        )  # fmt: skip

    def knows(self, change: Change) -> bool:
        """Whether what a change speaks of is here; if not, what brought it was lost."""
        if isinstance(change, CopySkipped):
            return self._next_is(change.log_offset) is not None
        folding = (machine for _, machine in self.machines() if isinstance(change, machine.CHANGES))
        is_known = not isinstance(change, TopicChange) or self.topics.knows(change)
        return is_known and all(machine.knows(change) for machine in folding)

    def lost(self, change: Change) -> tuple[CopyName, int] | None:
        """Return what a change makes due that is not held, by name and number of frames."""
        for _, machine in self.machines():
            if isinstance(change, machine.CHANGES) and (lost := machine.lost(change)) is not None:
                return lost
        return None

    def dropped(self, after: State) -> list[int]:
        """Return the numbers of the topics that are here and no longer in `after`, one change later."""
        if len(after.topics) >= len(self.topics):
            return []
        return [number for number in self.topics.names if not after.topics.has_number(number)]

    # --- delayed messages ---------------------------------------------------------------

    def scheduled(self, log_offset: int, messages: Mapping[int, int]) -> State:
        """Return the state after a DELAYED frame with so many messages in each window of due time."""
        return replace(self, timers=self.timers.scheduled(log_offset, messages))

    # --- held frames --------------------------------------------------------------------

    def holds(self, kind: FrameKind, number: int) -> bool:
        """Whether a machine holds frames of this kind under this number."""
        return any(machine.holds(number) for _, machine in self.machines() if kind == machine.HELD_KIND)

    def held(self, kind: FrameKind, number: int, frame: HeldFrame, at_ms: int) -> State:
        """Return the state after a held frame; `holds` is true for it."""
        made: dict[str, Any] = {
            name: machine.held(number, frame, at_ms)
            for name, machine in self.machines()
            if kind == machine.HELD_KIND
        }
        return replace(self, **made)

    def due(self, at_ms: int) -> Iterator[HeldFrame]:
        """Yield the held frames that are to be copied to their queues at a store time, in order."""
        for _, machine in self.machines():
            yield from machine.due(at_ms)

    def is_due(self, at_ms: int) -> bool:
        """Whether a held frame is to be copied at a store time."""
        return next(self.due(at_ms), None) is not None

    def copied(self, at_ms: int) -> State:
        """Return the state after the first frame that is due was copied, or passed over as lost."""
        for name, machine in self.machines():
            if next(machine.due(at_ms), None) is not None:
                made: dict[str, Any] = {name: machine.copied()}
                return replace(self, **made)
        raise AssertionError("no held frame is due")

    def _next_is(self, log_offset: int) -> str | None:
        """Return the machine whose next frame to be copied lies there."""
        for name, machine in self.machines():
            frame = next(machine.due(_END_OF_TIME_MS), None)
            if frame is not None and frame.log_offset == log_offset:
                return name
        return None

    def _skipped(self, change: CopySkipped) -> State:
        name = self._next_is(change.log_offset)
        made: dict[str, Any] = {each: m.copied() for each, m in self.machines() if each == name}
        return replace(self, **made)

    def is_copying(self, name: CopyName) -> bool:
        """Whether frames of this name are still to be copied."""
        return any(machine.is_copying(name) for _, machine in self.machines())

    def holdings(self) -> Iterator[Holding]:
        """Yield all held frames, by whose they are."""
        for _, machine in self.machines():
            yield from machine.holdings()

    @property
    def floor(self) -> int | None:
        """The lowest log offset that a machine still needs; None if none needs any."""
        floors = [machine.floor for _, machine in self.machines()]
        return min((floor for floor in floors if floor is not None), default=None)


@dataclass(frozen=True, slots=True)
class Picture:
    """A whole state with its queues' ranges: the body of a state frame and of the snapshot."""

    topics: tuple[TopicEntry, ...]
    groups: dict[str, tuple[GroupOffset, ...]]
    next_number: int
    data_version: DataVersion
    ranges: dict[int, tuple[QueueRange, ...]]
    stored_at_us: int
    sinks: SinkPicture = field(default_factory=SinkPicture)
    epoch: int = 0
    #: The groups that are not as a commit alone makes them; earlier versions wrote neither these nor claims.
    group_entries: dict[str, GroupEntry] = field(default_factory=dict)
    claims: ClaimPicture = field(default_factory=ClaimPicture)
    timers: TimerPicture = field(default_factory=TimerPicture)
    transactions: TransactionPicture = field(default_factory=TransactionPicture)
    letters: LetterPicture = field(default_factory=LetterPicture)
    leases: LeasePicture = field(default_factory=LeasePicture)
    slots: SlotPicture = field(default_factory=SlotPicture)
    #: Which epochs wrote the log up to here; earlier versions did not write it.
    lineage: EpochLineage | None = None

    @staticmethod
    def of(
        state: State,
        ranges: dict[int, tuple[QueueRange, ...]],
        stored_at_us: int,
        epoch: int = 0,
        lineage: EpochLineage | None = None,
    ) -> Picture:
        topics = state.topics
        return Picture(
            tuple(topics.in_order()), state.groups.picture(), topics.next_number, topics.data_version,
            ranges, stored_at_us, SinkPicture.of(state.sinks), epoch, dict(state.groups.entries),
            state.claims.picture(), TimerPicture.of(state.timers), TransactionPicture.of(state.transactions),
            state.letters.picture(), LeasePicture.of(state.leases), SlotPicture.of(state.slots), lineage,
        )  # fmt: skip

    def state(self) -> State:
        topics = TopicTable.of(self.topics, self.next_number, self.data_version)
        groups = GroupTable.of(self.groups, self.group_entries)
        return State(
            topics, groups, self.sinks.table(), self.claims.table(), self.timers.table(),
            self.transactions.table(), self.letters.table(), self.leases.table(), self.slots.table(),
        )  # fmt: skip


_CHANGES: Final[msgspec.json.Decoder[Change]] = msgspec.json.Decoder(Change)
_PICTURES: Final = msgspec.json.Decoder(Picture)


def encode(value: Change | Picture) -> bytes:
    """Return a change or picture as a frame's body."""
    return msgspec.json.encode(value)


def decode_change(body: bytes) -> Change:
    """Read a change frame's body; raise msgspec.DecodeError."""
    return _CHANGES.decode(body)


def decode_picture(body: bytes) -> Picture:
    """Read a state frame's or the snapshot's body; raise msgspec.DecodeError."""
    return _PICTURES.decode(body)
