"""Many messages in one call: slices packed into requests, the brokers of them in parallel.

A batch that was shared out among queues (`queue_selectors`) becomes *parcels*, each what one
request carries to one broker (`parcels`). The parcels of a broker follow each other, so
that what goes to one queue keeps its order; brokers do not wait for one another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Generic, TypeVar

from rocketq.errors import RocketqError
from rocketq.model import MessageQueue
from rocketq.producing.input_batches import OrderedBatch
from rocketq.producing.parcels import Parcel
from rocketq.producing.queue_selectors import QueueSelector, QueueSlice, Selection, batch_bytes

R = TypeVar("R")


class SharedSend(Generic[R]):
    """One call that sends many messages: `results` is what is stored so far, in the order of the input."""

    def __init__(
        self,
        deliver: Callable[[Parcel], Iterable[tuple[QueueSlice, R]]],
        workers: Callable[[], Executor],
    ) -> None:
        """`deliver` sends one parcel, and gives each slice with its result once it is stored; `workers` is
        asked for threads only if there are several brokers.
        """
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
                    for piece, result in self._deliver(parcel):
                        stored.append((piece.first_row, result))
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


def grouped(batches: Sequence[OrderedBatch], request_bytes: int) -> Iterator[list[OrderedBatch]]:
    """Yield the batches in order, together what fits one request of about `request_bytes`."""
    group: list[OrderedBatch] = []
    total = 0
    for one in batches:
        size = batch_bytes(one.batch)
        if group and total + size > request_bytes:
            yield group
            group, total = [], 0
        group.append(one)
        total += size
    if group:
        yield group


def partitioned(
    selector: QueueSelector,
    queues: Sequence[MessageQueue],
    batches: Sequence[OrderedBatch],
    selection: Selection,
) -> list[QueueSlice]:
    """Share several batches out, one after the other; rows count from the first row of the first."""
    slices: list[QueueSlice] = []
    before = 0
    for one in batches:
        pieces = selector.partition(queues, one.batch, replace(selection, hashes=one.hashes))
        slices += [
            replace(
                piece,
                first_row=before + piece.first_row,
                rows=None if piece.rows is None else before + piece.rows,
            )
            for piece in pieces
        ]
        before += one.batch.num_rows
    return slices
