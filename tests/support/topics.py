"""Topic tables for tests of state machines."""

from __future__ import annotations

from rocketq.model import TopicConfig
from rocketq.protocol.documents.nameserver import DataVersion
from rocketq_broker.store.machines.topic_table import TopicEntry, TopicTable


def topics(*numbers: int) -> TopicTable:
    """A table with a topic for each number, named after it."""
    entries = tuple(TopicEntry(TopicConfig(f"topic-{number}", 4, 4), number, 4) for number in numbers)
    return TopicTable.of(entries, max(numbers, default=-1) + 1, DataVersion())
