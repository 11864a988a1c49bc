"""How a parcel is put to a broker, and what is made of its answer: one request of one attempt.

`APPEND` and `AppendOne` append messages. They are numbered (`send_slots`), and a broker stores a numbered
request once. `rocketq.producing.staged_send` stages messages, which may be stored twice and are published
once. `rocketq.producing.transactions.half_send` stores half messages, which a broker knows by their parts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final, Protocol, TypeVar

from rocketq.errors import UnsupportedMediaType
from rocketq.model import UNIQUE_ID_PROPERTY, Message, MessageQueue, SendResult
from rocketq.net.broker_api import BrokerApi
from rocketq.net.send_slot import SendSlot
from rocketq.producing.attempts.parcels import Content, Parcel, stream_of
from rocketq.protocol.documents.broker import SendAnswer
from rocketq.protocol.plain_message import query_of
from rocketq.protocol.send_number import NUMBER, SendNumber

R = TypeVar("R")

#: A longer query is not sent: with its path it has to fit the 8,000 bytes that every server and proxy on the
#: way should take (RFC 9110, 4.1).
PLAIN_QUERY_BYTES_MAX: Final = 7_000


class Post(Protocol[R]):
    """One request to one broker: how a parcel is put to it, and what its answer means."""

    @property
    def repeatable(self) -> bool:
        """Whether a request that the broker may have carried out can be made again without a trace."""
        ...

    @property
    def is_numbered(self) -> bool:
        """Whether a broker stores the request once, however often it comes there."""
        ...

    def numbered(self, slot: SendSlot) -> Post[R]:
        """Return the way of one parcel, with the next number of the slot if it has use for one."""
        ...

    def content(self, parcel: Parcel, compression: str | None) -> Content:
        """Return the body of the request, which all attempts share."""
        ...

    def __call__(self, broker: BrokerApi, parcel: Parcel, content: Content, timeout_ms: int) -> list[R]:
        """Make the request; return one result for each slice, in order."""
        ...


@dataclass(frozen=True, slots=True)
class Append:
    """The ordinary send: messages that are there when it is answered."""

    number: SendNumber | None = None
    repeatable: ClassVar[bool] = False

    @property
    def is_numbered(self) -> bool:
        return self.number is not None

    def numbered(self, slot: SendSlot) -> Append:
        return Append(slot.next())

    def content(self, parcel: Parcel, compression: str | None) -> Content:
        return stream_of(parcel, compression)

    def __call__(
        self, broker: BrokerApi, parcel: Parcel, content: Content, timeout_ms: int
    ) -> list[SendResult]:
        queues = [s.queue.queue for s in parcel.slices]
        answer = broker.send(parcel.topic, queues, content, number=self.number, timeout_ms=timeout_ms)
        return _results(answer, parcel)


@dataclass(frozen=True, slots=True)
class AppendOne:
    """The send of one message in its plain form (`rocketq.protocol.plain_message`), which is its parcel's."""

    body: bytes
    #: Everything but the body, as a part of the request's query; `is_numbered` says whether the number too.
    query: str
    unique_id: str | None = None
    is_numbered: bool = False
    repeatable: ClassVar[bool] = False

    def numbered(self, slot: SendSlot) -> AppendOne:
        # It was made for one message, with its number.
        return self

    def content(self, parcel: Parcel, compression: str | None) -> Content:
        return memoryview(self.body)

    def __call__(
        self, broker: BrokerApi, parcel: Parcel, content: Content, timeout_ms: int
    ) -> list[SendResult]:
        (piece,) = parcel.slices
        return [self.to_queue(broker, piece.queue, timeout_ms)]

    def to_queue(self, broker: BrokerApi, queue: MessageQueue, timeout_ms: int) -> SendResult:
        """Make the request; return where the message is."""
        try:
            answer = broker.send_one(queue.topic, queue.queue, self.query, self.body, timeout_ms=timeout_ms)
        except UnsupportedMediaType as error:
            error.hint = (
                f"Broker {broker.broker} is older than this client and takes no message in its plain form: "
                "update the brokers before their clients."
            )
            raise
        (appended,) = answer.appended
        chosen = MessageQueue(queue.topic, answer.broker, appended.queue)
        return SendResult(
            answer.status, chosen, appended.offset, 1, self.unique_id, _timers(answer)[0] or None
        )


APPEND: Final = Append()


def append_one(message: Message, slot: SendSlot | None = None) -> AppendOne | None:
    """Return how one message is sent in its plain form; None if it has to travel as a stream."""
    query = query_of(message)
    if query is None or len(query) > PLAIN_QUERY_BYTES_MAX:
        return None
    if slot is not None:
        query = f"{NUMBER}={slot.next().text}&{query}"
    return AppendOne(message.body, query, unique_id_of(message), slot is not None)


def may_be_duplicate(result: R) -> R:
    """Return a result that says so, where it can, if a broker that never answered may have another copy."""
    return replace(result, may_be_duplicate=True) if isinstance(result, SendResult) else result


def unique_id_of(message: Message) -> str | None:
    return None if message.properties is None else message.properties.get(UNIQUE_ID_PROPERTY)


def _results(answer: SendAnswer, parcel: Parcel) -> list[SendResult]:
    return [
        SendResult(
            answer.status,
            MessageQueue(parcel.topic, answer.broker, appended.queue),
            appended.offset,
            appended.count,
            timer_id=timer or None,
        )
        for appended, timer in zip(answer.appended, _timers(answer), strict=True)
    ]


def _timers(answer: SendAnswer) -> tuple[str, ...]:
    """Return the timer id of each appended batch; empty if it is not delayed or no single message."""
    return answer.timers if isinstance(answer.timers, tuple) else ("",) * len(answer.appended)
