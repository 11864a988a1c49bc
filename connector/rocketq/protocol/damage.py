"""What a reader is told of a damaged frame: where it is, and which messages it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from rocketq.errors import CorruptFrame
from rocketq.model import MessageQueue

_RUNBOOK: Final = "docs/salvage.md"


class MessageRange(NamedTuple):
    """Messages [first, end) of one queue."""

    queue: int
    first: int
    end: int


def damaged_in_log(
    error: CorruptFrame, *, broker: str, topic: str, segment: str, log_offset: int, held: MessageRange | None
) -> CorruptFrame:
    """Return the error of a frame that a broker finds damaged in its own log.

    `held` are the messages of `topic` that the frame has; None if that is not known. Its facts are broker,
    topic, segment (the file, below the data directory) and log_offset, and queue, first_offset and
    last_offset if they are known.
    """
    facts: dict[str, Any] = {"broker": broker, "topic": topic, "segment": segment, "log_offset": log_offset}
    whose = f"Which messages of topic {topic} it has is not known."
    if held is not None:
        facts |= {"queue": held.queue, "first_offset": held.first, "last_offset": held.end - 1}
        whose = f"It has messages {held.first} to {held.end - 1} of queue {held.queue} of topic {topic}."
    return _restated(
        error,
        f"The log of broker {broker} is damaged: the frame at log offset {log_offset}, in {segment}, "
        f"cannot be read: {error.facts['why']}. {whose}",
        f"Restore that file from a copy, or salvage the log; {_RUNBOOK} says how, and what it costs.",
        {"offset": log_offset, **facts},
    )


def damaged_when_received(
    error: CorruptFrame, queue: MessageQueue, offset: int, verdict: str
) -> CorruptFrame:
    """Return the error of a frame that keeps coming damaged, though its broker tells of no damage in the log.

    Its facts are broker, topic, queue and first_offset: the offset that was asked for. `verdict` is what the
    broker said, as a sentence without its point.
    """
    return _restated(
        error,
        f"{queue} comes damaged from offset {offset} on: {error.facts['why']}. {verdict}.",
        f"Look for a proxy or faulty memory between the two; {_RUNBOOK} says what to check.",
        {"broker": queue.broker, "topic": queue.topic, "queue": queue.queue, "first_offset": offset},
    )


def _restated(error: CorruptFrame, message: str, hint: str, facts: Mapping[str, Any]) -> CorruptFrame:
    made = CorruptFrame(error.offset, error.facts["why"])
    made.message, made.hint = message, hint
    made.facts |= facts
    return made
