"""Consumer groups, folded from the log: a state machine (`machine`) of their settings and offsets.

A group exists from the first change that names it, a commit of offsets or `GroupSet`, until `GroupDeleted`.
Logs of earlier versions have commits alone: such a group has the default settings. Who owns its queues is the
business of another machine (`claim_table`), which folds some of the same changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, TypeAlias

import msgspec
from rpds import HashTrieMap

from rocketq.model import GroupKind
from rocketq.protocol.documents.broker import GroupOffset
from rocketq.protocol.documents.groups import GroupSettings
from rocketq_broker.store.machines.lease_changes import LeasesSettled, LeasesTaken
from rocketq_broker.store.machines.machine import Machine
from rocketq_broker.store.machines.topic_table import TopicDeleted, TopicTable


class OffsetsCommitted(msgspec.Struct, frozen=True, omit_defaults=True, tag="offsets_committed"):
    """A group's progress, as it is from now on in these queues.

    With `revokes` whoever owned one of the queues owns it no longer. `kind` is who keeps the progress of the
    group; None leaves it as it was.
    """

    group: str
    offsets: tuple[GroupOffset, ...]
    revokes: bool = False
    kind: GroupKind | None = None


class QueuesReleased(msgspec.Struct, frozen=True, omit_defaults=True, tag="queues_released"):
    """A member owns these queues, each a topic and a queue id, no longer; its last commit comes with it."""

    group: str
    client_id: str
    queues: tuple[tuple[str, int], ...]
    offsets: tuple[GroupOffset, ...] = ()


class GroupSet(msgspec.Struct, frozen=True, tag="group_set"):
    """A group was created, or has other settings from now on."""

    group: str
    settings: GroupSettings


class GroupDeleted(msgspec.Struct, frozen=True, tag="group_deleted"):
    """A group went, with its settings, its offsets and its claims."""

    group: str


GroupChange = (
    OffsetsCommitted | QueuesReleased | LeasesTaken | LeasesSettled | GroupSet | GroupDeleted | TopicDeleted
)


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """What is known of a group besides its offsets."""

    settings: GroupSettings = field(default_factory=GroupSettings)
    kind: GroupKind = GroupKind.CONSUMERS


#: A group's offsets by topic and queue id.
QueueOffsetMap: TypeAlias = "HashTrieMap[tuple[str, int], int]"

_NONE: Final[QueueOffsetMap] = HashTrieMap()
_DEFAULT: Final = GroupEntry()


@dataclass(frozen=True, slots=True)
class GroupTable(Machine):
    """The groups of this broker: how far each has come, and its settings."""

    CHANGES: ClassVar[tuple[type, ...]] = (
        OffsetsCommitted,
        QueuesReleased,
        LeasesTaken,
        LeasesSettled,
        GroupSet,
        GroupDeleted,
        TopicDeleted,
    )

    #: Every group is a key, also one without offsets.
    groups: HashTrieMap[str, QueueOffsetMap] = field(default_factory=HashTrieMap)
    #: The groups that differ from GroupEntry().
    entries: HashTrieMap[str, GroupEntry] = field(default_factory=HashTrieMap)

    @staticmethod
    def of(pictured: Mapping[str, tuple[GroupOffset, ...]], entries: Mapping[str, GroupEntry]) -> GroupTable:
        return GroupTable(
            HashTrieMap({group: _moved(_NONE, offsets) for group, offsets in pictured.items()}),
            HashTrieMap(dict(entries)),
        )

    def picture(self) -> dict[str, tuple[GroupOffset, ...]]:
        return {
            group: tuple(GroupOffset(topic, queue, offset) for (topic, queue), offset in table.items())
            for group, table in self.groups.items()
        }

    def __iter__(self) -> Iterator[str]:
        return iter(self.groups)

    def __contains__(self, group: str) -> bool:
        return group in self.groups

    def offsets(self, group: str) -> QueueOffsetMap:
        """Return a group's offsets; empty for a group that never committed."""
        return self.groups.get(group, _NONE)

    def entry(self, group: str) -> GroupEntry:
        """Return what is known of a group; the defaults for a group that does not exist."""
        return self.entries.get(group, _DEFAULT)

    def knows(self, change: GroupChange) -> bool:
        return not isinstance(change, GroupDeleted) or change.group in self.groups

    def apply(self, change: GroupChange, topics: TopicTable) -> GroupTable:
        match change:
            case OffsetsCommitted(group, offsets, _, kind):
                entry = self.entry(group)
                return self._with(group, offsets, entry if kind is None else replace(entry, kind=kind))
            case QueuesReleased(group, _, _, offsets):
                return self._with(group, offsets, self.entry(group)) if offsets else self
            case LeasesTaken(group=group, offsets=offsets) | LeasesSettled(group=group, offsets=offsets):
                return self._with(group, offsets, self.entry(group)) if offsets else self
            case GroupSet(group, settings):
                return self._with(group, (), replace(self.entry(group), settings=settings))
            case GroupDeleted(group):
                return GroupTable(self.groups.discard(group), self.entries.discard(group))
            case TopicDeleted(name):
                groups = self.groups
                for group, table in self.groups.items():
                    gone = [place for place in table if place[0] == name]
                    for place in gone:
                        table = table.remove(place)
                    if gone:
                        groups = groups.insert(group, table)
                return replace(self, groups=groups)

    def _with(self, group: str, offsets: tuple[GroupOffset, ...], entry: GroupEntry) -> GroupTable:
        groups = self.groups.insert(group, _moved(self.offsets(group), offsets))
        if entry == self.entry(group):
            return replace(self, groups=groups)
        return GroupTable(groups, self.entries.insert(group, entry))


def _moved(table: QueueOffsetMap, offsets: tuple[GroupOffset, ...]) -> QueueOffsetMap:
    return table.update({(each.topic, each.queue): each.offset for each in offsets})
