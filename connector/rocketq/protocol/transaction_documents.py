"""The calls of transactional messages: JSON documents that both sides hold as values.

A transaction is named by an id that its producer makes, and lies on one broker with all its half messages.
Its *parts*, sends of half messages, are numbered from 0; one that comes again is held once (docs/protocol.md,
"Transactions").
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from rocketq.model import Int64, SendStatus
from rocketq.protocol.broker_documents import MessageDocument
from rocketq.protocol.codec import prepare_documents


class TransactionState(StrEnum):
    """What became of a local transaction (RocketMQ: LocalTransactionState); UNKNOWN: not decided yet."""

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class HalfName:
    """What half messages are part of: a transaction of a producer group, and the number of the send in it."""

    transaction: str
    group: str
    part: Int64


@dataclass(frozen=True, slots=True)
class HalfAnswer:
    """So many half messages are held, and nobody sees them."""

    status: SendStatus
    broker: str
    topic: str
    transaction: str
    messages: Int64


@dataclass(frozen=True, slots=True)
class DecideRequest:
    """Commit or roll back a transaction, as its producer group."""

    group: str


@dataclass(frozen=True, slots=True)
class DecideAnswer:
    """The outcome stands; messages of a committed transaction are in their queues."""

    transaction: str
    broker: str
    state: TransactionState


@dataclass(frozen=True, slots=True)
class CheckDocument:
    """A question for a producer: what became of the transaction of this half message?

    `check` counts the checks of the transaction, this one included. `message` is the first of the
    transaction, with offset -1. Times are milliseconds since 1970.
    """

    transaction: str
    topic: str
    check: Int64
    begun_at_ms: Int64
    message: MessageDocument


@dataclass(frozen=True, slots=True)
class ChecksAnswer:
    """The checks that are handed to this caller alone."""

    broker: str
    group: str
    checks: tuple[CheckDocument, ...] = field(hash=False)


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """An undecided transaction; times are milliseconds since 1970, None for what has not happened or never
    will.

    `topics` maps each topic to the number of the transaction's messages for it.
    """

    transaction: str
    broker: str
    group: str
    topics: dict[str, Int64] = field(hash=False)
    messages: Int64
    bytes: Int64
    begun_at_ms: Int64
    checks: Int64
    checked_at_ms: Int64 | None
    next_check_at_ms: Int64 | None
    parked_at_ms: Int64 | None


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A page of the undecided transactions of one broker, the oldest first.

    `next_page` is given if there are more.
    """

    broker: str
    transactions: tuple[TransactionDescription, ...] = field(hash=False)
    next_page: Int64 | None = None


@dataclass(frozen=True, slots=True)
class TransactionDocument:
    """An undecided transaction with the first of its half messages."""

    description: TransactionDescription
    messages: tuple[MessageDocument, ...] = field(hash=False)


prepare_documents(__name__)
