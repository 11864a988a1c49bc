"""Sending half messages: one part of a transaction to one broker (`transactions.transactions`).

A part has a number in its transaction, and the broker holds it once. So an attempt without an answer is made
again at the same broker. Otherwise this is a send: the same limits, permissions and retries
(`rocketq.producing.attempts.send_attempts`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rocketq.model import Message
from rocketq.net.broker_api import BrokerApi
from rocketq.net.send_slot import SendSlot
from rocketq.net.transaction_api import TransactionApi
from rocketq.net.transport import Transport
from rocketq.producing.attempts.parcels import Content, Parcel, stream_of
from rocketq.producing.attempts.posts import append_one
from rocketq.protocol.documents.transactions import HalfAnswer, HalfName
from rocketq.protocol.plain_message import parameters_of


@dataclass(frozen=True, slots=True)
class HalfPost:
    """How one half message is put to a broker; `parameters` are None if it has no plain form."""

    transport: Transport
    name: HalfName
    body: bytes
    parameters: Mapping[str, str] | None
    repeatable: ClassVar[bool] = True
    is_numbered: ClassVar[bool] = False

    def numbered(self, slot: SendSlot) -> HalfPost:
        # Its part of the transaction is its number.
        return self

    def content(self, parcel: Parcel, compression: str | None) -> Content:
        return stream_of(parcel, compression) if self.parameters is None else memoryview(self.body)

    def __call__(
        self, broker: BrokerApi, parcel: Parcel, content: Content, timeout_ms: int
    ) -> list[HalfAnswer]:
        (piece,) = parcel.slices
        api = TransactionApi.of(broker, self.transport)
        body = content if self.parameters is None else self.body
        queue = piece.queue.queue
        return [api.send_half(self.name, parcel.topic, queue, body, self.parameters, timeout_ms=timeout_ms)]


def half_post(transport: Transport, name: HalfName, message: Message, compression: str | None) -> HalfPost:
    """Return how a half message is sent: in its plain form if it has one and is not to be compressed."""
    is_plain = compression is None and append_one(message) is not None
    parameters = parameters_of(message) if is_plain else None
    return HalfPost(transport, name, message.body, parameters)
