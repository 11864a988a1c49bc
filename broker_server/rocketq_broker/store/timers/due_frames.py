"""Reads delayed messages that are due from the log, so that the log writer can put them into their queues.

What one commit delivers is bounded by the bytes of the frames that have to be read, and by its messages. A
frame often has messages that are due one after the other, so opened frames are kept for a while. Messages of
one queue leave in the order (delivery time, log offset, row), together in as few frames as possible.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rocketq.errors import CorruptFrame
from rocketq.protocol.arrow.stream_reader import read_stored
from rocketq.protocol.frame import FrameKind
from rocketq.protocol.sizes import BATCH_MESSAGES_MAX
from rocketq_broker.store.log.commit_log import CommitLog
from rocketq_broker.store.log.consume_queues import QueueKey
from rocketq_broker.store.machines.timer_table import (
    WINDOW_MS,
    TimerPlace,
    TimersDelivered,
    TimerTable,
)
from rocketq_broker.store.machines.topic_table import TopicTable
from rocketq_broker.store.timers.entries import ENTRY_BYTES, Entries, key_of, messages_by_window

#: Opened frames that are kept, in bytes.
CACHE_BYTES_MAX: Final = 64 << 20
#: Messages that one commit delivers, beyond the first entry.
MESSAGES_MAX: Final = BATCH_MESSAGES_MAX
#: A frame of delivered messages grows no larger than this, unless one message is.
FRAME_BYTES_MAX: Final = 1 << 20
#: Behind every log offset.
_LAST_OFFSET: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class DueBatch:
    """Messages that go into one queue."""

    key: QueueKey
    topic: str
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Delivery:
    """What one commit delivers, in order, and the change that says so."""

    change: TimersDelivered
    batches: tuple[DueBatch, ...]


@dataclass(slots=True)
class _Found:
    """What the entries of a delivery come to."""

    pieces: dict[QueueKey, list[tuple[pa.RecordBatch, npt.NDArray[np.int64]]]] = field(default_factory=dict)
    cancelled: list[TimerPlace] = field(default_factory=list)
    lost: int = 0
    dropped: int = 0


class DueFrames:
    """Reads what is due; used by the log writer's thread only."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._cache: OrderedDict[int, pa.RecordBatch] = OrderedDict()
        self._cached_bytes = 0

    def read(self, entries: Entries, table: TimerTable, topics: TopicTable, bytes_max: int) -> Delivery:
        """Return the delivery of the first of these entries, at least one; raise CorruptFrame."""
        some = _bounded(entries, bytes_max)
        found = _Found()
        for frame in _by_frame(some):
            self._take(frame, table, topics, found)
        change = TimersDelivered(
            *key_of(some, -1), messages_by_window(some), tuple(found.cancelled), found.lost, found.dropped
        )
        batches = [
            DueBatch(key, topics.names[key[0]], piece)
            for key, pieces in found.pieces.items()
            for piece in _cut(_ordered(pieces))
        ]
        return Delivery(change, tuple(batches))

    def _take(self, frame: Entries, table: TimerTable, topics: TopicTable, found: _Found) -> None:
        """Add the due rows of one frame; its entries are neighbours, so their rows are."""
        log_offset, number = int(frame["log_offset"][0]), int(frame["topic"][0])
        first, end = int(frame["row"][0]), int(frame["row"][-1] + frame["count"][-1])
        gone = [row for row in table.cancelled.get(log_offset, ()) if first <= row < end]
        found.cancelled += [TimerPlace(log_offset, row) for row in sorted(gone)]
        left = end - first - len(gone)
        if not left:
            return
        if not topics.has_number(number):
            found.dropped += left
            return
        batch = self._open(log_offset, int(frame["size"][0]))
        if batch is None:
            found.lost += left
            return
        due = np.repeat(frame["due_ms"], frame["count"])
        piece = batch.slice(first, end - first)
        if gone:
            kept = np.ones(end - first, np.bool_)
            kept[np.array(gone) - first] = False
            piece, due = piece.filter(pa.array(kept)), due[kept]
        if end == batch.num_rows:
            self._forget(log_offset)
        found.pieces.setdefault((number, int(frame["queue"][0])), []).append((piece, due))

    # --- frames -------------------------------------------------------------------------

    def _open(self, log_offset: int, size: int) -> pa.RecordBatch | None:
        """Return the messages of a frame; None if salvage found it lost. Raises CorruptFrame."""
        batch = self._cache.get(log_offset)
        if batch is not None:
            self._cache.move_to_end(log_offset)
            return batch
        try:
            frame = self._log.frame(log_offset, size)
        except CorruptFrame:
            if not self._log.is_lost(log_offset):
                raise
            return None
        header = frame.header
        if header.kind != FrameKind.DELAYED or header.log_offset != log_offset or header.size != size:
            if self._log.is_lost(log_offset):
                return None
            raise CorruptFrame(log_offset, "no frame of delayed messages lies there")
        batch = read_stored(frame.body)
        self._cache[log_offset] = batch
        self._cached_bytes += batch.nbytes
        while self._cached_bytes > CACHE_BYTES_MAX and len(self._cache) > 1:
            self._forget(next(iter(self._cache)))
        return batch

    def _forget(self, log_offset: int) -> None:
        batch = self._cache.pop(log_offset, None)
        if batch is not None:
            self._cached_bytes -= batch.nbytes


def passing(table: TimerTable, window: int) -> TimersDelivered:
    """Return the change that passes a whole window of which the index has nothing: its frames were lost."""
    end_ms = (window + 1) * WINDOW_MS - 1
    held = table.windows[window].messages
    cancelled = table.cancelled_up_to(end_ms)
    return TimersDelivered(end_ms, _LAST_OFFSET, {window: held}, cancelled, max(0, held - len(cancelled)))


def _bounded(entries: Entries, bytes_max: int) -> Entries:
    """Return the first entries of one commit: their frames and messages are within the bounds."""
    _, firsts = np.unique(entries["log_offset"], return_index=True)
    sizes = np.full(entries.size, ENTRY_BYTES, np.int64)
    sizes[firsts] += entries["size"][firsts]
    fits = np.searchsorted(np.cumsum(sizes), bytes_max, side="right")
    few = np.searchsorted(np.cumsum(entries["count"].astype(np.int64)), MESSAGES_MAX, side="right")
    return entries[: max(1, int(min(fits, few)))]


def _by_frame(entries: Entries) -> Iterator[Entries]:
    """Yield the entries of each frame, the frames in the order of the log."""
    by_log = entries[np.argsort(entries["log_offset"], kind="stable")]
    cuts = np.flatnonzero(np.diff(by_log["log_offset"])) + 1
    yield from np.split(by_log, cuts)


def _ordered(pieces: list[tuple[pa.RecordBatch, npt.NDArray[np.int64]]]) -> pa.RecordBatch:
    """Join the pieces of one queue, which come in the order of the log, in the order of their due times."""
    if len(pieces) == 1:
        return pieces[0][0]
    batch = pa.concat_batches([piece for piece, _ in pieces])
    due = np.concatenate([each for _, each in pieces])
    if (np.diff(due) >= 0).all():
        return batch
    return batch.take(pa.array(np.argsort(due, kind="stable")))


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch into pieces of about FRAME_BYTES_MAX."""
    rows = batch.num_rows
    pieces = min(rows, -(-batch.nbytes // FRAME_BYTES_MAX))
    step = -(-rows // max(1, pieces))
    for first in range(0, rows, step):
        yield batch.slice(first, step)
