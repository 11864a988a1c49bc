"""From the frames of one queue to the record batches that Spark takes as they are.

Each frame's columns pass without a copy; offset, time and the three names of the place are
added as whole columns. Frames that are small are joined, since every batch costs Spark the
same however few rows it has; large ones are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketq.model import MessageQueue
from rocketq.protocol.column_values import number, numbers, repeated, text
from rocketq.protocol.frame_slices import FrameSlice
from rocketq.protocol.message_schema import MESSAGE_COLUMNS

#: Frames are joined, which copies them, until a batch has this many rows or bytes. Measured, larger
#: batches cost Spark no less.
BATCH_ROWS_MIN: Final = 4_096
BATCH_BYTES_MIN: Final = 512 * 1024
#: No batch has more rows: it bounds the prebuilt columns, and what Spark holds at once.
BATCH_ROWS_MAX: Final = 65_536

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

#: Columns that are the message's own, by their name in the frame's batch.
_FROM_FRAME: Final = {column.row_name: column.name for column in MESSAGE_COLUMNS}


class RowBuilder:
    """Builds batches of one Arrow schema for one queue."""

    def __init__(self, queue: MessageQueue, schema: pa.Schema) -> None:
        self._queue = queue
        self._schema = schema
        self._constants = {
            "topic": repeated(queue.topic, 1),
            "broker": repeated(queue.broker, 1),
            "queue": pa.repeat(number(queue.queue, pa.int32()), 1),
        }

    def batches(self, slices: Iterable[FrameSlice]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the slices in order, small frames joined; an empty input yields nothing."""
        waiting: list[FrameSlice] = []
        rows = size = 0
        for one in slices:
            waiting.append(one)
            rows += one.batch.num_rows
            # A compressed batch inflates to more than its frame has.
            size += max(one.header.size, one.batch.nbytes)
            if rows >= BATCH_ROWS_MIN or size >= BATCH_BYTES_MIN:
                yield from self._built(waiting, rows)
                waiting, rows, size = [], 0, 0
        if waiting:
            yield from self._built(waiting, rows)

    def _built(self, slices: Sequence[FrameSlice], rows: int) -> Iterator[pa.RecordBatch]:
        names = self._schema.names
        messages = _joined(slices, [_FROM_FRAME[name] for name in names if name in _FROM_FRAME])
        offsets = _offsets(slices)
        made: dict[str, Callable[[], pa.Array]] = {
            "offset": lambda: numbers(offsets),
            "timestamp": lambda: _times(slices, rows),
            "message_id": lambda: self._ids(offsets),
        }
        columns = []
        for name in names:
            if name in _FROM_FRAME:
                columns.append(messages[_FROM_FRAME[name]])
            elif name in made:
                columns.append(made[name]())
            else:
                columns.append(self._constant(name, rows))
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        for begin in range(0, rows, BATCH_ROWS_MAX):
            yield batch.slice(begin, BATCH_ROWS_MAX) if rows > BATCH_ROWS_MAX else batch

    def _constant(self, name: str, rows: int) -> pa.Array:
        """Return `rows` times the queue's topic, broker or number, from an array made once."""
        held = self._constants[name]
        if len(held) < rows:
            # Twice what is needed, so that slowly growing batches do not make it anew each time.
            held = self._constants[name] = pa.repeat(held[0], 2 * rows)
        return held.slice(0, rows)

    def _ids(self, offsets: np.ndarray) -> pa.Array:
        prefix = f"{self._queue.broker}:{self._queue.topic}:{self._queue.queue}:"
        return pc.binary_join_element_wise(text(prefix), pc.cast(numbers(offsets), pa.string()), text(""))


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches of several queues, small batches joined."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= BATCH_ROWS_MIN or size >= BATCH_BYTES_MIN:
            yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
            waiting, rows, size = [], 0, 0
    if waiting:
        yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()


def _joined(slices: Sequence[FrameSlice], names: Sequence[str]) -> dict[str, pa.Array]:
    """Return the named columns of all slices: of one slice as they are, of several copied together."""
    if len(slices) == 1:
        return {name: slices[0].batch.column(name) for name in names}
    return {name: pa.concat_arrays([one.batch.column(name) for one in slices]) for name in names}


def _offsets(slices: Sequence[FrameSlice]) -> np.ndarray:
    first, last = slices[0].offset, slices[-1].next_offset
    counts = [one.batch.num_rows for one in slices]
    if last - first == sum(counts):
        return np.arange(first, last, dtype=np.int64)
    return np.concatenate([one.offsets() for one in slices])


def _times(slices: Sequence[FrameSlice], rows: int) -> pa.Array:
    if len(slices) == 1:
        return pa.repeat(number(slices[0].header.stored_at_us, _TIMESTAMP), rows)
    times = np.array([one.header.stored_at_us for one in slices], dtype=np.int64)
    return numbers(np.repeat(times, [one.batch.num_rows for one in slices]), _TIMESTAMP)
