"""The canonical message batch, schema `message/1`, and making one.

Spark, the wire and the disk all hold record batches of this schema:

    key         binary                 for queries by key
    tag         string                 for filters
    body        binary not null        the payload
    properties  map<string, string>    further names and values
    born_at     timestamp[us, UTC]     when its producer made it

`normalise` takes what people have (a Table or RecordBatch with some of these
columns, in any order and any of Arrow's equivalent layouts) and gives exactly
this. What it cannot map is an `InvalidBatch`; it never guesses. A property whose value is null is one
that the message does not have: Spark and pandas fill in nulls where a row lacks a property.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketq.errors import InvalidBatch
from rocketq.model import Message
from rocketq.protocol.column_values import (
    flags,
    mask_of,
    numbers,
    offsets_of,
    optional_bytes,
    optional_int64s,
    texts,
)

#: The schema id in a frame header; 0 is message/1, the only one today.
MESSAGE_SCHEMA_ID: Final = 0

PROPERTIES_TYPE: Final = pa.map_(pa.string(), pa.string())

_TEXT: Final = (bytes, bytearray, memoryview, str)
#: What each field of a `Message` may hold, and what to do with something else.
FIELD_TYPES: Final[Mapping[str, tuple[tuple[type, ...], str]]] = {
    "body": (_TEXT, "Give bytes or str; serialise other values first, for example with json.dumps(value)."),
    "key": (_TEXT, "Give bytes or str, for example str(value)."),
    "tag": ((str,), "Give a str, for example str(value)."),
    "properties": ((Mapping,), "Properties map text to text: {'region': 'eu', 'amount': str(42)}."),
    "born_at_us": ((int,), "Give whole microseconds since 1970, or leave it out."),
}


@dataclass(frozen=True, slots=True)
class MessageColumn:
    """A column of message/1, and what it is called outside Arrow."""

    name: str
    type: pa.DataType
    #: The attribute of `Message` and `StoredMessage` that holds its value.
    attribute: str
    #: The column of Spark's rows.
    row_name: str
    nullable: bool = True


#: Every column in order. The schema, batches made of messages, Spark's rows in both directions and the
#: sizes of messages follow from this table.
MESSAGE_COLUMNS: Final = (
    MessageColumn("key", pa.binary(), "key", "key"),
    MessageColumn("tag", pa.string(), "tag", "tag"),
    MessageColumn("body", pa.binary(), "body", "value", nullable=False),
    MessageColumn("properties", PROPERTIES_TYPE, "properties", "properties"),
    MessageColumn("born_at", pa.timestamp("us", tz="UTC"), "born_at_us", "born_timestamp"),
)
MESSAGE_SCHEMA: Final = pa.schema(
    [pa.field(column.name, column.type, nullable=column.nullable) for column in MESSAGE_COLUMNS]
)
#: Columns of variable length, whose bytes are counted from their offsets.
TEXT_COLUMNS: Final = tuple(
    column.name
    for column in MESSAGE_COLUMNS
    if pa.types.is_binary(column.type) or pa.types.is_string(column.type)
)


def from_messages(messages: Sequence[Message]) -> pa.RecordBatch:
    """Build one batch of schema message/1 from message values."""
    try:
        return pa.RecordBatch.from_arrays(
            [_column_of(messages, column) for column in MESSAGE_COLUMNS], schema=MESSAGE_SCHEMA
        )
    except (pa.ArrowInvalid, TypeError, AttributeError, OverflowError, UnicodeError) as error:
        raise _unfit(messages, error) from error


def _unfit(messages: Sequence[Message], error: Exception) -> InvalidBatch:
    """Return the error of messages that make no batch: it names the first field with a wrong type."""
    for message in messages:
        for name, (kinds, hint) in FIELD_TYPES.items():
            value = getattr(message, name)
            if not isinstance(value, kinds) and (value is not None or name == "body"):
                return _wrong_type(name, value, hint)
        for name, value in (message.properties or {}).items():
            if not isinstance(name, str) or not isinstance(value, str | None):
                return _wrong_type(f"the property {name!r}", value, FIELD_TYPES["properties"][1])
    return InvalidBatch(
        f"a message field has the wrong type: {error}",
        hint="body and key are bytes, tag is str, properties maps str to str, born_at_us is an int.",
    )


def _wrong_type(what: str, value: object, hint: str) -> InvalidBatch:
    shown = f"{what} is {reprlib.repr(value)}, of type {type(value).__name__}"
    return InvalidBatch(f"a message field has the wrong type: {shown}", hint=hint)


def _column_of(messages: Sequence[Message], column: MessageColumn) -> pa.Array:
    """Return a column of messages; one of nulls alone is not made value by value."""
    values = [getattr(message, column.attribute) for message in messages]
    if values.count(None) == len(values):
        return nulls(len(values), column.type)
    if column.type is PROPERTIES_TYPE:
        return properties_column(values)
    if pa.types.is_timestamp(column.type):
        return optional_int64s(values, column.type)
    if pa.types.is_string(column.type):
        return optional_bytes([None if value is None else value.encode() for value in values], column.type)
    # Text is taken as UTF-8, as a producer takes it.
    return optional_bytes([v.encode() if isinstance(v, str) else v for v in values], column.type)


def properties_column(values: Sequence[Mapping[str, str] | None]) -> pa.MapArray:
    """Return the properties of messages as a column; one whose value is None is left out."""
    given = {row: value for row, value in enumerate(values) if value is not None}
    return sparse_properties(given, len(values))


def sparse_properties(given: Mapping[int, Mapping[str, str]], rows: int) -> pa.MapArray:
    """Return the properties of a few of some messages, by row and in order; the rows without any are null.

    It costs what the messages cost that have some.
    """
    pairs = [[pair for pair in value.items() if pair[1] is not None] for value in given.values()]
    present = np.fromiter(given, np.int64, len(given))
    counts = np.zeros(rows + 1, np.int32)
    counts[present + 1] = np.fromiter(map(len, pairs), np.int32, len(pairs))
    offsets = numbers(np.cumsum(counts, dtype=np.int32))
    names, items = (texts([pair[side] for of_row in pairs for pair in of_row]) for side in (0, 1))
    is_null = np.ones(rows, np.bool_)
    is_null[present] = False
    return pa.MapArray.from_arrays(offsets, names, items, PROPERTIES_TYPE, mask=flags(is_null))


def normalise(data: pa.RecordBatch | pa.Table) -> list[pa.RecordBatch]:
    """Return `data` as batches of exactly schema message/1; missing nullable columns become null."""
    names = data.schema.names
    unknown = sorted(set(names) - set(MESSAGE_SCHEMA.names))
    if unknown or len(set(names)) != len(names):
        raise InvalidBatch(
            f"columns {unknown or names} are not of schema message/1",
            hint=f"The columns are {', '.join(MESSAGE_SCHEMA.names)}; only body is required.",
        )
    if "body" not in names:
        raise InvalidBatch("there is no column 'body'", hint="body (binary or string) is required.")
    batches = data.to_batches() if isinstance(data, pa.Table) else [data]
    return [_normalised(batch) for batch in batches]


def present_properties(column: pa.MapArray) -> pa.MapArray:
    """Return a column of properties without those whose value is null."""
    if not column.items.null_count:
        return column
    present = column.items.is_valid()
    kept = np.concatenate([[0], np.cumsum(mask_of(present))])
    offsets = numbers(kept[offsets_of(column)].astype(np.int32))
    keys, items = column.keys.filter(present), column.items.filter(present)
    return pa.MapArray.from_arrays(offsets, keys, items, PROPERTIES_TYPE, mask=column.is_null())


def nulls(count: int, kind: pa.DataType) -> pa.Array:
    """Return a column of nulls of a type of message/1, which shares its memory with all others.

    A map column of nulls has no entries. Arrow's own `nulls` makes one entry for each null: nothing uses it,
    but it would be sent and stored.
    """
    return _few_nulls(count, kind) if count <= _FEW else _nulls(count, kind)


def _nulls(count: int, kind: pa.DataType) -> pa.Array:
    if pa.types.is_map(kind):
        children = [_no_entries(kind)]
        return pa.Array.from_buffers(kind, count, _zeros(count, 4 * (count + 1)), count, children=children)
    if pa.types.is_timestamp(kind):
        return pa.Array.from_buffers(kind, count, _zeros(count, 8 * count), count)
    return pa.Array.from_buffers(kind, count, [*_zeros(count, 4 * (count + 1)), _ZEROS.slice(0, 0)], count)


#: Columns of up to so many nulls are kept: to make one costs as much as the rest of a small batch.
_FEW: Final = 64
_few_nulls: Final = lru_cache(_FEW * len(MESSAGE_COLUMNS))(_nulls)

#: What nearly every column of nulls is made of; untouched, it takes no memory.
_ZEROS: Final = pa.py_buffer(np.zeros(1 << 20, np.uint8))


@cache
def _no_entries(kind: pa.MapType) -> pa.StructArray:
    return pa.nulls(0, pa.struct([kind.key_field, kind.item_field]))


def _zeros(count: int, size: int) -> list[pa.Buffer]:
    """Return a validity bitmap of `count` nulls, and `size` zero bytes."""
    return [
        _ZEROS.slice(0, length) if length <= _ZEROS.size else pa.py_buffer(np.zeros(length, np.uint8))
        for length in ((count + 7) // 8, size)
    ]


def _normalised(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = []
    for field in MESSAGE_SCHEMA:
        if field.name not in batch.schema.names:
            columns.append(nulls(batch.num_rows, field.type))
            continue
        column = batch.column(field.name)
        try:
            columns.append(column if column.type == field.type else pc.cast(column, field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidBatch(
                f"column {field.name!r} of type {column.type} cannot become {field.type}: {error}",
                hint="Cast it before sending; text columns may be string or binary.",
            ) from error
    properties = MESSAGE_SCHEMA.get_field_index("properties")
    columns[properties] = present_properties(columns[properties])
    if columns[MESSAGE_SCHEMA.get_field_index("body")].null_count:
        raise InvalidBatch("column 'body' has nulls", hint="Send b'' for an empty message, or drop the row.")
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA)
