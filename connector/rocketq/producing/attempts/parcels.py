"""What one request carries to one broker, and packing slices into such requests.

Pure. A batch that a selector shared out among queues (`queue_selectors`) becomes parcels. The
slices of one broker keep their order, from slice to slice and from parcel to parcel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from rocketq.model import MessageQueue
from rocketq.producing.selection.queue_selectors import QueueSelector, QueueSlice, Selection, batch_bytes
from rocketq.protocol.arrow.stream_parts import PIECE_BYTES_MIN, stream_pieces
from rocketq.protocol.arrow.stream_reader import write_stream
from rocketq.protocol.pieces import Pieces

#: The body of one request.
Content: TypeAlias = memoryview | Pieces

#: Batches in one request: the broker checks each, and takes at most 1,024.
REQUEST_SLICES_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class Parcel:
    """Slices of one topic for queues of one broker, sent in one request."""

    topic: str
    slices: tuple[QueueSlice, ...]

    @property
    def broker(self) -> str:
        return self.slices[0].queue.broker


def stream_of(parcel: Parcel, compression: str | None) -> Content:
    """Return a parcel's messages as one Arrow stream; what is large of them is not copied."""
    batches = [piece.batch for piece in parcel.slices]
    if sum(map(batch_bytes, batches)) >= PIECE_BYTES_MIN:
        return stream_pieces(batches, compression)
    return memoryview(write_stream(batches, compression))


def shared_anew(
    parcel: Parcel, selector: QueueSelector, queues: Sequence[MessageQueue], now_ms: int, request_bytes: int
) -> list[Parcel]:
    """Choose the queue of each message of a parcel again, among `queues`.

    Messages that an ordered selector puts into one queue keep their order. Raises what the selector raises:
    QueueNotFound where the messages belong to a queue that is not among `queues`.
    """
    slices = parcel.slices
    table = pa.Table.from_batches([piece.batch for piece in slices])
    (whole,) = table.combine_chunks().to_batches()
    rows = np.concatenate([piece.row_numbers() for piece in slices])
    hashes = [piece.hashes for piece in slices if piece.hashes is not None]
    selection = Selection(now_ms=now_ms, hashes=np.concatenate(hashes) if hashes else None)
    pieces = [
        QueueSlice(piece.queue, piece.batch, int(numbers[0]), numbers, piece.hashes)
        for piece in selector.partition(queues, whole, selection)
        for numbers in [rows[piece.row_numbers()]]
    ]
    by_broker = parcels(parcel.topic, pieces, request_bytes)
    return [made for one_brokers in by_broker.values() for made in one_brokers]


def parcels(topic: str, slices: Sequence[QueueSlice], request_bytes: int) -> dict[str, list[Parcel]]:
    """Pack slices of one topic into parcels of about `request_bytes`, by broker; slices keep their order."""
    packed: dict[str, list[Parcel]] = {}
    open_slices: dict[str, list[QueueSlice]] = {}
    open_bytes: dict[str, int] = {}

    def close(broker: str) -> None:
        taken = open_slices.pop(broker, [])
        if taken:
            packed.setdefault(broker, []).append(Parcel(topic, tuple(taken)))

    for piece in slices:
        broker = piece.queue.broker
        size = piece.nbytes
        taken = open_slices.get(broker)
        if taken and (open_bytes[broker] + size > request_bytes or len(taken) == REQUEST_SLICES_MAX):
            close(broker)
        if broker not in open_slices:
            open_slices[broker], open_bytes[broker] = [], 0
        open_slices[broker].append(piece)
        open_bytes[broker] += size
    for broker in list(open_slices):
        close(broker)
    return packed
