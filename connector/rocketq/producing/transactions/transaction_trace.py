"""Recording the way of transactions: what a transaction tells its trace (`rocketq.tracing`).

The first message of a transaction is chosen as a message of a producer is, and the others with it. The trace
is told of each attempt to store a marked half message, and of each answer to what became of the transaction:
that of its producer, and those of check functions. Nothing that a trace does changes a transaction.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from rocketq.errors import RocketqError
from rocketq.model import Message, MessageQueue, TransactionState
from rocketq.net.broker_api import BrokerApi
from rocketq.net.send_slot import SendSlot
from rocketq.producing.attempts.parcels import Content, Parcel
from rocketq.producing.attempts.send_trace import TracedAttempt, is_traced, told_of
from rocketq.producing.transactions.half_send import HalfPost
from rocketq.protocol.documents.transactions import HalfAnswer, HalfName
from rocketq.protocol.rules.system_properties import TRACE_ON

log = logging.getLogger("rocketq.tracing")


@dataclass(frozen=True, slots=True)
class TransactionAnswer:
    """One answer to what became of a transaction; `topic` is that of its first message.

    `check` is the number of the check that was answered; None if the producer decided by itself. With an
    `error` the broker has not confirmed the answer.
    """

    transaction: str
    group: str
    topic: str
    broker: str
    state: TransactionState
    check: int | None
    begun_ms: int
    error: RocketqError | None = None


class TransactionTrace(Protocol):
    """What records the way of transactions."""

    def now_ms(self) -> int: ...

    def marked(self, topic: str, properties: dict[str, str] | None) -> dict[str, str] | None:
        """Return the properties of a message that is to be sent, with the mark if its way is recorded."""
        ...

    def attempted_half(
        self, attempt: TracedAttempt, name: HalfName, queue: MessageQueue, message: Message, is_held: bool
    ) -> None:
        """See an attempt to store a marked half message."""
        ...

    def answered(self, answer: TransactionAnswer) -> None:
        """See an answer to what became of a transaction with a marked message."""
        ...


@dataclass(slots=True)
class TracedHalfPost:
    """How one marked half message is put to a broker, such that the trace is told of each attempt."""

    trace: TransactionTrace
    post: HalfPost
    queue: MessageQueue
    message: Message
    attempts: int
    repeatable: ClassVar[bool] = True
    is_numbered: ClassVar[bool] = False

    def numbered(self, slot: SendSlot) -> TracedHalfPost:
        return self

    def content(self, parcel: Parcel, compression: str | None) -> Content:
        return self.post.content(parcel, compression)

    def __call__(
        self, broker: BrokerApi, parcel: Parcel, content: Content, timeout_ms: int
    ) -> list[HalfAnswer]:
        self.attempts += 1

        def told(attempt: TracedAttempt, answers: list[HalfAnswer] | None) -> None:
            self.trace.attempted_half(attempt, self.post.name, self.queue, self.message, answers is not None)

        ask = told_of(told, self.queue.broker, self.attempts, self.post, self.trace.now_ms)
        return ask(broker, parcel, content, timeout_ms)


def traced_half(
    trace: TransactionTrace | None, post: HalfPost, queue: MessageQueue, message: Message, attempts: int
) -> HalfPost | TracedHalfPost:
    """Return how a half message is put to a broker after so many attempts, with a trace if it is marked."""
    if trace is None or not is_traced(message):
        return post
    return TracedHalfPost(trace, post, queue, message, attempts)


def chosen_first(trace: TransactionTrace | None, topic: str, message: Message) -> Message:
    """Return the first message of a transaction, marked if the transaction's way is recorded."""
    if trace is None:
        return message
    marked = trace.marked(topic, message.properties)
    return message if marked is message.properties else replace(message, properties=marked)


def chosen_further(trace: TransactionTrace | None, topic: str, message: Message, first: Message) -> Message:
    """Return a further message of a transaction, marked as the first one is unless it says otherwise."""
    if trace is None:
        return message
    own = message.properties or {}
    if own.get(TRACE_ON, "true" if is_traced(first) else "false") != "true":
        return message
    return replace(message, properties=trace.marked(topic, {**own, TRACE_ON: "true"}))


def tell(trace: TransactionTrace, answer: TransactionAnswer) -> None:
    """Tell a trace of an answer; what it raises is logged, and the transaction goes on."""
    try:
        trace.answered(answer)
    except Exception:
        log.exception("The outcome of a transaction was not recorded; it stands all the same")
