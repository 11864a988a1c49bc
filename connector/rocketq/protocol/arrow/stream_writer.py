"""Arrow IPC streams of schema message/1, written: the batch messages that are sent, framed and stored.

What a stream is made of is said in `rocketq.protocol.arrow.stream_reader`.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rocketq.protocol.message_schema import MESSAGE_SCHEMA, nulls

#: What a stream of message/1 begins with.
STREAM_SCHEMA: Final = MESSAGE_SCHEMA.serialize()
#: What a stream ends with: the prefix of a message without metadata.
END_OF_STREAM: Final = struct.pack("<ii", -1, 0)
_MAP_COLUMN: Final = MESSAGE_SCHEMA.get_field_index("properties")


def encapsulate(batch: pa.RecordBatch, codec: str | None = None) -> pa.Buffer:
    """Serialise a batch of schema message/1 to its encapsulated message (codec: None, lz4 or zstd)."""
    if codec is None:
        return _compact(batch).serialize()
    stream = write_stream([batch], codec)
    prologue = STREAM_SCHEMA.size
    return stream.slice(prologue, stream.size - prologue - len(END_OF_STREAM))


def write_stream(batches: list[pa.RecordBatch], codec: str | None = None) -> pa.Buffer:
    """Serialise batches of schema message/1 as one IPC stream (codec: None, lz4 or zstd)."""
    sink = pa.BufferOutputStream()
    write_batches(sink, batches, codec)
    return sink.getvalue()


def write_batches(sink: Any, batches: list[pa.RecordBatch], codec: str | None) -> None:
    """Write one IPC stream of batches of schema message/1 to what Arrow can write to."""
    options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)
    with pa.ipc.new_stream(sink, MESSAGE_SCHEMA, options=options) as writer:
        for batch in batches:
            writer.write_batch(_compact(batch))


def _compact(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy the map column if it is a slice: Arrow writes a sliced map with all offsets of its parent."""
    column = batch.column(_MAP_COLUMN)
    offsets = column.buffers()[1]
    if offsets is None or offsets.size <= 4 * (len(column) + 1) + 64:
        return batch
    if column.null_count == len(column):
        fresh = nulls(len(column), column.type)
    else:
        fresh = column.take(np.arange(len(column)))
    return batch.set_column(_MAP_COLUMN, MESSAGE_SCHEMA.field(_MAP_COLUMN), fresh)
