"""What one task sends: rows gathered into requests, a few of these in flight, all acknowledged in the end.

Rows of one destination are gathered into requests of `maxRequestBytes`, and a few requests are
kept in flight, so that preparing the next and sending the last happen at the same time. Where
order matters (queueSelection=hash, rows that name their queue) there is only one in flight.
What a request is, a send or a staged send, is the caller's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final, Generic, Literal, TypedDict, TypeVar, cast

from pyspark_rocketq.connections import connection_to
from pyspark_rocketq.options.options import QueueSelection, SinkOptions
from rocketq.config import ProducerConfig
from rocketq.errors import QueueNotFound

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_rocketq.write.rows_to_messages import Destination
    from rocketq.model import MessageQueue
    from rocketq.producing.producer import Producer, SelectionName

#: Requests in flight of one task, where order does not matter.
IN_FLIGHT: Final = 3
#: A task holds at most so many requests' worth of rows that are not full requests yet.
GATHERED_REQUESTS: Final = 4
#: Batches of this size on average go out as they came from Spark, in turn to the queues and without a copy.
JOIN_BELOW_BYTES: Final = 512 * 1024
#: Attempts end with sendTimeoutMs, not with their number.
RETRIES: Final = 1_000

R = TypeVar("R")


class Placement(TypedDict, total=False):
    """What chooses the queues of a request, as `Producer.send_batch` and `stage_batch` take it."""

    queue: MessageQueue
    ordering_key: str
    selection: SelectionName


def placement(options: SinkOptions, destination: Destination) -> Placement:
    """Return what chooses the queues: the rows' own queue, or what `queueSelection` says."""
    if destination.queue is not None:
        return {"queue": destination.queue}
    if options.selection is QueueSelection.HASH:
        return {"ordering_key": "key"}
    return {"selection": "random" if options.selection is QueueSelection.RANDOM else "round_robin"}


class Shipment(Generic[R]):
    """Rows on their way; `send` makes one request and returns a result for each slice."""

    def __init__(self, send: Callable[[Destination, pa.Table], list[R]], options: SinkOptions) -> None:
        self._request, self._options = send, options
        self._in_flight_max = 1 if options.selection is QueueSelection.HASH else IN_FLIGHT
        self._gathered: dict[Destination, list[pa.RecordBatch]] = {}
        self._gathered_bytes: dict[Destination, int] = {}
        self._in_flight: set[Future[list[R]]] = set()
        self._workers = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="rocketq-sink")
        self._results: list[R] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Take over the rows of a batch; blocks while enough is in flight. Raises what a send raised."""
        from pyspark_rocketq.write.rows_to_messages import addressed
        from rocketq.producing.queue_selectors import ROW_BYTES

        for destination, messages in addressed(batch, self._options.topic):
            size = messages.nbytes + ROW_BYTES * messages.num_rows
            held = self._gathered_bytes.get(destination, 0)
            if held and held + size > self._options.max_request_bytes:
                self._ship(destination)
                held = 0
            self._gathered.setdefault(destination, []).append(messages)
            self._gathered_bytes[destination] = held + size
        while sum(self._gathered_bytes.values()) > GATHERED_REQUESTS * self._options.max_request_bytes:
            self._ship(max(self._gathered_bytes, key=lambda d: self._gathered_bytes[d]))

    def finish(self) -> list[R]:
        """Send what is left, wait for every acknowledgement, and return all results."""
        for destination in list(self._gathered):
            self._ship(destination)
        self._settle(0)
        return self._results

    def close(self) -> None:
        """Let nothing go on after the task: what has not begun is dropped, what is in flight ends."""
        self._workers.shutdown(wait=True, cancel_futures=True)

    def _ship(self, destination: Destination) -> None:
        import pyarrow as pa

        batches = self._gathered.pop(destination)
        table = pa.Table.from_batches(batches)
        large = self._gathered_bytes.pop(destination) >= JOIN_BELOW_BYTES * len(batches)
        if self._options.selection is not QueueSelection.ROUND_ROBIN or not large:
            # Each batch becomes frames of its own, and small frames are dear ever after.
            table = table.combine_chunks()
        allowed = 1 if destination.queue is not None else self._in_flight_max
        self._settle(allowed - 1)
        self._in_flight.add(self._workers.submit(self._sent, destination, table))

    def _sent(self, destination: Destination, table: pa.Table) -> list[R]:
        try:
            return self._request(destination, table)
        except QueueNotFound as error:
            if destination.queue is not None:
                error.hint = f"Rows name this queue in their columns broker and queue. {error.hint}"
            raise

    def _settle(self, left: int) -> None:
        """Wait until at most `left` requests are in flight; raise what one of them raised."""
        while len(self._in_flight) > left:
            done, _ = wait(self._in_flight, return_when=FIRST_COMPLETED)
            self._in_flight -= done
            for future in done:
                self._results += future.result()


def shipped(
    send: Callable[[Destination, pa.Table], list[R]], options: SinkOptions, batches: Iterator[pa.RecordBatch]
) -> list[R]:
    """Send all rows of a task; return when the last is acknowledged."""
    shipment = Shipment(send, options)
    try:
        for batch in batches:
            if batch.num_rows:
                shipment.add(batch)
        return shipment.finish()
    finally:
        shipment.close()


_producers: dict[tuple[int, tuple[str, ...], int, int, str | None], Producer] = {}
_lock = threading.Lock()


def producer_for(options: SinkOptions) -> Producer:
    """Return this process's producer for these options: what it learned of slow brokers serves on."""
    from rocketq.producing.producer import Producer

    key = (
        os.getpid(),
        options.nameservers,
        options.send_timeout_ms,
        options.max_request_bytes,
        options.compression,
    )
    with _lock:
        found = _producers.get(key)
        if found is None:
            connection = connection_to(options.nameservers)
            config = ProducerConfig(
                timeout_ms=options.send_timeout_ms,
                retries=RETRIES,
                compression=cast(Literal["lz4", "zstd"] | None, options.compression),
                request_bytes=options.max_request_bytes,
            )
            found = _producers[key] = Producer(connection.transport, connection.routes, config=config)
        return found
