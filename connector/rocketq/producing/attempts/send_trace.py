"""Recording the way of some messages: what a producer tells its trace (`rocketq.tracing`) of each attempt.

A trace chooses messages before they are sent and marks them (`TRACE_ON`), so that consumers record the same
ones. Afterwards it is told of every attempt for a marked message. As with a hook, nothing that it does
changes what is sent; unlike a hook it sees the messages and where they went.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from rocketq.errors import RocketqError
from rocketq.model import HalfMessage, Message, MessageQueue, SendResult
from rocketq.producing.attempts.parcels import Parcel
from rocketq.protocol.rules.system_properties import TRACE_ON

log = logging.getLogger("rocketq.tracing")

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class TracedAttempt:
    """How one request to one broker ended; `number` is which attempt for its messages it was, from 1."""

    broker: str
    number: int
    elapsed_ms: int
    error: RocketqError | None


class SendTrace(Protocol):
    """What records the way of messages."""

    def marked(self, topic: str, properties: dict[str, str] | None) -> dict[str, str] | None:
        """Return the properties of a message that is to be sent, with the mark if its way is recorded."""
        ...

    def marked_rows(
        self, topic: str, given: Mapping[int, Mapping[str, str]], rows: int
    ) -> dict[int, dict[str, str]]:
        """Choose from the messages of a batch; return the properties of those that are recorded, by row.

        `given` has the properties of the messages that have some.
        """
        ...

    def marked_batch(self, topic: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch of schema message/1 that is to be sent, with some messages marked."""
        ...

    def attempted_one(
        self, attempt: TracedAttempt, queue: MessageQueue, message: Message, result: SendResult | None
    ) -> None:
        """See an attempt for a marked message; without a result it failed."""
        ...

    def attempted(self, attempt: TracedAttempt, parcel: Parcel, results: Sequence[SendResult] | None) -> None:
        """See an attempt for a parcel, with a result for each slice; without results it failed."""
        ...


def is_traced(message: Message | HalfMessage) -> bool:
    """Whether a message is marked."""
    return message.properties is not None and message.properties.get(TRACE_ON) == "true"


def traced_one(
    trace: SendTrace,
    queue: MessageQueue,
    message: Message,
    ask: Callable[..., SendResult],
    now_ms: Callable[[], int],
) -> Callable[..., SendResult]:
    """Return the first attempt for one message, `ask`, such that the trace is told of it."""

    def told(attempt: TracedAttempt, result: SendResult | None) -> None:
        trace.attempted_one(attempt, queue, message, result)

    return told_of(told, queue.broker, 1, ask, now_ms)


def traced(
    trace: SendTrace, parcel: Parcel, number: int, ask: Callable[..., list[R]], now_ms: Callable[[], int]
) -> Callable[..., list[R]]:
    """Return an attempt for a parcel, `ask`, such that the trace is told of it."""

    def told(attempt: TracedAttempt, results: list[Any] | None) -> None:
        trace.attempted(attempt, parcel, results)

    return told_of(told, parcel.broker, number, ask, now_ms)


def told_of(
    told: Callable[[TracedAttempt, R | None], None],
    broker: str,
    number: int,
    ask: Callable[..., R],
    now_ms: Callable[[], int],
) -> Callable[..., R]:
    """Return an attempt, `ask`, such that `told` hears how it ended, and its result if it has one."""

    def asked(*arguments: Any, **options: Any) -> R:
        begun_ms = now_ms()
        result: R | None = None
        failure: RocketqError | None = None
        try:
            result = ask(*arguments, **options)
        except RocketqError as error:
            failure = error
            raise
        finally:
            try:
                told(TracedAttempt(broker, number, now_ms() - begun_ms, failure), result)
            except Exception:
                log.exception("An attempt was not recorded; the message is sent all the same")
        return result

    return asked
