"""What a consumer hands out: messages with their place and time, as Arrow or as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rocketq.model import MessageQueue, StoredMessage
from rocketq.protocol.message_schema import MESSAGE_SCHEMA

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

_STORED_AT: Final = CONSUMED_SCHEMA.field("stored_at").type


@dataclass(frozen=True, slots=True)
class Part:
    """Messages of one queue from one frame, in order: message i of `batch` has offset `offset + i`,
    or `filtered_offsets[i]` if the frame came through a filter.
    """

    queue: MessageQueue
    offset: int
    stored_at_us: int
    batch: pa.RecordBatch
    filtered_offsets: npt.NDArray[np.int64] | None = None

    @property
    def rows(self) -> int:
        return int(self.batch.num_rows)

    @property
    def next_offset(self) -> int:
        if self.filtered_offsets is not None:
            return int(self.filtered_offsets[-1]) + 1
        return self.offset + self.rows

    def offsets(self) -> npt.NDArray[np.int64]:
        """Return the offset of every message."""
        if self.filtered_offsets is not None:
            return self.filtered_offsets
        return np.arange(self.offset, self.next_offset, dtype=np.int64)

    def split(self, rows: int) -> tuple[Part, Part]:
        """Return the first `rows` messages and the others, without a copy."""
        offsets = self.filtered_offsets
        some, others = (None, None) if offsets is None else (offsets[:rows], offsets[rows:])
        middle = self.offset + rows if others is None else int(others[0])
        head = Part(self.queue, self.offset, self.stored_at_us, self.batch.slice(0, rows), some)
        tail = Part(self.queue, middle, self.stored_at_us, self.batch.slice(rows), others)
        return head, tail


def as_arrow(parts: Sequence[Part]) -> pa.RecordBatch:
    """Return the messages of all parts as one batch of CONSUMED_SCHEMA; one part is not copied."""
    if not parts:
        return pa.RecordBatch.from_pylist([], schema=CONSUMED_SCHEMA)
    batches = [_placed(part) for part in parts]
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def as_messages(parts: Sequence[Part]) -> list[StoredMessage]:
    """Return the messages of all parts as values."""
    found: list[StoredMessage] = []
    for part in parts:
        columns = [_values(part.batch.column(name)) for name in ("body", "key", "tag", "properties")]
        born = _values(part.batch.column("born_at").cast(pa.int64()))
        found += [
            StoredMessage(
                part.queue,
                offset,
                body,
                key,
                tag,
                None if properties is None else dict(properties),
                born_at_us,
                part.stored_at_us,
            )
            for offset, body, key, tag, properties, born_at_us in zip(
                part.offsets().tolist(), *columns, born, strict=True
            )
        ]
    return found


def _values(column: pa.Array) -> list[Any]:
    # Most columns of most batches are all null, and Arrow boxes each null on its own.
    rows = len(column)
    return [None] * rows if column.null_count == rows else column.to_pylist()


def _placed(part: Part) -> pa.RecordBatch:
    rows = part.rows
    place = [
        pa.repeat(pa.scalar(part.queue.topic, pa.string()), rows),
        pa.repeat(pa.scalar(part.queue.broker, pa.string()), rows),
        pa.repeat(pa.scalar(part.queue.queue, pa.int32()), rows),
        pa.array(part.offsets()),
        pa.repeat(pa.scalar(part.stored_at_us, _STORED_AT), rows),
    ]
    return pa.RecordBatch.from_arrays([*part.batch.columns, *place], schema=CONSUMED_SCHEMA)
