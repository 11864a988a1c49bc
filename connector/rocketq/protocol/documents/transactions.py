"""The calls of transactional messages: JSON documents that both sides hold as values.

A transaction is named by an id that its producer makes, and lies on one broker with all its half messages.
Its *parts*, sends of half messages, are numbered from 0; one that comes again is held once (docs/protocol.md,
"Transactions").
"""

from __future__ import annotations

import msgspec

from rocketq.model import HalfMessage, Int64, MessageQueue, SendStatus, TransactionState
from rocketq.protocol.documents.broker import bytes_of
from rocketq.protocol.json_codec import prepare_documents


class HalfName(msgspec.Struct, frozen=True):
    """What half messages are part of: a transaction of a producer group, and the number of the send in it."""

    transaction: str
    group: str
    part: Int64


class HalfAnswer(msgspec.Struct, frozen=True):
    """So many half messages are held, and nobody sees them."""

    status: SendStatus
    broker: str
    topic: str
    transaction: str
    messages: Int64


class DecideRequest(msgspec.Struct, frozen=True):
    """What an operator decides in the producers' place: COMMIT or ROLLBACK."""

    state: TransactionState


class DecideAnswer(msgspec.Struct, frozen=True):
    """The outcome stands; messages of a committed transaction are in their queues."""

    transaction: str
    broker: str
    state: TransactionState


class HalfDocument(msgspec.Struct, frozen=True):
    """One half message as JSON; `key` and `body` are text, or else base64 in the fields of that name."""

    topic: str
    queue: Int64
    stored_at_us: Int64
    born_at_us: Int64 | None = None
    key: str | None = None
    key_base64: str | None = None
    tag: str | None = None
    properties: dict[str, str] | None = None
    body: str | None = None
    body_base64: str | None = None


class CheckDocument(msgspec.Struct, frozen=True):
    """A question for a producer: what became of the transaction of this half message?

    `check` counts the checks of the transaction, this one included. `message` is the first of the
    transaction; None if it cannot be read any more. Times are milliseconds since 1970.
    """

    transaction: str
    check: Int64
    begun_at_ms: Int64
    message: HalfDocument | None

    def half_message(self, broker: str) -> HalfMessage | None:
        """Return the message as a value; raise InvalidRequest for bad base64."""
        found = self.message
        if found is None:
            return None
        return HalfMessage(
            transaction_id=self.transaction,
            queue=MessageQueue(found.topic, broker, found.queue),
            body=bytes_of(found.body, found.body_base64) or b"",
            key=bytes_of(found.key, found.key_base64),
            tag=found.tag,
            properties=found.properties,
            born_at_us=found.born_at_us,
            stored_at_us=found.stored_at_us,
            begun_at_ms=self.begun_at_ms,
            check=self.check,
        )


class ChecksAnswer(msgspec.Struct, frozen=True):
    """The checks that are handed to this caller alone."""

    broker: str
    group: str
    checks: tuple[CheckDocument, ...]


class TransactionDescription(msgspec.Struct, frozen=True):
    """An undecided transaction; times are milliseconds since 1970, None for what has not happened or never
    will.

    `topics` maps each topic to the number of the transaction's messages for it. A damaged transaction
    may have lost some, and cannot be committed.
    """

    transaction: str
    broker: str
    group: str
    topics: dict[str, Int64]
    messages: Int64
    bytes: Int64
    begun_at_ms: Int64
    checks: Int64
    checked_at_ms: Int64 | None
    next_check_at_ms: Int64 | None
    parked_at_ms: Int64 | None
    is_damaged: bool = False


class TransactionListing(msgspec.Struct, frozen=True):
    """A page of the undecided transactions of one broker, the oldest first.

    `next_page` is given if there are more.
    """

    broker: str
    transactions: tuple[TransactionDescription, ...]
    next_page: Int64 | None = None


class TransactionDocument(msgspec.Struct, frozen=True):
    """An undecided transaction with its half messages, the first ones if there are too many to show."""

    description: TransactionDescription
    messages: tuple[HalfDocument, ...]


prepare_documents(__name__)
