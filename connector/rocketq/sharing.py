"""Many messages in one call: slices packed into requests, the brokers of them in parallel.

A batch that was shared out among queues (`rocketq.selector`) becomes *parcels*, each what one
request carries to one broker. The parcels of a broker follow each other, so that what goes to
one queue keeps its order; brokers do not wait for one another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Final, Generic, TypeVar

import pyarrow as pa

from rocketq.delivery import Parcel
from rocketq.errors import RocketqError
from rocketq.protocol.model import MessageQueue
from rocketq.selector import QueueSelector, QueueSlice, Selection, batch_bytes

#: Batches in one request: the broker checks each, and takes at most 1,024.
REQUEST_SLICES_MAX: Final = 256

R = TypeVar("R")


class SharedSend(Generic[R]):
    """One call that sends many messages: `results` is what is stored so far, in the order of the input."""

    def __init__(self, deliver: Callable[[Parcel], list[R]], workers: Callable[[], Executor]) -> None:
        """`deliver` sends one parcel; `workers` is asked for threads only if there are several brokers."""
        self._deliver, self._workers = deliver, workers
        self.results: list[R] = []

    def send(self, by_broker: Mapping[str, Sequence[Parcel]]) -> None:
        """Send one batch's parcels, each broker's in order, the brokers in parallel.

        Raises what the first failed send raised, when all have ended.
        """
        stored: list[tuple[int, R]] = []
        errors: list[RocketqError] = []

        def send_to_one(broker_parcels: Sequence[Parcel]) -> None:
            try:
                for parcel in broker_parcels:
                    results = self._deliver(parcel)
                    stored.extend(
                        (s.first_row, result) for s, result in zip(parcel.slices, results, strict=True)
                    )
            except RocketqError as error:
                errors.append(error)

        lists = list(by_broker.values())
        pending = [self._workers().submit(send_to_one, others) for others in lists[1:]]
        for own in lists[:1]:
            send_to_one(own)
        for future in pending:
            future.result()
        self.results += [result for _, result in sorted(stored, key=lambda pair: pair[0])]
        if errors:
            raise errors[0]


def grouped(batches: Sequence[pa.RecordBatch], request_bytes: int) -> Iterator[list[pa.RecordBatch]]:
    """Yield the batches in order, together what fits one request of about `request_bytes`."""
    group: list[pa.RecordBatch] = []
    total = 0
    for batch in batches:
        size = batch_bytes(batch)
        if group and total + size > request_bytes:
            yield group
            group, total = [], 0
        group.append(batch)
        total += size
    if group:
        yield group


def partitioned(
    selector: QueueSelector,
    queues: Sequence[MessageQueue],
    batches: Sequence[pa.RecordBatch],
    selection: Selection,
) -> list[QueueSlice]:
    """Share several batches out, one after the other; `first_row` counts from the first row of the first."""
    slices: list[QueueSlice] = []
    before = 0
    for batch in batches:
        slices += [
            replace(piece, first_row=before + piece.first_row)
            for piece in selector.partition(queues, batch, selection)
        ]
        before += batch.num_rows
    return slices


def parcels(topic: str, slices: Sequence[QueueSlice], request_bytes: int) -> dict[str, list[Parcel]]:
    """Pack slices into parcels of about `request_bytes`, by broker; slices keep their order."""
    packed: dict[str, list[Parcel]] = {}
    open_slices: dict[str, list[QueueSlice]] = {}
    open_bytes: dict[str, int] = {}

    def close(broker: str) -> None:
        taken = open_slices.pop(broker, [])
        if taken:
            packed.setdefault(broker, []).append(Parcel(topic, tuple(taken)))

    for piece in slices:
        broker = piece.queue.broker
        size = batch_bytes(piece.batch)
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
