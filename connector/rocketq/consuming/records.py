"""What a consumer hands out: messages with their place and time, as Arrow or as values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketq.errors import InvalidConfiguration
from rocketq.model import MessageQueue, StoredMessage
from rocketq.protocol.column_values import number, numbers, repeated
from rocketq.protocol.frame_slices import FrameSlice
from rocketq.protocol.message_schema import MESSAGE_SCHEMA
from rocketq.protocol.stored_rows import stored_messages

#: message/1, and where each message lies.
CONSUMED_SCHEMA: Final = pa.schema(
    [
        *MESSAGE_SCHEMA,
        pa.field("topic", pa.string(), nullable=False),
        pa.field("broker", pa.string(), nullable=False),
        pa.field("queue", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("stored_at", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)

#: The columns that name a message's queue.
_PLACE: Final = ("topic", "broker", "queue")
_STORED_AT: Final = CONSUMED_SCHEMA.field("stored_at").type


#: Messages of one queue, from one frame, as the buffer hands them out.
Fetched: TypeAlias = tuple[MessageQueue, FrameSlice]


def as_arrow(fetched: Sequence[Fetched]) -> pa.RecordBatch:
    """Return all messages as one batch of CONSUMED_SCHEMA; those of a single slice are not copied."""
    if not fetched:
        return pa.RecordBatch.from_pylist([], schema=CONSUMED_SCHEMA)
    batches = [_placed(queue, piece) for queue, piece in fetched]
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def as_messages(fetched: Sequence[Fetched]) -> list[StoredMessage]:
    """Return all messages as values."""
    return [message for queue, piece in fetched for message in stored_messages(queue, piece)]


def last_offsets(batch: pa.RecordBatch) -> dict[MessageQueue, int]:
    """Return the last offset of each queue in a batch of CONSUMED_SCHEMA, or in a part of one in its order.

    Raises InvalidConfiguration if the batch has not the columns that say where its messages lie.
    """
    missing = [name for name in _PLACE if name not in batch.schema.names]
    if missing:
        raise InvalidConfiguration(
            "batch", ", ".join(missing), "columns are missing that say where the messages lie",
            hint="Commit a batch as the consumer handed it out.",
        )  # fmt: skip
    if not batch.num_rows:
        return {}
    ends = {end - 1 for name in _PLACE for end in pc.run_end_encode(batch.column(name)).run_ends.to_pylist()}
    last = batch.take(numbers(np.array(sorted(ends), np.int64))) if ends else batch
    found: dict[MessageQueue, int] = {}
    places = (last.column(name).to_pylist() for name in (*_PLACE, "offset"))
    for topic, broker, queue, offset in zip(*places, strict=True):
        place = MessageQueue(topic, broker, queue)
        found[place] = max(offset, found.get(place, -1))
    return found


def _placed(queue: MessageQueue, piece: FrameSlice) -> pa.RecordBatch:
    rows = piece.rows
    place = [
        repeated(queue.topic, rows),
        repeated(queue.broker, rows),
        pa.repeat(number(queue.queue, pa.int32()), rows),
        numbers(piece.offsets()),
        pa.repeat(number(piece.header.stored_at_us, _STORED_AT), rows),
    ]
    return pa.RecordBatch.from_arrays([*piece.batch.columns, *place], schema=CONSUMED_SCHEMA)
