"""A streaming query's offset: what Spark writes into the checkpoint as JSON.

    {"base": {topic: {broker: {queue: first}}},
     "incarnations": {topic: {broker: id}},
     "topics": {topic: {broker: {queue: next}}},
     "v": 1}

`topics` is the next message of every queue: a batch reads from its start's up to its end's.

`base` is where the queues that are new in *this* batch begin. In the first batch that is
all of them. Spark does not keep `initialOffset` in the checkpoint: when the first batch is
replayed it asks again, and "latest" would by then be somewhere else, and rows lost. Later it
is the queues that a topic, a broker or a pattern brought in, and those that were started
over after a loss. So a batch is a function of the offsets in the checkpoint alone:
queue q of a batch is [base[q] of the end, or topics[q] of the start; topics[q] of the end).

`incarnations` tells a topic from a later one of the same name.

Spark compares offsets as JSON text, so the objects are built in one order: by name, and by number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark_rocketq.connections import TopicOnBroker
from pyspark_rocketq.errors import CheckpointUnreadable
from rocketq.model import MessageQueue

VERSION: Final = 1

Positions = Mapping[MessageQueue, int]


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The decoded form; a queue in `base` is in `positions` too."""

    positions: Positions = field(hash=False)
    base: Positions = field(hash=False, default_factory=dict)
    incarnations: Mapping[TopicOnBroker, str] = field(hash=False, default_factory=dict)

    @property
    def is_initial(self) -> bool:
        """Whether nothing was read yet: every queue stands where it began."""
        return self.base == self.positions

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object, always in the same order."""
        incarnations: dict[str, dict[str, str]] = {}
        for (topic, broker), incarnation in sorted(self.incarnations.items()):
            incarnations.setdefault(topic, {})[broker] = incarnation
        return {
            "base": _nested(self.base),
            "incarnations": incarnations,
            "topics": _nested(self.positions),
            "v": VERSION,
        }


def from_json(document: Any) -> StreamOffset:
    """Decode an offset; raise CheckpointUnreadable."""
    if not isinstance(document, dict):
        raise CheckpointUnreadable(f"it is {type(document).__name__}, not an object")
    version = document.get("v")
    if version != VERSION:
        raise CheckpointUnreadable(f"its version is {version!r}, and this connector reads {VERSION}")
    try:
        return StreamOffset(
            positions=_flat(document["topics"]),
            base=_flat(document["base"]),
            incarnations={
                (str(topic), str(broker)): str(incarnation)
                for topic, brokers in document["incarnations"].items()
                for broker, incarnation in brokers.items()
            },
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointUnreadable(f"{type(error).__name__}: {error}") from None


def batch_ranges(start: StreamOffset, end: StreamOffset) -> dict[MessageQueue, tuple[int, int]]:
    """Return [begin, end) of each queue that the batch has messages of; raise CheckpointUnreadable."""
    if start == end:
        # Its base told where queues of the batch before began, and there is no batch.
        return {}
    ranges = {}
    for queue, last in sorted(end.positions.items()):
        first = end.base.get(queue, start.positions.get(queue))
        if first is None:
            raise CheckpointUnreadable(f"queue {queue} has an end, {last}, and no beginning")
        if first < last:
            ranges[queue] = (first, last)
    return ranges


def with_lag(latest: dict[str, Any], reached: dict[str, Any]) -> dict[str, Any]:
    """Return the newest offsets, `latest`, with how far a batch that ends at `reached` is behind them.

    Both are JSON objects of this form. The key `lag` is added: topic to broker to queue to messages. It
    leaves out what has no number: queues that `reached` does not have, and brokers that are `away`.
    """
    away = latest.get("away", {})
    lag: dict[str, dict[str, dict[str, int]]] = {}
    for topic, brokers in latest["topics"].items():
        for broker, ends in brokers.items():
            positions = reached.get("topics", {}).get(topic, {}).get(broker, {})
            behind = {
                queue: max(0, end - positions[queue]) for queue, end in ends.items() if queue in positions
            }
            if behind and broker not in away.get(topic, ()):
                lag.setdefault(topic, {})[broker] = behind
    return latest | {"lag": lag}


def _nested(positions: Positions) -> dict[str, dict[str, dict[str, int]]]:
    nested: dict[str, dict[str, dict[str, int]]] = {}
    for queue, offset in sorted(positions.items()):
        nested.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.queue)] = offset
    return nested


def _flat(nested: Any) -> dict[MessageQueue, int]:
    return {
        MessageQueue(str(topic), str(broker), int(queue)): int(offset)
        for topic, brokers in nested.items()
        for broker, queues in brokers.items()
        for queue, offset in queues.items()
    }
