"""The offsets of consumer groups, folded from the log: a state machine (`machine`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, TypeAlias

import msgspec
from rpds import HashTrieMap

from rocketq.protocol.broker_documents import GroupOffset
from rocketq_broker.store.machines.machine import Machine
from rocketq_broker.store.machines.topic_table import TopicDeleted, TopicTable


class OffsetsCommitted(msgspec.Struct, frozen=True, tag="offsets_committed"):
    """A group's progress, as it is from now on in these queues."""

    group: str
    offsets: tuple[GroupOffset, ...]


#: A group's offsets by topic and queue id.
QueueOffsetMap: TypeAlias = "HashTrieMap[tuple[str, int], int]"

_NONE: Final[QueueOffsetMap] = HashTrieMap()


@dataclass(frozen=True, slots=True)
class GroupTable(Machine):
    """How far each consumer group has come on this broker."""

    CHANGES: ClassVar[tuple[type, ...]] = (OffsetsCommitted, TopicDeleted)

    groups: HashTrieMap[str, QueueOffsetMap] = field(default_factory=HashTrieMap)

    @staticmethod
    def of(pictured: Mapping[str, tuple[GroupOffset, ...]]) -> GroupTable:
        return GroupTable(
            HashTrieMap(
                {
                    group: _NONE.update({(each.topic, each.queue): each.offset for each in offsets})
                    for group, offsets in pictured.items()
                }
            )
        )

    def picture(self) -> dict[str, tuple[GroupOffset, ...]]:
        return {
            group: tuple(GroupOffset(topic, queue, offset) for (topic, queue), offset in table.items())
            for group, table in self.groups.items()
        }

    def __iter__(self) -> Iterator[str]:
        return iter(self.groups)

    def offsets(self, group: str) -> QueueOffsetMap:
        """Return a group's offsets; empty for a group that never committed."""
        return self.groups.get(group, _NONE)

    def knows(self, change: OffsetsCommitted | TopicDeleted) -> bool:
        return True

    def apply(self, change: OffsetsCommitted | TopicDeleted, topics: TopicTable) -> GroupTable:
        match change:
            case OffsetsCommitted(group, offsets):
                moved = {(each.topic, each.queue): each.offset for each in offsets}
                return GroupTable(self.groups.insert(group, self.offsets(group).update(moved)))
            case TopicDeleted(name):
                groups = self.groups
                for group, table in self.groups.items():
                    gone = [place for place in table if place[0] == name]
                    for place in gone:
                        table = table.remove(place)
                    if gone:
                        groups = groups.insert(group, table)
                return GroupTable(groups)
