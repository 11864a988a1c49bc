"""From a DataFrame's batches to message batches with an address: pure Arrow, no loop over rows.

A sink's columns:

    value       string or binary, required, never null
    key         string or binary
    tag         string
    properties  map<string, string>
    deliver_at  timestamp; when the message is to be delivered; null: at once
    topic       string; required where the option `topic` is not given, which beats it
    broker      string  ┐ both or neither; null in both: the option `queueSelection` chooses
    queue       int     ┘
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from pyspark_rocketq.errors import SchemaMismatch
from rocketq.errors import InvalidBatch
from rocketq.model import MessageQueue
from rocketq.protocol.column_values import int64s_of, mask_of, number, numbers
from rocketq.protocol.message_schema import MESSAGE_COLUMNS
from rocketq.protocol.rules.delivery_time import DELIVER_AT

_TEXT: Final = (StringType, BinaryType)
SINK_COLUMNS: Final[dict[str, tuple[type[DataType], ...]]] = {
    "value": _TEXT,
    "key": _TEXT,
    "tag": (StringType,),
    "properties": (MapType,),
    DELIVER_AT: (TimestampType,),
    "topic": (StringType,),
    "broker": (StringType,),
    "queue": (IntegerType, ShortType, LongType),
}

#: The sink columns that are the message's own; the others say where a row goes.
_MESSAGE_COLUMNS: Final = tuple(column for column in MESSAGE_COLUMNS if column.row_name in SINK_COLUMNS)


def check_sink_schema(schema: StructType, topic_option: str | None, hashes: bool) -> None:
    """Raise SchemaMismatch for a column the sink does not have, cannot take, or misses.

    `hashes` is whether queues are chosen by the hash of the key.
    """
    for field in schema.fields:
        allowed = SINK_COLUMNS.get(field.name)
        if allowed is None:
            raise SchemaMismatch(field.name, "is none of the sink's columns", hint=_unknown_hint(field.name))
        if not isinstance(field.dataType, allowed) or not _is_text_map(field.dataType):
            wanted = " or ".join(_named(kind) for kind in allowed)
            raise SchemaMismatch(
                field.name,
                f"has the type {field.dataType.simpleString()}, and must be {wanted}",
                hint="Cast it, or use to_json for a structure.",
            )
    names = schema.fieldNames()
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise SchemaMismatch(min(repeated), "appears twice")
    _check_present(set(names), topic_option, hashes)


def _check_present(names: set[str], topic_option: str | None, hashes: bool) -> None:
    if "value" not in names:
        raise SchemaMismatch(
            "value", "is missing", hint='For example .selectExpr("to_json(struct(*)) AS value").'
        )
    if topic_option is None and "topic" not in names:
        raise SchemaMismatch("topic", "is missing", hint='Set .option("topic", ...), or add the column.')
    for name, other in (("queue", "broker"), ("broker", "queue")):
        if name in names and other not in names:
            raise SchemaMismatch(
                other, f"is missing beside {name!r}", hint="A queue is named by its broker and its number."
            )
    if hashes and "key" not in names:
        raise SchemaMismatch("key", "is missing", hint="queueSelection=hash chooses a queue by the key.")


def _unknown_hint(name: str) -> str:
    listed = f"Columns: {', '.join(SINK_COLUMNS)}."
    if name in ("offset", "timestamp", "born_timestamp", "message_id"):
        return f"The broker gives a message its place and time: drop the column. {listed}"
    near = difflib.get_close_matches(name.lower(), SINK_COLUMNS, n=1)
    return f"Did you mean {near[0]}?" if near else listed


def _is_text_map(kind: DataType) -> bool:
    if not isinstance(kind, MapType):
        return True
    return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)


def _named(kind: type[DataType]) -> str:
    return "map<string,string>" if kind is MapType else kind().simpleString()


@dataclass(frozen=True, slots=True)
class Destination:
    """Where rows go: a topic, and a queue of it if the rows name one."""

    topic: str
    queue: MessageQueue | None = None


def addressed(
    batch: pa.RecordBatch, topic_option: str | None
) -> Iterator[tuple[Destination, pa.RecordBatch]]:
    """Yield the batch's rows by destination, as batches with the columns of schema message/1.

    Rows of one destination keep their order. Raises InvalidBatch for a null value, topic or half an
    address, before anything is yielded.
    """
    _require(batch, "value", "A message needs a value: drop the row, or send an empty one with coalesce().")
    messages = _messages(batch)
    if topic_option is None:
        _require(batch, "topic", "Every row needs a topic: drop the row, or set the option topic.")
    if topic_option is not None and "queue" not in batch.schema.names:
        return iter([(Destination(topic_option), messages)])
    return iter(list(_divided(batch, messages, topic_option)))


def _divided(
    batch: pa.RecordBatch, messages: pa.RecordBatch, topic_option: str | None
) -> Iterator[tuple[Destination, pa.RecordBatch]]:
    rows = batch.num_rows
    codes = np.zeros(rows, dtype=np.int64)
    topics = [topic_option or ""]
    if topic_option is None:
        encoded = pc.cast(batch.column("topic"), pa.string()).dictionary_encode()
        topics = encoded.dictionary.to_pylist()
        codes = int64s_of(encoded.indices.cast(pa.int64()))
    brokers: list[str] = []
    queue_codes = np.zeros(rows, dtype=np.int64)
    if "queue" in batch.schema.names:
        brokers, queue_codes = _queue_codes(batch)
    span = int(queue_codes.max(initial=0)) + 1
    combined = codes * span + queue_codes
    # A stable sort brings each destination's rows together and keeps their order.
    order = np.argsort(combined, kind="stable")
    values, starts = np.unique(combined[order], return_index=True)
    gathered = messages if len(values) <= 1 else messages.take(numbers(order))
    ends = [*starts[1:].tolist(), rows]
    for value, begin, end in zip(values.tolist(), starts.tolist(), ends, strict=True):
        topic, queue_code = topics[value // span], value % span
        queue = None
        if queue_code:
            broker, queue_id = divmod(queue_code - 1, _QUEUE_SPAN)
            queue = MessageQueue(topic, brokers[broker], queue_id)
        yield Destination(topic, queue), gathered.slice(begin, end - begin)


#: Queue numbers lie below this (QUEUE_COUNT_MAX), so broker and number fit one code.
_QUEUE_SPAN: Final = 16_384


def _queue_codes(batch: pa.RecordBatch) -> tuple[list[str], np.ndarray]:
    """Return the brokers, and for each row 0, or 1 + broker index * _QUEUE_SPAN + queue."""
    broker = pc.cast(batch.column("broker"), pa.string())
    queue = pc.cast(batch.column("queue"), pa.int64())
    missing = mask_of(broker.is_null())
    if (missing != mask_of(queue.is_null())).any():
        raise InvalidBatch(
            "a row has only one of broker and queue",
            hint="Give both, or null in both to let the sink choose.",
        )
    encoded = broker.dictionary_encode()
    given = int64s_of(pc.fill_null(queue, number(0)))
    if ((given < 0) | (given >= _QUEUE_SPAN)).any():
        raise InvalidBatch("a row's queue is no queue number", hint=f"Queues are 0 to {_QUEUE_SPAN - 1}.")
    indices = int64s_of(pc.fill_null(encoded.indices.cast(pa.int64()), number(0)))
    return encoded.dictionary.to_pylist(), np.where(missing, 0, 1 + indices * _QUEUE_SPAN + given)


def _require(batch: pa.RecordBatch, name: str, hint: str) -> None:
    nulls = batch.column(name).null_count
    if nulls:
        raise InvalidBatch(f"column {name!r} is null in {nulls} of {batch.num_rows} rows", hint=hint)


def _messages(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the message's own columns under their names in message/1; large layouts become plain ones."""
    names, columns = [], []
    for field in _MESSAGE_COLUMNS:
        if field.row_name in batch.schema.names:
            column = batch.column(field.row_name)
            names.append(field.name)
            columns.append(column if column.type == field.type else pc.cast(column, field.type))
    if DELIVER_AT in batch.schema.names:
        # The producer makes properties of it.
        names.append(DELIVER_AT)
        columns.append(batch.column(DELIVER_AT))
    return pa.RecordBatch.from_arrays(columns, names=names)
