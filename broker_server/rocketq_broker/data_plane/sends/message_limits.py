"""What messages must satisfy before they may be appended: the limits on each of them.

`rocketq.protocol.arrow.stream_reader` has already bounded and validated the batch as Arrow; here
the columns of a batch are held against the limits of RocketMQ's messages, and against the rules for
tags and properties (`rocketq.protocol.rules.message_rules`), all rows at once.
The cost is a few looks at offset buffers: a column that is all null, or whose
whole data is smaller than what one value may be, is let through without
looking at any value.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rocketq.errors import InvalidBatch, TooLarge
from rocketq.model import KEY_BYTES_MAX, TAG_BYTES_MAX, Message
from rocketq.protocol.message_schema import MESSAGE_SCHEMA
from rocketq.protocol.rules.message_rules import check_batch, check_message
from rocketq_broker.metrics.broker_metrics import BodySizes

#: Names and values of one message's properties together (RocketMQ: PROPERTIES_SIZE_EXCEEDED).
PROPERTIES_BYTES_MAX = 32_767

_KEY, _TAG, _BODY, _PROPERTIES = (
    MESSAGE_SCHEMA.get_field_index(name) for name in ("key", "tag", "body", "properties")
)


def admit(batch: pa.RecordBatch, message_bytes_max: int, first_row: int = 0) -> BodySizes:
    """Check every message of a valid batch; return what was measured.

    Raises TooLarge, InvalidBatch, or InvalidMessage, whose row counts from `first_row`.
    """
    _check_column(batch.column(_KEY), "a message's key", KEY_BYTES_MAX)
    _check_column(batch.column(_TAG), "a message's tag", TAG_BYTES_MAX)
    _check_properties(batch.column(_PROPERTIES))
    check_batch(batch, first_row)
    measured = _measured(batch.column(_BODY))
    if measured.largest > message_bytes_max:
        raise TooLarge("a message's body", measured.largest, message_bytes_max)
    return measured


def admit_one(message: Message, message_bytes_max: int) -> None:
    """Check a message that came alone as `admit` checks a batch; raise TooLarge or InvalidMessage."""
    properties = message.properties or {}
    _check_size("a message's key", 0 if message.key is None else len(message.key), KEY_BYTES_MAX)
    _check_size("a message's tag", 0 if message.tag is None else _utf8_bytes(message.tag), TAG_BYTES_MAX)
    size = sum(_utf8_bytes(name) + _utf8_bytes(value) for name, value in properties.items())
    _check_size("a message's properties", size, PROPERTIES_BYTES_MAX)
    check_message(message.tag, properties)
    _check_size("a message's body", len(message.body), message_bytes_max)


def _check_size(what: str, size: int, limit: int) -> None:
    if size > limit:
        raise TooLarge(what, size, limit)


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _measured(bodies: pa.Array) -> BodySizes:
    offsets = _offsets(bodies)
    if len(offsets) == 2:
        # A message that comes alone pays for every call into numpy by itself.
        size = int(offsets[1]) - int(offsets[0])
        return BodySizes(np.array([size], dtype=np.int32), 1, size, size, size)
    sizes = offsets[1:] - offsets[:-1]
    total = int(offsets[-1]) - int(offsets[0])
    smallest, largest = int(np.minimum.reduce(sizes)), int(np.maximum.reduce(sizes))
    return BodySizes(sizes, len(sizes), total, smallest, largest)


def _check_column(column: pa.Array, what: str, limit: int) -> None:
    if column.null_count == len(column):
        return
    offsets = _offsets(column)
    if int(offsets[-1]) - int(offsets[0]) <= limit:
        return
    largest = int(np.diff(offsets).max())
    if largest > limit:
        raise TooLarge(what, largest, limit)


def _check_properties(column: pa.MapArray) -> None:
    if column.null_count == len(column):
        return
    names, values = column.keys, column.items
    if values.null_count:
        raise InvalidBatch("a property has no value", hint="Leave the property out, or send ''.")
    entries = _offsets(column)
    name_ends, value_ends = _offsets(names), _offsets(values)
    # Entry i's name and value end where their offsets i + 1 say: the sum is a running total of bytes.
    ends = (name_ends.astype(np.int64) + value_ends)[entries]
    if int(ends[-1]) - int(ends[0]) <= PROPERTIES_BYTES_MAX:
        return
    largest = int(np.diff(ends).max())
    if largest > PROPERTIES_BYTES_MAX:
        raise TooLarge("a message's properties", largest, PROPERTIES_BYTES_MAX)


def _offsets(column: pa.Array) -> npt.NDArray[np.int32]:
    """Return the n+1 offsets of a string, binary or map array, without a copy."""
    buffer = column.buffers()[1]
    if buffer is None or buffer.size == 0:
        return np.zeros(len(column) + 1, dtype=np.int32)
    return np.frombuffer(buffer, dtype=np.int32, count=len(column) + 1, offset=4 * column.offset)
