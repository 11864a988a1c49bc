"""From the rows of an opened frame to messages as values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from rocketq.model import MessageQueue, StoredMessage
from rocketq.protocol.frame_slices import FrameSlice


def stored_messages(queue: MessageQueue, piece: FrameSlice) -> Iterator[StoredMessage]:
    """Yield the messages of a slice, which lie in `queue`, in its order."""
    columns = [column_values(piece.batch.column(name)) for name in ("body", "key", "tag", "properties")]
    born = column_values(piece.batch.column("born_at").cast(pa.int64()))
    for offset, body, key, tag, properties, born_at_us in zip(
        piece.offsets().tolist(), *columns, born, strict=True
    ):
        own = None if properties is None else dict(properties)
        yield StoredMessage(queue, offset, body, key, tag, own, born_at_us, piece.header.stored_at_us)


def column_values(column: pa.Array) -> list[Any]:
    """Return the values of a column as Python has them."""
    # Most columns of most batches are all null, and Arrow boxes each null on its own.
    rows = len(column)
    return [None] * rows if column.null_count == rows else column.to_pylist()
