"""The topics of the broker, folded from the log: the first of the state machines (`machine`).

Every other machine is told the topics when it folds a change, so this one stands below the protocol.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import msgspec
from rpds import HashTrieMap

from rocketq.model import TopicConfig
from rocketq.protocol.documents.nameserver import DataVersion


class TopicCreated(msgspec.Struct, frozen=True, tag="topic_created"):
    """A topic came to be; its queues lie under `number`, which is never used again."""

    config: TopicConfig
    number: int
    at_ms: int


class TopicAltered(msgspec.Struct, frozen=True, tag="topic_altered"):
    """A topic's configuration was replaced."""

    config: TopicConfig
    at_ms: int


class TopicDeleted(msgspec.Struct, frozen=True, tag="topic_deleted"):
    """A topic went, with its messages and all groups' offsets in it."""

    name: str
    at_ms: int


TopicChange = TopicCreated | TopicAltered | TopicDeleted


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """A topic, the number of its queues' directory, and how many queues it ever had."""

    config: TopicConfig
    number: int
    queues: int


@dataclass(frozen=True, slots=True, eq=False)
class TopicTable(Mapping[str, TopicEntry]):
    """Topics by name, in no order."""

    CHANGES: ClassVar[tuple[type, ...]] = (TopicCreated, TopicAltered, TopicDeleted)

    entries: HashTrieMap[str, TopicEntry] = field(default_factory=HashTrieMap)
    names: HashTrieMap[int, str] = field(default_factory=HashTrieMap)
    next_number: int = 0
    data_version: DataVersion = field(default_factory=DataVersion)

    @staticmethod
    def of(entries: tuple[TopicEntry, ...], next_number: int, data_version: DataVersion) -> TopicTable:
        return TopicTable(
            HashTrieMap({entry.config.name: entry for entry in entries}),
            HashTrieMap({entry.number: entry.config.name for entry in entries}),
            next_number,
            data_version,
        )

    def __getitem__(self, name: str) -> TopicEntry:
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def in_order(self) -> list[TopicEntry]:
        """Return the topics in the order in which they were created."""
        return sorted(self.entries.values(), key=lambda entry: entry.number)

    def has_number(self, number: int) -> bool:
        """Whether a topic's queues lie under this number."""
        return number in self.names

    def knows(self, change: TopicChange) -> bool:
        """Whether the topic that a change speaks of is here."""
        match change:
            case TopicAltered(config):
                return config.name in self.entries
            case TopicDeleted(name):
                return name in self.entries
            case TopicCreated():
                return True

    def apply(self, change: TopicChange) -> TopicTable:
        """Return the table after a change."""
        version = self.data_version.next(change.at_ms)
        match change:
            case TopicCreated(config, number):
                following = max(self.next_number, number + 1)
                made = self._with(TopicEntry(config, number, config.queues))
                return replace(made, next_number=following, data_version=version)
            case TopicAltered(config):
                old = self.entries[config.name]
                altered = self._with(TopicEntry(config, old.number, max(old.queues, config.queues)))
                return replace(altered, data_version=version)
            case TopicDeleted(name):
                number = self.entries[name].number
                return replace(
                    self,
                    entries=self.entries.remove(name),
                    names=self.names.remove(number),
                    data_version=version,
                )

    def _with(self, entry: TopicEntry) -> TopicTable:
        name = entry.config.name
        return replace(
            self, entries=self.entries.insert(name, entry), names=self.names.insert(entry.number, name)
        )
