"""The two decoded forms of a pull's answer, for callers that do not read frames.

Frames go out as they are stored; an Arrow stream or JSON must be made, which
means opening the batches. A stored batch may be compressed a thousandfold, so a
bound on what is read from the log bounds nothing here: decoding stops before the
frame that would exceed the budget of inflated bytes, the first always being
let through, and the answer says where to go on.

All of this runs outside of the event loop.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from rocketq.errors import CorruptFrame
from rocketq.model import MessageQueue, message_id
from rocketq.protocol.frame import claimed_log_offset
from rocketq.protocol.frame_slices import FrameSlice, iter_frames, open_within_budget
from rocketq.protocol.message_schema import MESSAGE_SCHEMA
from rocketq.protocol.sizes import INFLATED_BYTES_MAX
from rocketq_broker.store.disk.files import Data

#: The messages of one JSON document; one message may be longer.
DOCUMENT_BYTES_MAX: Final = 64 * 1024 * 1024
_BLOCK_BYTES: Final = 1024 * 1024
_BLOCK_MESSAGES_MAX: Final = 1_024
#: message/1 and where and when each message was stored.
PULLED_SCHEMA: Final = pa.schema(
    [
        *MESSAGE_SCHEMA,
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("queue", pa.int32(), nullable=False),
        pa.field("stored_at", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class Decoded:
    """The messages of an answer, cut to what was asked for; `next_offset` is where to go on."""

    slices: tuple[FrameSlice, ...]
    next_offset: int


def open_chunks(
    chunks: Sequence[Data],
    begin: int,
    end: int | None,
    inflated_bytes_max: int = INFLATED_BYTES_MAX,
    scanned_to: int | None = None,
) -> Decoded:
    """Open stored or filtered frames, cut to [begin, end), until the budget is spent or a frame is damaged.

    Raises CorruptFrame, with its log offset, if that is the first one.

    `scanned_to` is where a filtered answer's scan stopped, well past its last message perhaps.
    """
    found, stopped_at = open_within_budget(_frames(chunks, begin, end), inflated_bytes_max)
    if stopped_at is None:
        last = found[-1].next_offset if found else begin
        stopped_at = last if scanned_to is None else scanned_to
    return Decoded(tuple(found), stopped_at)


def _frames(chunks: Sequence[Data], begin: int, end: int | None) -> Iterator[FrameSlice]:
    """Open the frames of all chunks one by one; raise CorruptFrame with the log offset of the damage."""
    for chunk in chunks:
        try:
            yield from iter_frames(chunk, begin, end)
        except CorruptFrame as error:
            raise CorruptFrame(claimed_log_offset(chunk) + error.offset, error.facts["why"]) from None


def arrow_stream(decoded: Decoded) -> bytes:
    """Return the messages as an IPC stream of PULLED_SCHEMA, one batch for each frame."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, PULLED_SCHEMA) as writer:
        for piece in decoded.slices:
            writer.write_batch(_placed(piece))
    stream: bytes = sink.getvalue().to_pybytes()
    return stream


def _placed(piece: FrameSlice) -> pa.RecordBatch:
    rows = piece.batch.num_rows
    return pa.RecordBatch.from_arrays(
        [
            *piece.batch.columns,
            pa.array(piece.offsets()),
            pa.array(np.full(rows, piece.header.queue, dtype=np.int32)),
            pa.array(np.full(rows, piece.header.stored_at_us, dtype=np.int64)).cast(
                PULLED_SCHEMA.field("stored_at").type
            ),
        ],
        schema=PULLED_SCHEMA,
    )


def json_document(
    decoded: Decoded, queue: MessageQueue, head: dict[str, Any], bytes_max: int = DOCUMENT_BYTES_MAX
) -> tuple[list[bytes], int]:
    """Return `head` with the messages as JSON, in chunks, and the offset to go on at, which is in it too.

    What is not UTF-8 goes into `…_base64` fields. The document ends before the messages that would make it
    longer than `bytes_max`, and has at least one. It is made of a few messages at a time: as objects of
    Python they take many times their size.
    """
    chunks: list[bytes] = []
    size, next_offset = 0, decoded.next_offset
    for block in _blocks(decoded.slices):
        text = msgspec.json.encode(messages(Decoded((block,), block.next_offset), queue))[1:-1]
        if chunks and size + len(text) > bytes_max:
            next_offset = block.offset
            break
        chunks += [b",", text] if chunks else [text]
        size += len(text)
    before = msgspec.json.encode({**head, "next_offset": next_offset})
    return [before[:-1] + b',"messages":[', *chunks, b"]}"], next_offset


def _blocks(slices: Sequence[FrameSlice]) -> Iterator[FrameSlice]:
    """Cut slices into blocks of about `_BLOCK_BYTES`, of one message at least."""
    for piece in slices:
        count, size = piece.batch.num_rows, max(1, piece.batch.nbytes)
        step = max(1, min(_BLOCK_MESSAGES_MAX, count * _BLOCK_BYTES // size))
        for at in range(0, count, step):
            yield piece.part(at, step)


def single_message(decoded: Decoded, queue: MessageQueue) -> bytes:
    """Return the only message of `decoded` as JSON."""
    return msgspec.json.encode(messages(decoded, queue)[0])


def messages(decoded: Decoded, queue: MessageQueue) -> list[dict[str, Any]]:
    """Return every message as the JSON object that curl and the dashboard see."""
    return [
        _message(queue, offset, piece.header.stored_at_us, row)
        for piece in decoded.slices
        for offset, row in zip(piece.offsets().tolist(), rows(piece.batch), strict=True)
    ]


def rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return every message as its columns; times are microseconds."""
    born_at = batch.schema.get_field_index("born_at")
    plain = batch.set_column(born_at, "born_at", batch.column(born_at).cast(pa.int64()))
    made: list[dict[str, Any]] = plain.to_pylist()
    return made


def _message(queue: MessageQueue, offset: int, stored_at_us: int, row: dict[str, Any]) -> dict[str, Any]:
    return {
        "message_id": message_id(queue, offset),
        "queue": queue.queue,
        "offset": offset,
        "stored_at_us": stored_at_us,
        **_fields(row),
    }


def message_fields(message: pa.RecordBatch) -> dict[str, Any]:
    """Return what a message has, in the fields of a JSON document; the batch has one row."""
    return _fields(rows(message)[0])


def _fields(row: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {}
    if row["born_at"] is not None:
        message["born_at_us"] = row["born_at"]
    if row["key"] is not None:
        message.update(_text_or_base64("key", row["key"]))
    if row["tag"] is not None:
        message["tag"] = row["tag"]
    if row["properties"] is not None:
        message["properties"] = dict(row["properties"])
    message.update(_text_or_base64("body", row["body"]))
    return message


def _text_or_base64(name: str, value: bytes) -> dict[str, str]:
    try:
        return {name: value.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode("ascii")}
