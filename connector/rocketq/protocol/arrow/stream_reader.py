"""Arrow IPC streams from strangers, read with bounds.

A stream is a sequence of encapsulated messages (Arrow columnar format, "IPC"):

    0xFFFFFFFF  i32 metadata size  metadata (a flatbuffer)  body

pyarrow cuts it into messages without copying and verifies each flatbuffer and
each body's extent, but it will inflate whatever a buffer claims to inflate to.
So before any column is made, the record batch's metadata is read here too: the
batch must have exactly the buffers of schema message/1, each within the body,
and the sizes they claim to inflate to must fit a limit in sum. What passes is
then validated in full (offsets, UTF-8), so that no later reader can be led out
of bounds.

The bytes of each batch message are kept as they came: they are what the broker
frames and stores.

Nothing here uses Arrow's threads: for batches of up to a few MiB handing the
columns to a pool costs more than it saves, and a single message pays most.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from rocketq.errors import InvalidBatch, TooLarge
from rocketq.protocol.arrow.stream_writer import END_OF_STREAM, STREAM_SCHEMA
from rocketq.protocol.message_schema import MESSAGE_SCHEMA
from rocketq.protocol.sizes import BATCH_MESSAGES_MAX, INFLATED_BYTES_MAX

#: Far above what the metadata of message/1 needs, custom metadata of a schema included.
METADATA_BYTES_MAX: Final = 256 * 1024

_CONTINUATION: Final = -1
#: MetadataVersion V5, Arrow 1.0 and later.
_VERSION_5: Final = 4
_PREFIX: Final = struct.Struct("<ii")
_END_OF_STREAM_BYTES: Final = len(END_OF_STREAM)


def _fields(kind: pa.DataType) -> int:
    """Return how many fields a column of this type has in a batch's metadata: itself and its children."""
    return 1 + sum(_fields(kind.field(at).type) for at in range(kind.num_fields))


def _buffers(kind: pa.DataType) -> int:
    """Return how many buffers a column of this type has, those of its children included (Arrow's layouts)."""
    children = sum(_buffers(kind.field(at).type) for at in range(kind.num_fields))
    if pa.types.is_struct(kind):
        return 1 + children
    return 3 if pa.types.is_binary(kind) or pa.types.is_string(kind) else 2 + children


#: Fields and buffers of message/1, those of the map's entries included.
_NODES: Final = sum(_fields(field.type) for field in MESSAGE_SCHEMA)
_BUFFERS: Final = sum(_buffers(field.type) for field in MESSAGE_SCHEMA)
_BUFFER_VECTOR: Final = struct.Struct(f"<I{2 * _BUFFERS}q")
_BODY_COLUMN: Final = MESSAGE_SCHEMA.get_field_index("body")
_MAP_COLUMN: Final = MESSAGE_SCHEMA.get_field_index("properties")
_READ_OPTIONS: Final = pa.ipc.IpcReadOptions(use_threads=False)
_STREAM_HINT: Final = "Send what pyarrow.ipc.new_stream writes, with the columns of schema message/1."
#: What pyarrow, and reading its metadata, raise on malformed bytes.
_MALFORMED: Final = (pa.ArrowException, OSError, EOFError, struct.error, IndexError, UnicodeDecodeError)


@dataclass(frozen=True, slots=True)
class BatchMessage:
    """One record batch of a stream: its encapsulated bytes and its opened columns."""

    encapsulated: pa.Buffer
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class CutStream:
    """A stream cut into batches that fit the limits; their metadata was read, nothing was opened."""

    messages: list[_Message]
    compressed: bool
    #: What the batches inflate to, together.
    inflated_bytes: int


def read_stream(data: bytes | pa.Buffer, inflated_bytes_max: int = INFLATED_BYTES_MAX) -> list[BatchMessage]:
    """Read a whole stream of schema message/1; raise InvalidBatch or TooLarge, allocate within the limit."""
    return open_stream(cut_stream(data, inflated_bytes_max))


def cut_stream(
    data: bytes | pa.Buffer, inflated_bytes_max: int = INFLATED_BYTES_MAX, batches_max: int | None = None
) -> CutStream:
    """Do the cheap half of `read_stream`: some 20 µs a batch, whatever it would inflate to."""
    buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    schema_bytes = STREAM_SCHEMA.size
    if buffer.size < schema_bytes or not buffer.slice(0, schema_bytes).equals(STREAM_SCHEMA):
        schema_bytes = _check_schema(buffer)
    found: list[_Message] = []
    budget = inflated_bytes_max
    compressed = False
    for message in _messages(buffer, schema_bytes):
        if len(found) == batches_max:
            raise InvalidBatch(
                f"the stream has more than {batches_max} batches", hint="Send fewer, larger batches."
            )
        budget -= _check_extent(message, budget, inflated_bytes_max)
        compressed = compressed or _is_compressed(message.metadata)
        found.append(message)
    return CutStream(found, compressed, inflated_bytes_max - budget)


def open_stream(stream: CutStream) -> list[BatchMessage]:
    """Do the other half of `read_stream`: inflate and validate every batch; raise InvalidBatch."""
    return [BatchMessage(message.bytes, _open(message)) for message in stream.messages]


def read_batch(encapsulated: pa.Buffer, inflated_bytes_max: int = INFLATED_BYTES_MAX) -> pa.RecordBatch:
    """Open one encapsulated batch message of schema message/1, as a frame's body holds it."""
    message = _message_at(encapsulated, 0)
    if message is None or message.bytes.size != encapsulated.size:
        raise InvalidBatch("the frame's body is not exactly one Arrow message")
    _check_extent(message, inflated_bytes_max, inflated_bytes_max)
    return _open(message)


def stored_extent(encapsulated: pa.Buffer) -> tuple[int, int]:
    """Return how many messages a stored batch has and what it inflates to; raise InvalidBatch or TooLarge."""
    message = _message_at(encapsulated, 0)
    if message is None:
        raise InvalidBatch("the frame's body is not exactly one Arrow message")
    inflated = _check_extent(message, INFLATED_BYTES_MAX, INFLATED_BYTES_MAX)
    return _extent(message)[0], inflated


def read_stored(encapsulated: pa.Buffer) -> pa.RecordBatch:
    """Open a batch that was checked when it was stored, out of a frame whose checksum holds."""
    return pa.ipc.read_record_batch(pa.ipc.read_message(encapsulated), MESSAGE_SCHEMA)


# --- cutting a stream into messages ------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Message:
    """One message as pyarrow verified it: its extent, metadata and (if it has one) body, not copied."""

    bytes: pa.Buffer
    metadata: bytes
    opened: pa.ipc.Message


def _message_at(data: pa.Buffer, at: int) -> _Message | None:
    """Cut out the message at byte `at`; None for the end mark."""
    if data.size - at < _PREFIX.size:
        raise InvalidBatch(f"byte {at} of the body does not start an Arrow IPC message", hint=_STREAM_HINT)
    continuation, metadata_bytes = _PREFIX.unpack_from(data, at)
    if continuation != _CONTINUATION:
        raise InvalidBatch(f"byte {at} of the body does not start an Arrow IPC message", hint=_STREAM_HINT)
    if metadata_bytes == 0:
        return None
    # A length that is not a multiple of 8 would leave the columns unaligned.
    if not 0 < metadata_bytes <= METADATA_BYTES_MAX or metadata_bytes % 8:
        raise InvalidBatch(
            f"the Arrow IPC message at byte {at} has {metadata_bytes} bytes of metadata",
            hint=f"Metadata is padded to 8 bytes and has at most {METADATA_BYTES_MAX}.",
        )
    try:
        opened = pa.ipc.read_message(data.slice(at))
    except _MALFORMED as error:
        raise InvalidBatch(
            f"the Arrow IPC message at byte {at} is truncated or malformed: {_first_line(error)}",
            hint="Send the whole stream, as pyarrow.ipc.new_stream writes it.",
        ) from None
    body = opened.body
    size = _PREFIX.size + metadata_bytes + (body.size if body is not None else 0)
    metadata = data.slice(at + _PREFIX.size, metadata_bytes).to_pybytes()
    return _Message(data.slice(at, size), metadata, opened)


def _messages(data: pa.Buffer, at: int) -> Iterator[_Message]:
    """Cut the stream into messages from byte `at`, in order, up to its end mark or its end."""
    while at < data.size:
        message = _message_at(data, at)
        if message is None:
            if at + _END_OF_STREAM_BYTES != data.size:
                raise InvalidBatch(
                    f"{data.size - at - _END_OF_STREAM_BYTES} bytes follow the end of the stream",
                    hint="Send one stream in a request.",
                )
            return
        yield message
        at += message.bytes.size


def _check_schema(data: pa.Buffer) -> int:
    """Check a schema that is not byte for byte the canonical one; return the size of its message."""
    if data.size == 0:
        raise InvalidBatch("the body is not an Arrow IPC stream: it is empty", hint=_STREAM_HINT)
    message = _message_at(data, 0)
    if message is None or message.opened.type != "schema":
        raise InvalidBatch("the stream does not begin with its schema", hint=_STREAM_HINT)
    try:
        little_endian = _scalar(message.metadata, _header(message.metadata), 4, "<h") == 0
        schema = pa.ipc.read_schema(message.opened)
        differences = _differences(schema)
    except _MALFORMED as error:
        raise InvalidBatch(
            f"the stream's schema cannot be read: {_first_line(error)}", hint=_STREAM_HINT
        ) from None
    if not little_endian:
        raise InvalidBatch("the stream is big-endian", hint="Send little-endian buffers.")
    if schema.names != MESSAGE_SCHEMA.names or schema.types != MESSAGE_SCHEMA.types:
        wanted = ", ".join(f"{f.name}: {f.type}" for f in MESSAGE_SCHEMA)
        raise InvalidBatch(
            f"the schema is not message/1: {differences}"[:2000],
            hint=f"Cast to exactly these columns, in this order: ({wanted}). The Python client does it.",
        )
    return int(message.bytes.size)


def _differences(schema: pa.Schema) -> str:
    """Say column by column where a schema differs from message/1."""
    given = dict(zip(schema.names, schema.types, strict=True))
    wanted = dict(zip(MESSAGE_SCHEMA.names, MESSAGE_SCHEMA.types, strict=True))
    found = [
        f"{name!r} is {given[name]}, not {kind}"
        for name, kind in wanted.items()
        if name in given and given[name] != kind
    ]
    found += [f"{name!r} is missing (send nulls)" for name in wanted if name not in given]
    found += [f"{name!r} is no column of it" for name in given if name not in wanted]
    return "; ".join(found) or f"its columns come as {', '.join(schema.names)}"


# --- opening a batch ---------------------------------------------------------------


def _check_extent(message: _Message, budget: int, limit: int) -> int:
    """Return what the batch inflates to, from its metadata alone; raise if it has no place in `budget`."""
    if message.opened.type != "record batch":
        raise InvalidBatch(
            f"a message of the stream is a {message.opened.type}, not a record batch", hint=_STREAM_HINT
        )
    try:
        rows, inflated = _extent(message)
    except _MALFORMED as error:
        raise InvalidBatch(
            f"the record batch's metadata is malformed: {_first_line(error)}", hint=_STREAM_HINT
        ) from None
    if inflated > budget:
        raise TooLarge("the decompressed batch", limit - budget + inflated, limit)
    if not 0 < rows <= BATCH_MESSAGES_MAX:
        raise InvalidBatch(
            f"a batch has {rows} messages", hint=f"Send 1 to {BATCH_MESSAGES_MAX} messages in each batch."
        )
    return inflated


def _open(message: _Message) -> pa.RecordBatch:
    """Open and validate a record batch whose extent has been checked."""
    try:
        if _is_compressed(message.metadata):
            # Only a stream reader can be told to inflate on this thread.
            stream = pa.py_buffer(b"".join((STREAM_SCHEMA, message.bytes)))
            batch = pa.ipc.open_stream(stream, options=_READ_OPTIONS).read_next_batch()
        else:
            batch = pa.ipc.read_record_batch(message.opened, MESSAGE_SCHEMA)
        batch.validate(full=True)
    except (*_MALFORMED, StopIteration) as error:
        raise InvalidBatch(
            f"the record batch is malformed: {_first_line(error)}",
            hint="Text columns must be UTF-8 and all buffers within the body.",
        ) from None
    if batch.column(_BODY_COLUMN).null_count:
        raise InvalidBatch("column 'body' has nulls", hint="Send b'' for an empty message.")
    return batch


def _extent(message: _Message) -> tuple[int, int]:
    """Return the row count and what all buffers inflate to; raise IndexError for what message/1 has not."""
    data = message.metadata
    if _scalar(data, _root(data), 4, "<h") != _VERSION_5:
        # Version 4 could ask for compression in a second, older way that is not looked for here.
        raise IndexError("the metadata version is not 5")
    batch = _header(data)
    rows = _scalar(data, batch, 4, "<q")
    nodes = struct.unpack_from("<I", data, _indirect(data, _field(data, batch, 6)))[0]
    buffers = _BUFFER_VECTOR.unpack_from(data, _indirect(data, _field(data, batch, 8)))
    if nodes != _NODES or buffers[0] != _BUFFERS or _field(data, batch, 12):
        raise IndexError(f"{nodes} fields and {buffers[0]} buffers are not those of message/1")
    compressed = _field(data, batch, 10) != 0
    body = message.opened.body
    body_bytes = body.size if body is not None else 0
    inflated = 0
    for offset, length in zip(buffers[1::2], buffers[2::2], strict=True):
        if offset < 0 or length < 0 or offset % 8 or offset + length > body_bytes:
            raise IndexError("a buffer is unaligned or outside the body")
        claimed = length
        if compressed and length >= 8:
            claimed = struct.unpack_from("<q", body, offset)[0]
            if claimed < -1:
                raise IndexError("a buffer inflates to a negative size")
            claimed = length if claimed == -1 else claimed
        inflated += claimed
    return rows, inflated


@dataclass(frozen=True, slots=True)
class BatchPlaces:
    """Where an encapsulated batch says how large it is and what it holds, in bytes from its begin."""

    rows: int
    body_bytes: int
    #: The pairs (length, nulls) of its fields, and the pairs (place, size) of its buffers.
    nodes: int
    node_count: int
    buffers: int
    buffer_count: int
    body: int


def batch_places(encapsulated: pa.Buffer) -> BatchPlaces:
    """Return where the numbers of a batch of message/1 stand."""
    message = _message_at(encapsulated, 0)
    assert message is not None
    data = message.metadata
    batch, start = _header(data), _PREFIX.size
    nodes, buffers = (_indirect(data, _field(data, batch, slot)) for slot in (6, 8))
    return BatchPlaces(
        rows=start + _field(data, batch, 4),
        body_bytes=start + _field(data, _root(data), 10),
        nodes=start + nodes + 4,
        node_count=_NODES,
        buffers=start + buffers + 4,
        buffer_count=_BUFFERS,
        body=start + len(data),
    )


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).split("\n", 1)[0][:500]


# --- the few flatbuffer reads that the metadata needs ------------------------------
# A table starts with the distance back to its vtable; the vtable holds, at a fixed
# place for each field, the field's distance from the table's start, or 0 if absent.
# pyarrow has verified the flatbuffer before any of this looks at it.


def _root(data: bytes) -> int:
    return int(struct.unpack_from("<I", data, 0)[0])


def _header(data: bytes) -> int:
    """Where the table of the message's header (a schema or a record batch) starts."""
    return _indirect(data, _field(data, _root(data), 8))


def _is_compressed(data: bytes) -> bool:
    return _field(data, _header(data), 10) != 0


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
