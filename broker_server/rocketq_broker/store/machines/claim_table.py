"""Which member of a group owns which queue of this broker, folded from the log: a state machine (`machine`).

A claim stands from the change that grants it until one that releases or revokes it: no time ends a claim.
The broker releases the claims of a member when its session ends (`rocketq_broker.groups.sessions`). So a
restart loses no claim, and a queue has one owner at most at every place of the log. The epoch of a claim is a
number of the whole broker: it rises with each change that grants queues and never falls, also when a group is
deleted. (RocketMQ: RebalanceLockManager keeps the locks of ordered queues in memory, with a time each.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, NamedTuple, TypeAlias

import msgspec
from rpds import HashTrieMap

from rocketq_broker.store.machines.group_table import GroupDeleted, OffsetsCommitted, QueuesReleased
from rocketq_broker.store.machines.machine import Machine
from rocketq_broker.store.machines.topic_table import TopicDeleted, TopicTable

#: A topic and a queue id of it on this broker.
Place = tuple[str, int]


class QueuesClaimed(msgspec.Struct, frozen=True, tag="queues_claimed"):
    """A member owns these queues from now on."""

    group: str
    client_id: str
    queues: tuple[Place, ...]
    epoch: int


ClaimChange = QueuesClaimed | QueuesReleased | OffsetsCommitted | GroupDeleted | TopicDeleted


class Claim(NamedTuple):
    """The owner of a queue, and since which epoch."""

    client_id: str
    epoch: int


ClaimMap: TypeAlias = "HashTrieMap[Place, Claim]"

_NONE: Final[ClaimMap] = HashTrieMap()


@dataclass(frozen=True, slots=True)
class ClaimPicture:
    """All claims, as they are in a picture of the state: for each group (topic, queue, client id, epoch)."""

    epoch: int = 0
    groups: dict[str, tuple[tuple[str, int, str, int], ...]] = field(default_factory=dict)

    def table(self) -> ClaimTable:
        groups = {
            group: _NONE.update(
                {(topic, queue): Claim(owner, epoch) for topic, queue, owner, epoch in claims}
            )
            for group, claims in self.groups.items()
        }
        return ClaimTable(self.epoch, HashTrieMap(groups))


@dataclass(frozen=True, slots=True)
class ClaimTable(Machine):
    """The owners of queues, by group; `epoch` is the highest that was ever given."""

    CHANGES: ClassVar[tuple[type, ...]] = (
        QueuesClaimed,
        QueuesReleased,
        OffsetsCommitted,
        GroupDeleted,
        TopicDeleted,
    )

    epoch: int = 0
    #: The groups of which a queue is owned.
    groups: HashTrieMap[str, ClaimMap] = field(default_factory=HashTrieMap)

    def picture(self) -> ClaimPicture:
        return ClaimPicture(
            self.epoch,
            {
                group: tuple((topic, queue, *claim) for (topic, queue), claim in claims.items())
                for group, claims in self.groups.items()
            },
        )

    def claims(self, group: str) -> ClaimMap:
        """Return the claims of a group by queue; empty if no queue is owned."""
        return self.groups.get(group, _NONE)

    def owned_by(self, group: str, client_id: str) -> Iterator[tuple[Place, Claim]]:
        """Yield the claims of one member."""
        return (each for each in self.claims(group).items() if each[1].client_id == client_id)

    def knows(self, change: ClaimChange) -> bool:
        return True

    def apply(self, change: ClaimChange, topics: TopicTable) -> ClaimTable:
        match change:
            case QueuesClaimed(group, client_id, queues, epoch):
                claim = Claim(client_id, epoch)
                claims = self.claims(group)
                for place in queues:
                    claims = claims.insert(place, claim)
                return ClaimTable(max(self.epoch, epoch), self.groups.insert(group, claims))
            case QueuesReleased(group, client_id, queues):
                claims = self.claims(group)
                mine = [place for place in queues if place in claims and claims[place].client_id == client_id]
                return self._without(group, mine)
            case OffsetsCommitted(group, offsets, revokes=True):
                return self._without(group, [(each.topic, each.queue) for each in offsets])
            case OffsetsCommitted():
                return self
            case GroupDeleted(group):
                return replace(self, groups=self.groups.discard(group))
            case TopicDeleted(name):
                table = self
                for group, claims in self.groups.items():
                    table = table._without(group, [place for place in claims if place[0] == name])
                return table

    def _without(self, group: str, places: list[Place]) -> ClaimTable:
        if not places:
            return self
        claims = self.claims(group)
        for place in places:
            claims = claims.discard(place)
        left = self.groups.insert(group, claims) if claims else self.groups.discard(group)
        return replace(self, groups=left)
