"""What the broker remembers besides messages: a pure fold over the log.

Topic configuration, group offsets and what becomes of sinks (`sinks`) are changes, each one
a frame of the log; so is each staged frame, and each published one.
`State.apply` folds one change into a new State and leaves the old one as it
was, so the writer can decide a whole group of appends against the state they
will produce, and publish that state only when the group has been written.

A change carries what was decided, never what was asked: the incarnation and the
number of a new topic are in it, so replaying the log decides nothing anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from rocketq.protocol.calls import GroupOffset
from rocketq.protocol.model import TopicConfig
from rocketq.protocol.route import DataVersion
from rocketq_broker.store.sink_changes import SinkChange
from rocketq_broker.store.sinks import SinkPicture, SinkTable, StagedFrame


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


class OffsetsCommitted(msgspec.Struct, frozen=True, tag="offsets_committed"):
    """A group's progress, as it is from now on in these queues."""

    group: str
    offsets: tuple[GroupOffset, ...]


TOPIC_CHANGES: Final = (TopicCreated, TopicAltered, TopicDeleted)

Change = TopicCreated | TopicAltered | TopicDeleted | OffsetsCommitted | SinkChange


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """A topic, the number of its queues' directory, and how many queues it ever had."""

    config: TopicConfig
    number: int
    queues: int


GroupTable = dict[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class State:
    """All topics, group offsets and sinks at one point of the log. Its dictionaries are never changed."""

    topics: dict[str, TopicEntry] = field(default_factory=dict)
    groups: dict[str, GroupTable] = field(default_factory=dict)
    next_number: int = 0
    data_version: DataVersion = field(default_factory=DataVersion)
    sinks: SinkTable = field(default_factory=SinkTable)

    def apply(self, change: Change) -> State:
        """Return the state after `change`."""
        match change:
            case TopicCreated(config, number, at_ms):
                return replace(
                    self,
                    topics={**self.topics, config.name: TopicEntry(config, number, config.queues)},
                    next_number=max(self.next_number, number + 1),
                    data_version=self.data_version.next(at_ms),
                )
            case TopicAltered(config, at_ms):
                old = self.topics[config.name]
                entry = TopicEntry(config, old.number, max(old.queues, config.queues))
                return replace(
                    self,
                    topics={**self.topics, config.name: entry},
                    data_version=self.data_version.next(at_ms),
                )
            case TopicDeleted(name, at_ms):
                return replace(
                    self,
                    topics={other: entry for other, entry in self.topics.items() if other != name},
                    groups={
                        group: {place: offset for place, offset in table.items() if place[0] != name}
                        for group, table in self.groups.items()
                    },
                    data_version=self.data_version.next(at_ms),
                    sinks=self.sinks.without_topic(self.topics[name].number),
                )
            case OffsetsCommitted(group, offsets):
                table = dict(self.groups.get(group, {}))
                table.update({(each.topic, each.queue): each.offset for each in offsets})
                return replace(self, groups={**self.groups, group: table})
            case _:
                live = {entry.number for entry in self.topics.values()}
                return replace(self, sinks=self.sinks.apply(change, live))

    def staged(self, number: int, frame: StagedFrame, at_ms: int) -> State:
        """Return the state after a staged frame of stage `number`."""
        return replace(self, sinks=self.sinks.staged(number, frame, at_ms))

    def published(self) -> State:
        """Return the state after the frame that was to be published next has been."""
        return replace(self, sinks=self.sinks.advanced())


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Where a queue begins and ends at one point of the log: it holds [min, end)."""

    min: int
    end: int


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

    @staticmethod
    def of(
        state: State, ranges: dict[int, tuple[QueueRange, ...]], stored_at_us: int, epoch: int = 0
    ) -> Picture:
        groups = {
            group: tuple(GroupOffset(topic, queue, offset) for (topic, queue), offset in table.items())
            for group, table in state.groups.items()
        }
        return Picture(
            tuple(state.topics.values()), groups, state.next_number, state.data_version, ranges,
            stored_at_us, SinkPicture.of(state.sinks), epoch,
        )  # fmt: skip

    def state(self) -> State:
        return State(
            {entry.config.name: entry for entry in self.topics},
            {
                group: {(each.topic, each.queue): each.offset for each in offsets}
                for group, offsets in self.groups.items()
            },
            self.next_number,
            self.data_version,
            self.sinks.table(),
        )


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
