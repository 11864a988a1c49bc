"""Transactions and their half messages as documents. What reads messages may wait for the disk."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from rocketq.protocol.documents.transactions import CheckDocument, HalfDocument, TransactionDescription
from rocketq_broker.store.machines.transaction_table import Transaction
from rocketq_broker.store.store import HalfMessages, TransactionOperations
from rocketq_broker.store.transaction_operations import messages_by_topic
from rocketq_broker.store.transactions.decisions import next_check_ms

#: Messages of one transaction that an answer shows, and bytes of frames that are read for them.
SHOWN_MAX: Final = 100
SHOWN_BYTES_MAX: Final = 4 << 20


def described(transactions: TransactionOperations, each: Transaction, broker: str) -> TransactionDescription:
    """Return an undecided transaction as operators see it."""
    return TransactionDescription(
        each.id,
        broker,
        each.group,
        messages_by_topic(each, transactions.topics),
        each.messages,
        sum(frame.size for frame in each.frames),
        each.begun_at_ms,
        each.checks,
        each.checked_at_ms or None,
        next_check_ms(each, transactions.policy),
        each.parked_at_ms or None,
        each.is_damaged,
    )


def check_documents(
    transactions: TransactionOperations, handed: Sequence[Transaction]
) -> tuple[CheckDocument, ...]:
    """Return a question for each transaction, with its first message; raise CorruptFrame."""
    return tuple(_check_document(transactions, each) for each in handed)


def _check_document(transactions: TransactionOperations, each: Transaction) -> CheckDocument:
    found = transactions.read(each.frames[0]) if each.frames else None
    message = None if found is None else next(_documents(found, 1))
    return CheckDocument(each.id, each.checks, each.begun_at_ms, message)


def half_documents(transactions: TransactionOperations, each: Transaction) -> tuple[HalfDocument, ...]:
    """Return the first messages of a transaction, within the bounds; raise CorruptFrame."""
    found: list[HalfDocument] = []
    size = 0
    for frame in each.frames:
        size += frame.size
        if found and (size > SHOWN_BYTES_MAX or len(found) >= SHOWN_MAX):
            break
        if (half := transactions.read(frame)) is not None:
            found += _documents(half, SHOWN_MAX - len(found))
    return tuple(found)


def _documents(half: HalfMessages, count: int) -> Iterator[HalfDocument]:
    for row in _rows(half.batch.slice(0, count)):
        key, key_base64 = _text_or_base64(row["key"])
        body, body_base64 = _text_or_base64(row["body"])
        yield HalfDocument(
            topic=half.queue.topic,
            queue=half.queue.queue,
            stored_at_us=half.stored_at_us,
            born_at_us=row["born_at"],
            key=key,
            key_base64=key_base64,
            tag=row["tag"],
            properties=None if row["properties"] is None else dict(row["properties"]),
            body=body,
            body_base64=body_base64,
        )


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    born_at = batch.schema.get_field_index("born_at")
    plain = batch.set_column(born_at, "born_at", batch.column(born_at).cast(pa.int64()))
    rows: list[dict[str, Any]] = plain.to_pylist()
    return rows


def _text_or_base64(value: bytes | None) -> tuple[str | None, str | None]:
    if value is None:
        return None, None
    try:
        return value.decode("utf-8"), None
    except UnicodeDecodeError:
        return None, base64.b64encode(value).decode("ascii")
