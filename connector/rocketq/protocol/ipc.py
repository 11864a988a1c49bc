"""Arrow IPC streams from strangers, read with bounds.

A stream is a sequence of encapsulated messages (Arrow columnar format, "IPC"):

    0xFFFFFFFF  i32 metadata size  metadata (a flatbuffer)  body

pyarrow verifies the flatbuffer and every body's extent, but it will inflate
whatever a buffer claims to inflate to. So before any column is touched, the
metadata is read here: the record batch's buffers each open with their inflated
size, and the sum is checked against a limit. What passes is then validated in
full (offsets, UTF-8), so that no later reader can be led out of bounds.

The bytes of each batch message are kept as they came: they are what the broker
frames and stores.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from rocketq.errors import InvalidBatch, TooLarge
from rocketq.protocol.schema import MESSAGE_SCHEMA

#: What one batch may inflate to, and how many messages it may hold.
INFLATED_BYTES_MAX: Final = 64 * 1024 * 1024
BATCH_MESSAGES_MAX: Final = 262_144

_CONTINUATION: Final = b"\xff\xff\xff\xff"
_SCHEMA_HEADER: Final = 1
_BATCH_HEADER: Final = 3
_READ_OPTIONS: Final = pa.ipc.IpcReadOptions(use_threads=False)
_END_OF_STREAM: Final = _CONTINUATION + bytes(4)
_CANONICAL_SCHEMA_MESSAGE: Final = MESSAGE_SCHEMA.serialize().to_pybytes()


@dataclass(frozen=True, slots=True)
class BatchMessage:
    """One record batch of a stream: its encapsulated bytes and its opened columns."""

    encapsulated: pa.Buffer
    batch: pa.RecordBatch


def read_stream(data: bytes | pa.Buffer, inflated_bytes_max: int = INFLATED_BYTES_MAX) -> list[BatchMessage]:
    """Read a whole stream of schema message/1; raise InvalidBatch or TooLarge, allocate within the limit."""
    buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    messages = _messages(buffer)
    first = next(messages, None)
    if first is None:
        raise InvalidBatch("the body is not an Arrow IPC stream: it is empty", hint=_STREAM_HINT)
    _check_schema(first)
    found = []
    budget = inflated_bytes_max
    for message in messages:
        opened, inflated = _open(message, budget, inflated_bytes_max)
        budget -= inflated
        found.append(opened)
    return found


def read_batch(encapsulated: pa.Buffer, inflated_bytes_max: int = INFLATED_BYTES_MAX) -> pa.RecordBatch:
    """Open one encapsulated batch message of schema message/1, as a frame's body holds it."""
    message = next(_messages(encapsulated), None)
    if message is None or message.size != encapsulated.size:
        raise InvalidBatch("the frame's body is not exactly one Arrow message")
    return _open(message, inflated_bytes_max, inflated_bytes_max)[0].batch


def encapsulate(batch: pa.RecordBatch, codec: str | None = None) -> pa.Buffer:
    """Serialise a batch of schema message/1 to its encapsulated message (codec: None, lz4 or zstd)."""
    if codec is None:
        return _compact(batch).serialize()
    stream = write_stream([batch], codec)
    prologue = len(_CANONICAL_SCHEMA_MESSAGE)
    return stream.slice(prologue, stream.size - prologue - len(_END_OF_STREAM))


def write_stream(batches: list[pa.RecordBatch], codec: str | None = None) -> pa.Buffer:
    """Serialise batches of schema message/1 as one IPC stream (codec: None, lz4 or zstd)."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, MESSAGE_SCHEMA, options=options) as writer:
        for batch in batches:
            writer.write_batch(_compact(batch))
    return sink.getvalue()


def _compact(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy the map column if it is a slice: Arrow writes a sliced map with all offsets of its parent."""
    index = MESSAGE_SCHEMA.get_field_index("properties")
    column = batch.column(index)
    offsets = column.buffers()[1]
    if offsets is None or offsets.size <= 4 * (len(column) + 1) + 64:
        return batch
    if column.null_count == len(column):
        fresh = pa.nulls(len(column), column.type)
    else:
        fresh = column.take(np.arange(len(column)))
    return batch.set_column(index, MESSAGE_SCHEMA.field(index), fresh)


_STREAM_HINT: Final = "Send what pyarrow.ipc.new_stream writes, with the columns of schema message/1."


@dataclass(frozen=True, slots=True)
class _RawMessage:
    """The extent of one message, its type and its verified metadata."""

    bytes: pa.Buffer
    metadata: bytes
    header_type: int

    @property
    def size(self) -> int:
        return int(self.bytes.size)


def _messages(data: pa.Buffer) -> Iterator[_RawMessage]:
    """Cut the stream into messages, in order, up to its end mark or its end."""
    at = 0
    while at < data.size:
        prefix = data.slice(at, min(8, data.size - at)).to_pybytes()
        if len(prefix) < 8 or prefix[:4] != _CONTINUATION:
            raise InvalidBatch(
                f"byte {at} of the body does not start an Arrow IPC message", hint=_STREAM_HINT
            )
        metadata_bytes = int.from_bytes(prefix[4:], "little", signed=True)
        if metadata_bytes == 0:
            return
        body_at = at + 8 + metadata_bytes
        if metadata_bytes < 0 or body_at > data.size:
            raise InvalidBatch(
                f"the Arrow IPC message at byte {at} is truncated", hint="Send the whole stream."
            )
        metadata = data.slice(at + 8, metadata_bytes).to_pybytes()
        # The flatbuffer is verified by pyarrow before a field of it is trusted.
        header_type, body_bytes = _verified_header(data, at, metadata)
        end = body_at + body_bytes
        yield _RawMessage(data.slice(at, end - at), metadata, header_type)
        at = end


def _verified_header(data: pa.Buffer, at: int, metadata: bytes) -> tuple[int, int]:
    try:
        table = _root(metadata)
        body_bytes = _scalar(metadata, table, 10, "<q")
        body_at = at + 8 + len(metadata)
        if body_bytes < 0 or body_at + body_bytes > data.size:
            raise InvalidBatch(
                f"the Arrow IPC message at byte {at} is truncated", hint="Send the whole stream."
            )
        pa.ipc.read_message(data.slice(at, 8 + len(metadata) + body_bytes))
        return _scalar(metadata, table, 6, "<B"), body_bytes
    except (pa.ArrowException, OSError, EOFError, struct.error, IndexError) as error:
        raise InvalidBatch(
            f"the Arrow IPC message at byte {at} is malformed: {error}", hint=_STREAM_HINT
        ) from None


def _check_schema(message: _RawMessage) -> None:
    if message.header_type != _SCHEMA_HEADER:
        raise InvalidBatch("the stream does not begin with its schema", hint=_STREAM_HINT)
    if message.size == len(_CANONICAL_SCHEMA_MESSAGE) and message.bytes.equals(
        pa.py_buffer(_CANONICAL_SCHEMA_MESSAGE)
    ):
        return
    try:
        schema = pa.ipc.read_schema(pa.ipc.read_message(message.bytes))
    except (pa.ArrowException, OSError) as error:
        raise InvalidBatch(f"the stream's schema cannot be read: {error}", hint=_STREAM_HINT) from None
    if schema.names != MESSAGE_SCHEMA.names or schema.types != MESSAGE_SCHEMA.types:
        wanted = ", ".join(f"{f.name}: {f.type}" for f in MESSAGE_SCHEMA)
        given = ", ".join(f"{f.name}: {f.type}" for f in schema)
        raise InvalidBatch(
            f"the schema is not message/1 but ({given})"[:2000], hint=f"Send the columns ({wanted})."
        )


def _open(message: _RawMessage, budget: int, limit: int) -> tuple[BatchMessage, int]:
    """Open a record batch whose inflated size fits `budget`; return it and that size."""
    if message.header_type != _BATCH_HEADER:
        raise InvalidBatch(
            "a message of the stream is not a record batch (dictionaries are not accepted)", hint=_STREAM_HINT
        )
    try:
        rows, inflated = _extent(message)
    except (struct.error, IndexError):
        raise InvalidBatch("the record batch's metadata is malformed", hint=_STREAM_HINT) from None
    if inflated > budget:
        raise TooLarge("the decompressed batch", limit - budget + inflated, limit)
    if not 0 < rows <= BATCH_MESSAGES_MAX:
        raise InvalidBatch(
            f"a batch has {rows} messages", hint=f"Send 1 to {BATCH_MESSAGES_MAX} messages in each batch."
        )
    try:
        batch = pa.ipc.read_record_batch(pa.ipc.read_message(message.bytes), MESSAGE_SCHEMA)
        batch.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise InvalidBatch(
            f"the record batch is malformed: {error}",
            hint="Text columns must be UTF-8 and all buffers within the body.",
        ) from None
    if batch.column("body").null_count:
        raise InvalidBatch("column 'body' has nulls", hint="Send b'' for an empty message.")
    return BatchMessage(message.bytes, batch), inflated


def _extent(message: _RawMessage) -> tuple[int, int]:
    """Return the row count and what all buffers inflate to, from the metadata alone."""
    data = message.metadata
    table = _indirect(data, _field(data, _root(data), 8))
    rows = _scalar(data, table, 4, "<q")
    buffers_at = _field(data, table, 8)
    compressed = _field(data, table, 10) != 0
    if not buffers_at:
        return rows, 0
    vector = _indirect(data, buffers_at)
    count = struct.unpack_from("<I", data, vector)[0]
    body = message.bytes.slice(8 + len(data))
    inflated = 0
    for index in range(count):
        offset, length = struct.unpack_from("<qq", data, vector + 4 + 16 * index)
        if offset < 0 or length < 0 or offset + length > body.size:
            raise IndexError("a buffer lies outside the body")
        claimed = length
        if compressed and length >= 8:
            claimed = int.from_bytes(body.slice(offset, 8).to_pybytes(), "little", signed=True)
            if claimed < -1:
                raise IndexError("a buffer inflates to a negative size")
            claimed = length if claimed == -1 else claimed
        inflated += claimed
    return rows, inflated


# --- the few flatbuffer reads that the metadata needs ------------------------------
# A table starts with the distance back to its vtable; the vtable holds, at a fixed
# place for each field, the field's distance from the table's start, or 0 if absent.


def _root(data: bytes) -> int:
    return int(struct.unpack_from("<I", data, 0)[0])


def _field(data: bytes, table: int, slot: int) -> int:
    vtable = table - int(struct.unpack_from("<i", data, table)[0])
    if vtable < 0:
        raise IndexError("a vtable lies before the metadata")
    if slot >= struct.unpack_from("<H", data, vtable)[0]:
        return 0
    distance = int(struct.unpack_from("<H", data, vtable + slot)[0])
    return table + distance if distance else 0


def _indirect(data: bytes, at: int) -> int:
    if at == 0:
        raise IndexError("a required field is absent")
    return at + int(struct.unpack_from("<I", data, at)[0])


def _scalar(data: bytes, table: int, slot: int, form: str) -> int:
    at = _field(data, table, slot)
    return int(struct.unpack_from(form, data, at)[0]) if at else 0
