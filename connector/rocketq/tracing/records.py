"""Trace records: one thing that happened to one message, and how it lies in the trace topic.

    Pub         a producer made an attempt to send it
    SubBefore   a consumer handed it out
    SubAfter    a consumer learned what became of it
    EndTransaction   a producer said what became of its transaction: by itself, or because it was asked

The names of the types are RocketMQ's (TraceType). A record is a message of `RMQ_SYS_TRACE_TOPIC`: its body is
JSON, its tag the type. Its key is the id that the producer gave the traced message, and the id of the traced
message's place is a further key, so both ids find it. Without an id of its own a message has its place alone.
The id of its transaction is a further key too, and the only one of EndTransaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec
import pyarrow as pa

from rocketq.model import Message
from rocketq.protocol.message_schema import from_messages
from rocketq.protocol.rules.system_properties import KEYS

ACKNOWLEDGED: Final = "ACKNOWLEDGED"
FAILED: Final = "FAILED"


class TraceType(StrEnum):
    """RocketMQ's TraceType, as far as there is such a thing here."""

    PUB = "Pub"
    SUB_BEFORE = "SubBefore"
    SUB_AFTER = "SubAfter"
    END_TRANSACTION = "EndTransaction"


class TraceRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One record. What is not known, or means nothing for its type, is None."""

    type: TraceType
    #: When it began: the attempt, or the handling. Of SubAfter, when the outcome was known. In µs since 1970.
    at_us: int
    topic: str
    broker: str
    #: The program that says so: a member's client id, or its client's.
    client_id: str
    #: 1 for the first attempt of this producer, or of this member of the group.
    attempt: int
    #: The id that the producer gave the message.
    unique_id: str | None = None
    #: The id of its place, once it has one; of a delayed message the timer id.
    message_id: str | None = None
    #: The consumer group, or the producer group of a transaction.
    group: str | None = None
    #: The transaction that the message is part of; its answers have the same.
    transaction: str | None = None
    #: Which check of the transaction was answered; None if the producer decided by itself.
    check: int | None = None
    #: How long the attempt took, or the time from handing out to the outcome.
    elapsed_ms: int | None = None
    #: Of Pub the status or the error's code, of SubAfter ACKNOWLEDGED or FAILED, of
    #: EndTransaction COMMIT, ROLLBACK or UNKNOWN: with an error the broker has not confirmed it.
    outcome: str | None = None
    error: str | None = None
    key: str | None = None
    tag: str | None = None
    body_bytes: int | None = None
    stored_at_us: int | None = None

    @property
    def ids(self) -> tuple[str | None, ...]:
        """What the record is found by."""
        return self.unique_id, self.message_id, self.transaction


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(TraceRecord)


def record_batch(records: Sequence[TraceRecord]) -> pa.RecordBatch:
    """Return records as messages of the trace topic."""
    return from_messages([_message(each) for each in records])


def _message(record: TraceRecord) -> Message:
    further = " ".join(each for each in (record.message_id, record.transaction) if each is not None)
    return Message(
        _ENCODER.encode(record),
        (record.unique_id or record.message_id or record.transaction or "").encode(),
        record.type.value,
        {KEYS: further} if further else None,
        record.at_us,
    )


def read_record(body: bytes) -> TraceRecord | None:
    """Return the record in a message of the trace topic; None for what is no record, such as RocketMQ's."""
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
