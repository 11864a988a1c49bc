"""Where reading begins and ends, as a query may say it.

    earliest | latest | group                       for every queue
    {"topic": {"broker": {"0": 17, "1": -2}}}       an offset for each queue; -2 earliest, -1 latest
    {"topic": {"broker": 1700000000000}}            an integer in place of an object is for all below it

Offsets and times (milliseconds since 1970, UTC) share the one nested form, which is
Kafka's with the broker's name between topic and queue, because a queue number is only
unique on its broker.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from rocketq.errors import InvalidConfiguration
from rocketq.model import QUEUE_COUNT_MAX, MessageQueue, is_legal_name

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1

#: What one integer under a topic or a broker is stored as: it is for all queues below.
_ALL: Final = None


class Edge(StrEnum):
    """A position that needs no numbers."""

    EARLIEST = "earliest"
    LATEST = "latest"
    GROUP = "group"


class NoMatch(StrEnum):
    """What a starting time means in a queue that has nothing at or after it (Kafka's strategy option)."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class PerQueue:
    """A number for each queue, some given for a whole topic or broker at once."""

    option: str
    numbers: Mapping[tuple[str, str | None, int | None], int] = field(hash=False)

    def get(self, queue: MessageQueue) -> int | None:
        """Return the number given for this queue, its broker or its topic, the nearest first."""
        for place in (
            (queue.topic, queue.broker, queue.queue),
            (queue.topic, queue.broker, _ALL),
            (queue.topic, _ALL, _ALL),
        ):
            if place in self.numbers:
                return self.numbers[place]
        return None

    def topics(self) -> set[str]:
        return {topic for topic, _, _ in self.numbers}

    def queues(self) -> set[MessageQueue]:
        """Return the queues that are named one by one."""
        return {
            MessageQueue(topic, broker, queue)
            for topic, broker, queue in self.numbers
            if broker is not None and queue is not None
        }


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """Exact offsets; EARLIEST_OFFSET and LATEST_OFFSET stand for the edges."""

    offsets: PerQueue


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first message stored at or after one time, in every queue."""

    at_ms: int
    no_match: NoMatch


@dataclass(frozen=True, slots=True)
class AtTimes:
    """The first message stored at or after a time, given for each queue."""

    at_ms: PerQueue
    no_match: NoMatch


Position = Edge | AtOffsets | AtTime | AtTimes


def parse_per_queue(option: str, text: str, lowest: int) -> PerQueue:
    """Parse the nested JSON form; raise InvalidConfiguration that names the place in it."""
    document = _json_object(option, text)
    numbers: dict[tuple[str, str | None, int | None], int] = {}
    for topic, below in document.items():
        _legal(option, text, "topic", topic)
        if not isinstance(below, dict):
            numbers[topic, _ALL, _ALL] = _number(option, text, topic, below, lowest)
            continue
        for broker, deeper in below.items():
            _legal(option, text, "broker", broker)
            if not isinstance(deeper, dict):
                numbers[topic, broker, _ALL] = _number(option, text, f"{topic}/{broker}", deeper, lowest)
                continue
            for queue, value in deeper.items():
                place = f"{topic}/{broker}/{queue}"
                numbers[topic, broker, queue_number(option, text, queue)] = _number(
                    option, text, place, value, lowest
                )
    return PerQueue(option, numbers)


def parse_assignment(option: str, text: str) -> dict[str, dict[str | None, frozenset[int]]]:
    """Parse `assign`: {topic: {broker: [queues]}}, or {topic: [queues]} for every broker (key None)."""
    document = _json_object(option, text)
    assigned: dict[str, dict[str | None, frozenset[int]]] = {}
    for topic, below in document.items():
        _legal(option, text, "topic", topic)
        by_broker = below if isinstance(below, dict) else {_ALL: below}
        assigned[topic] = {}
        for broker, queues in by_broker.items():
            if broker is not None:
                _legal(option, text, "broker", broker)
            if not isinstance(queues, list) or not queues:
                raise InvalidConfiguration(
                    option,
                    text,
                    f"{topic!r} needs a list of queue numbers, not {queues!r}",
                    hint=_ASSIGN_HINT,
                )
            assigned[topic][broker] = frozenset(queue_number(option, text, queue) for queue in queues)
    return assigned


def queue_number(option: str, text: str, value: Any) -> int:
    """Return a queue id from JSON, where a key is text and a list item a number."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < QUEUE_COUNT_MAX:
        raise InvalidConfiguration(
            option, text, f"{value!r} is no queue number", hint="Queues are numbered from 0 on each broker."
        )
    return value


_ASSIGN_HINT: Final = (
    'Use {"topic": {"broker-a": [0, 1]}}, or {"topic": [0, 1]} for those queues on every broker.'
)
_NESTED_HINT: Final = (
    'Use {"topic": {"broker-a": {"0": 17}}}; an integer in place of an object is for all queues below it.'
)


def _json_object(option: str, text: str) -> dict[str, Any]:
    try:
        document = json.loads(text, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise InvalidConfiguration(option, text, f"not valid JSON: {error}", hint=_hint(option)) from None
    if not isinstance(document, dict) or not document:
        raise InvalidConfiguration(option, text, "not a JSON object with a topic in it", hint=_hint(option))
    return document


def _hint(option: str) -> str:
    return _ASSIGN_HINT if option == "assign" else _NESTED_HINT


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name appears twice in one object")
    return found


def _legal(option: str, text: str, kind: str, name: str) -> None:
    if not is_legal_name(name):
        raise InvalidConfiguration(option, text, f"{name!r} is no legal {kind} name", hint=_hint(option))


def _number(option: str, text: str, place: str, value: Any, lowest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        raise InvalidConfiguration(
            option, text, f"{place} is {value!r}, not an integer of at least {lowest}", hint=_NESTED_HINT
        )
    return value


def parse_position(option: str, text: str, refused: Mapping[Edge, str]) -> Edge | AtOffsets:
    """Parse an edge or the JSON form; `refused` gives the reason for each edge that has no meaning here.

    The offset that stands for a refused edge is refused with the same words.
    """
    word = text.strip().lower()
    if word in {edge.value for edge in Edge}:
        edge = Edge(word)
        if edge in refused:
            raise InvalidConfiguration(option, text, refused[edge])
        return edge
    if not text.lstrip().startswith("{"):
        legal = ", ".join(edge.value for edge in Edge if edge not in refused)
        raise InvalidConfiguration(
            option, text, "not a known position", hint=f"Use {legal}, or JSON. {_NESTED_HINT}"
        )
    offsets = parse_per_queue(option, text, lowest=EARLIEST_OFFSET)
    for edge, number in _STANDS_FOR.items():
        if edge in refused and number in offsets.numbers.values():
            raise InvalidConfiguration(option, text, f"{number} means {edge.value}: {refused[edge]}")
    return AtOffsets(offsets)


_STANDS_FOR: Final = {Edge.EARLIEST: EARLIEST_OFFSET, Edge.LATEST: LATEST_OFFSET}
