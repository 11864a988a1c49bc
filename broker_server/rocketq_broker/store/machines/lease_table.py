"""Messages that are leased one by one to the receivers of a group, folded from the log: a state machine.

A *message lease* hides a message from the other receivers of its group until a time. Then the message may be
leased again, with the next attempt (RocketMQ: POP, PopMessageProcessor; there a checkpoint for each answer).

    LeasesTaken ─> leased ─> LeasesSettled: acknowledged, dead, or no longer stored
         ^            │
         └────────────┘ run out, or given another time: a new lease, with a number of its own

Both changes carry the group's offsets behind what is settled without a gap, and `group_table` folds these. So
lag, resets and listings see a group that leases as they see every other. Whoever else stores an offset for a
queue ends its leases.

Times are those of the *lease clock* (`rocketq_broker.store.leases.lease_clock`), which no one can set.
`at_ms` is the highest that the log has; after a restart the clock goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

import msgspec
from rpds import HashTrieMap

from rocketq_broker.store.machines.claim_table import Place
from rocketq_broker.store.machines.due_runs import DueRuns
from rocketq_broker.store.machines.group_table import GroupDeleted, OffsetsCommitted
from rocketq_broker.store.machines.lease_changes import LeasesSettled, LeasesTaken, Settled
from rocketq_broker.store.machines.machine import Machine
from rocketq_broker.store.machines.queue_leases import CHUNK, QueueLeases, Run
from rocketq_broker.store.machines.topic_table import TopicDeleted, TopicTable

LeaseChange = LeasesTaken | LeasesSettled | OffsetsCommitted | GroupDeleted | TopicDeleted

LeaseMap: TypeAlias = "HashTrieMap[Place, QueueLeases]"
FilterMap: TypeAlias = "HashTrieMap[str, str]"

_NOTHING: Final[LeaseMap] = HashTrieMap()
_NO_FILTERS: Final[FilterMap] = HashTrieMap()


@dataclass(frozen=True, slots=True)
class LeaseTable(Machine):
    """The leased messages of this broker by group and queue."""

    CHANGES: ClassVar[tuple[type, ...]] = (
        LeasesTaken, LeasesSettled, OffsetsCommitted, GroupDeleted, TopicDeleted,
    )  # fmt: skip

    #: The queues of which something is leased, by group.
    groups: HashTrieMap[str, LeaseMap] = field(default_factory=HashTrieMap)
    #: What each group wants of a topic: the text of a filter, empty for everything.
    filters: HashTrieMap[str, FilterMap] = field(default_factory=HashTrieMap)
    at_ms: int = 0
    next_number: int = 0
    #: How many messages are leased in all.
    count: int = 0

    def of_group(self, group: str) -> LeaseMap:
        """Return the leases of a group by queue; empty if it has none."""
        return self.groups.get(group, _NOTHING)

    def of_queue(self, group: str, place: Place) -> QueueLeases | None:
        """Return what is leased of a queue; None if nothing is."""
        return self.of_group(group).get(place)

    def filter_of(self, group: str, topic: str) -> str | None:
        """Return what a group wants of a topic; None if it never received from it."""
        return self.filters.get(group, _NO_FILTERS).get(topic)

    # --- folds --------------------------------------------------------------------------

    def knows(self, change: LeaseChange) -> bool:
        match change:
            case LeasesTaken(group=group, queues=queues):
                again = (
                    Settled(each.topic, each.queue, lease.before, lease.ranges)
                    for each in queues
                    for lease in each.leases
                    if lease.before >= 0
                )
                return self._has(group, again)
            case LeasesSettled(group=group, settled=settled):
                return self._has(group, settled)
            case _:
                return True

    def _has(self, group: str, leased: Iterable[Settled]) -> bool:
        own = self.of_group(group)
        return all(
            (queue := own.get((each.topic, each.queue))) is not None and queue.has(each.number, each.ranges)
            for each in leased
        )

    def apply(self, change: LeaseChange, topics: TopicTable) -> LeaseTable:
        match change:
            case LeasesTaken():
                return self._taken(change)
            case LeasesSettled(group, at_ms, settled):
                queues = dict[Place, QueueLeases]()
                for topic, queue, number, ranges in map(_fields, settled):
                    place = topic, queue
                    before = queues.get(place) or self.of_group(group)[place]
                    queues[place] = before.settled(number, ranges)
                return replace(self._with(group, queues), at_ms=max(self.at_ms, at_ms))
            case OffsetsCommitted(group, offsets):
                return self._without(group, [(each.topic, each.queue) for each in offsets])
            case GroupDeleted(group):
                gone = self._without(group, list(self.of_group(group)))
                return replace(gone, filters=self.filters.discard(group))
            case TopicDeleted(name):
                table = self
                for group, own in self.groups.items():
                    table = table._without(group, [place for place in own if place[0] == name])
                filters = self.filters
                for group, wanted in self.filters.items():
                    filters = filters.insert(group, wanted.discard(name))
                return replace(table, filters=filters)

    def _taken(self, change: LeasesTaken) -> LeaseTable:
        own, made = self.of_group(change.group), dict[Place, QueueLeases]()
        number = self.next_number
        for topic, queue, next_offset, leases in map(_fields, change.queues):
            place = topic, queue
            after = own.get(place, QueueLeases(next_offset)).advanced(next_offset)
            for each in leases:
                if each.before >= 0:
                    after = after.settled(each.before, each.ranges)
                after = after.leased(each.number, change.until_ms, each.attempt, each.ranges)
                number = max(number, each.number + 1)
            made[place] = after
        table = replace(
            self._with(change.group, made), at_ms=max(self.at_ms, change.at_ms), next_number=number
        )
        if not change.filters:
            return table
        wanted = self.filters.get(change.group, _NO_FILTERS).update(change.filters)
        return replace(table, filters=self.filters.insert(change.group, wanted))

    def _with(self, group: str, queues: Mapping[Place, QueueLeases]) -> LeaseTable:
        """Return the table with other values of some queues; one without leases is no longer there."""
        own, count = self.of_group(group), self.count
        for place, after in queues.items():
            before = own.get(place)
            count += after.count - (0 if before is None else before.count)
            own = own.insert(place, after) if after.count else own.discard(place)
        groups = self.groups.insert(group, own) if own else self.groups.discard(group)
        return replace(self, groups=groups, count=count)

    def _without(self, group: str, places: Iterable[Place]) -> LeaseTable:
        own = self.of_group(group)
        ended = {place: QueueLeases(own[place].next) for place in places if place in own}
        return self._with(group, ended) if ended else self


def _fields(struct: msgspec.Struct) -> tuple[Any, ...]:
    return msgspec.structs.astuple(struct)


# --- in a picture of the state ------------------------------------------------------------


class PicturedRun(NamedTuple):
    """A run; its bitmap is in hexadecimal digits, because JSON has no numbers of a thousand bits."""

    number: int
    chunk: int
    mask: str
    until_ms: int
    attempt: int


class PicturedQueue(NamedTuple):
    """The leases of one queue."""

    topic: str
    queue: int
    next: int
    runs: tuple[PicturedRun, ...]

    def value(self) -> QueueLeases:
        opened: dict[int, int] = {}
        runs, due, count = {}, DueRuns(), 0
        for number, chunk, digits, until_ms, attempt in self.runs:
            mask, key = int(digits, 16), (number, chunk)
            opened[chunk] = opened.get(chunk, 0) | mask
            runs[key] = Run(mask, until_ms, attempt)
            due, count = due.with_run(until_ms, key), count + mask.bit_count()
        first = min(opened)
        begin = first * CHUNK + (opened[first] & -opened[first]).bit_length() - 1
        return QueueLeases(self.next, HashTrieMap(opened), HashTrieMap(runs), due, count, begin)


@dataclass(frozen=True, slots=True)
class LeasePicture:
    """A whole table, as a state frame and the snapshot hold it."""

    at_ms: int = 0
    next_number: int = 0
    groups: dict[str, tuple[PicturedQueue, ...]] = field(default_factory=dict)
    filters: dict[str, dict[str, str]] = field(default_factory=dict)

    @staticmethod
    def of(table: LeaseTable) -> LeasePicture:
        return LeasePicture(
            table.at_ms,
            table.next_number,
            {group: tuple(_pictured(own)) for group, own in table.groups.items()},
            {group: dict(wanted) for group, wanted in table.filters.items()},
        )

    def table(self) -> LeaseTable:
        groups: dict[str, LeaseMap] = {
            group: HashTrieMap({(each.topic, each.queue): each.value() for each in queues})
            for group, queues in self.groups.items()
        }
        filters = {group: HashTrieMap(wanted) for group, wanted in self.filters.items()}
        count = sum(each.count for own in groups.values() for each in own.values())
        return LeaseTable(HashTrieMap(groups), HashTrieMap(filters), self.at_ms, self.next_number, count)


def _pictured(own: LeaseMap) -> Iterator[PicturedQueue]:
    for (topic, queue), leases in own.items():
        runs = tuple(PicturedRun(*key, f"{run.mask:x}", *run[1:]) for key, run in leases.runs.items())
        yield PicturedQueue(topic, queue, leases.next, runs)
