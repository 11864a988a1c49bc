"""The history of a run, and whether what a broker holds is one that could come of it.

A send has one of three fates: *acked* at an offset, *refused* (it must not be there),
or *unknown* (no answer; it may be there once, or not). A timeout is unknown, never
refused. `check` returns every violation it finds:

    lost        an acked message is not at its acked offset
    twice       a message is at two offsets
    hole        offsets are not 0, 1, 2, …
    stranger    a message that nobody sent, or that was refused
    order       one producer's messages in a queue are not in the order it sent them
    changed     an offset once read has another message now, or none
    progress    a group stands below what it was acked, or where it never committed
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Queue = int


@dataclass(frozen=True, slots=True)
class Message:
    """The `number`-th message that a producer sent."""

    producer: str
    number: int

    def encode(self) -> bytes:
        return f"{self.producer}:{self.number}:".encode()

    @staticmethod
    def decode(body: bytes) -> Message:
        producer, number, _ = body.split(b":", 2)
        return Message(producer.decode(), int(number))


@dataclass(frozen=True, slots=True)
class Violation:
    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


@dataclass(slots=True)
class History:
    """What was asked for and answered, and what was read, up to now."""

    acked: dict[Message, tuple[Queue, int]] = field(default_factory=dict)
    unknown: dict[Message, Queue] = field(default_factory=dict)
    refused: set[Message] = field(default_factory=set)
    read: dict[tuple[Queue, int], Message] = field(default_factory=dict)
    #: By queue: the highest commit that was acked, and all that were asked for.
    committed: dict[Queue, int] = field(default_factory=dict)
    asked: dict[Queue, set[int]] = field(default_factory=lambda: defaultdict(set))

    def ack(self, messages: Sequence[Message], queue: Queue, offset: int) -> None:
        for index, message in enumerate(messages):
            self.acked[message] = (queue, offset + index)

    def doubt(self, messages: Sequence[Message], queue: Queue) -> None:
        self.unknown.update(dict.fromkeys(messages, queue))

    def refuse(self, messages: Sequence[Message]) -> None:
        self.refused.update(messages)

    def commit(self, queue: Queue, offset: int, *, acked: bool) -> None:
        self.asked[queue].add(offset)
        if acked:
            self.committed[queue] = max(self.committed.get(queue, 0), offset)

    def observe(self, found: Mapping[Queue, Sequence[tuple[int, Message]]]) -> None:
        """Remember what readers saw: from now on it must stay."""
        for queue, entries in found.items():
            for offset, message in entries:
                self.read[queue, offset] = message


def check(
    history: History,
    found: Mapping[Queue, Sequence[tuple[int, Message]]],
    progress: Mapping[Queue, int],
) -> list[Violation]:
    """Hold what every queue and the group hold now against the history; O(n)."""
    there = {(queue, offset): message for queue, entries in found.items() for offset, message in entries}
    return [
        *_lost(history, there),
        *_twice(found),
        *_holes(found),
        *_strangers(history, found),
        *_disorder(found),
        *_changed(history, there),
        *_progress(history, progress),
    ]


def _lost(history: History, there: Mapping[tuple[Queue, int], Message]) -> list[Violation]:
    return [
        Violation("lost", f"{message} was acked at {place}, there is {there.get(place)}")
        for message, place in history.acked.items()
        if there.get(place) != message
    ]


def _twice(found: Mapping[Queue, Sequence[tuple[int, Message]]]) -> list[Violation]:
    places: dict[Message, tuple[Queue, int]] = {}
    broken = []
    for queue, entries in found.items():
        for offset, message in entries:
            if message in places:
                broken.append(Violation("twice", f"{message} is at {places[message]} and {queue, offset}"))
            places[message] = (queue, offset)
    return broken


def _holes(found: Mapping[Queue, Sequence[tuple[int, Message]]]) -> list[Violation]:
    return [
        Violation("hole", f"queue {queue} has {offset} where {wanted} should be")
        for queue, entries in found.items()
        for wanted, (offset, _) in enumerate(entries)
        if offset != wanted
    ]


def _strangers(history: History, found: Mapping[Queue, Sequence[tuple[int, Message]]]) -> list[Violation]:
    broken = []
    for queue, entries in found.items():
        for offset, message in entries:
            acked = history.acked.get(message)
            sent_to = history.unknown.get(message) if acked is None else acked[0]
            if message in history.refused or sent_to != queue:
                broken.append(Violation("stranger", f"{message} at {queue, offset}"))
    return broken


def _disorder(found: Mapping[Queue, Sequence[tuple[int, Message]]]) -> list[Violation]:
    broken = []
    for queue, entries in found.items():
        last: dict[str, int] = {}
        for offset, message in entries:
            if message.number <= last.get(message.producer, -1):
                broken.append(
                    Violation("order", f"{message} at {queue, offset} is behind {last[message.producer]}")
                )
            last[message.producer] = message.number
    return broken


def _changed(history: History, there: Mapping[tuple[Queue, int], Message]) -> list[Violation]:
    return [
        Violation("changed", f"{place} was read as {message}, now it is {there.get(place)}")
        for place, message in history.read.items()
        if there.get(place) != message
    ]


def _progress(history: History, progress: Mapping[Queue, int]) -> list[Violation]:
    broken = []
    for queue, least in history.committed.items():
        if progress.get(queue, -1) < least:
            broken.append(
                Violation("progress", f"queue {queue} is at {progress.get(queue)}, acked was {least}")
            )
    for queue, offset in progress.items():
        if offset not in history.asked[queue]:
            broken.append(Violation("progress", f"queue {queue} is at {offset}, where nobody committed"))
    return broken
