"""Messages of one queue at given offsets, read frame by frame; it waits for the disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rocketq.errors import CorruptFrame, OffsetOutOfRange, QueueNotFound, TopicNotFound
from rocketq.protocol.frame_slices import iter_frames
from rocketq_broker.store.errors import CorruptQueue
from rocketq_broker.store.store import MessageStore


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Messages of one frame, and the places of their offsets in the list that was asked for."""

    batch: pa.RecordBatch
    places: Sequence[int]


def rows_at(store: MessageStore, topic: str, queue: int, offsets: Sequence[int]) -> Iterator[FoundRows]:
    """Yield the messages at some offsets, each at most once; offsets that cannot be read are left out.

    Each frame is read and opened once, however many of its messages are wanted.
    """
    order = sorted(range(len(offsets)), key=offsets.__getitem__)
    while order:
        first = offsets[order[0]]
        try:
            pulled = store.pull(topic, queue, first, max_bytes=1, max_messages=1)
            pieces = [piece for chunk in pulled.chunks for piece in iter_frames(chunk, first)]
        except (OffsetOutOfRange, CorruptFrame, CorruptQueue):
            order = [place for place in order if offsets[place] != first]
            continue
        except (TopicNotFound, QueueNotFound):
            return
        for piece in pieces:
            held = piece.offsets()
            wanted = [place for place in order if offsets[place] < piece.next_offset]
            rows = np.searchsorted(held, [offsets[place] for place in wanted])
            found = [
                (row, p) for row, p in zip(rows.tolist(), wanted, strict=True) if held[row] == offsets[p]
            ]
            if found:
                taken = piece.batch.take(pa.array([row for row, _ in found], pa.int64()))
                yield FoundRows(taken, [place for _, place in found])
        end = max((piece.next_offset for piece in pieces), default=first + 1)
        order = [place for place in order if offsets[place] >= end]
