"""The sink: rows become messages, sent by the tasks that have them. At least once.

A task gathers rows of one destination into requests of `maxRequestBytes` and keeps a few
requests in flight, so that preparing the next and sending the last happen at the same time.
Where order matters (queueSelection=hash, rows that name their queue) there is only one in
flight. A task ends when all it sent is acknowledged; until then nothing is promised, and
when it fails Spark runs it again, so messages can be there twice but none is missing.

Every writer returns a SinkCommit; what `commit` does with them is what a delivery is.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, cast

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from pyspark_rocketq.connections import connection_to
from pyspark_rocketq.options import QueueSelection, SinkOptions
from rocketq.config import ProducerConfig
from rocketq.errors import InvalidConfiguration
from rocketq.protocol.model import SendResult, SendStatus

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_rocketq.outgoing import Destination
    from rocketq.producer import Producer, SelectionName

log = logging.getLogger("pyspark_rocketq")

#: Requests in flight of one task, where order does not matter.
IN_FLIGHT: Final = 3
#: A task holds at most so many requests' worth of rows that are not full requests yet.
GATHERED_REQUESTS: Final = 4
#: Attempts end with sendTimeoutMs, not with their number.
RETRIES: Final = 1_000

_SELECTIONS: Final[dict[QueueSelection, SelectionName]] = {
    QueueSelection.ROUND_ROBIN: "round_robin",
    QueueSelection.HASH: "hash",
    QueueSelection.RANDOM: "random",
}


@dataclass(frozen=True)
class SinkCommit(WriterCommitMessage):
    """What one task sent, all of it acknowledged; `less_safe` of it not as safely as the broker is set to."""

    messages: int
    requests: int
    less_safe: int


class Shipment:
    """What one task sends: gathered, in flight, acknowledged."""

    def __init__(self, producer: Producer, options: SinkOptions) -> None:
        self._producer, self._options = producer, options
        self._in_flight_max = 1 if options.selection is QueueSelection.HASH else IN_FLIGHT
        self._gathered: dict[Destination, list[pa.RecordBatch]] = {}
        self._gathered_bytes: dict[Destination, int] = {}
        self._in_flight: set[Future[list[SendResult]]] = set()
        self._workers = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="rocketq-sink")
        self._messages = self._requests = self._less_safe = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take over the rows of a batch; blocks while enough is in flight. Raises what a send raised."""
        from pyspark_rocketq.outgoing import addressed

        for destination, messages in addressed(batch, self._options.topic):
            self._gathered.setdefault(destination, []).append(messages)
            held = self._gathered_bytes.get(destination, 0) + messages.nbytes
            self._gathered_bytes[destination] = held
            if held >= self._options.max_request_bytes:
                self._ship(destination)
        while sum(self._gathered_bytes.values()) > GATHERED_REQUESTS * self._options.max_request_bytes:
            self._ship(max(self._gathered_bytes, key=lambda d: self._gathered_bytes[d]))

    def finish(self) -> SinkCommit:
        """Send what is left, wait for every acknowledgement, and tell what was sent."""
        for destination in list(self._gathered):
            self._ship(destination)
        self._settle(0)
        if self._less_safe:
            log.warning(
                "%d messages are stored, but not as safely as their broker is set to.", self._less_safe
            )
        return SinkCommit(self._messages, self._requests, self._less_safe)

    def close(self) -> None:
        """Let nothing go on after the task: what has not begun is dropped, what is in flight ends."""
        self._workers.shutdown(wait=True, cancel_futures=True)

    def _ship(self, destination: Destination) -> None:
        import pyarrow as pa

        batches = self._gathered.pop(destination)
        del self._gathered_bytes[destination]
        table = pa.Table.from_batches(batches)
        allowed = 1 if destination.queue is not None else self._in_flight_max
        self._settle(allowed - 1)
        self._in_flight.add(self._workers.submit(self._send, destination, table))

    def _send(self, destination: Destination, table: pa.Table) -> list[SendResult]:
        return self._producer.send_batch(
            destination.topic,
            table.combine_chunks(),
            selection=_SELECTIONS[self._options.selection],
            queue=destination.queue,
        )

    def _settle(self, left: int) -> None:
        """Wait until at most `left` requests are in flight; raise what one of them raised."""
        while len(self._in_flight) > left:
            done, _ = wait(self._in_flight, return_when=FIRST_COMPLETED)
            self._in_flight -= done
            for future in done:
                for result in future.result():
                    self._messages += result.count
                    self._requests += 1
                    if result.status is not SendStatus.SEND_OK:
                        self._less_safe += result.count


_producers: dict[tuple[int, tuple[str, ...], int, int, str | None], Producer] = {}
_lock = threading.Lock()


def _producer_for(options: SinkOptions) -> Producer:
    """Return this process's producer for these options: what it learned of slow brokers serves on."""
    from rocketq.producer import Producer

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


def send_rows(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> SinkCommit:
    """Send all rows of a task; return when the last is acknowledged."""
    shipment = Shipment(_producer_for(options), options)
    try:
        for batch in batches:
            if batch.num_rows:
                shipment.add(batch)
        return shipment.finish()
    finally:
        shipment.close()


def refuse_overwrite(overwrite: bool) -> None:
    """A topic only grows: raise for df.write.mode("overwrite")."""
    if overwrite:
        raise InvalidConfiguration(
            "mode", "overwrite", "messages that were sent cannot be taken back",
            hint='Use .mode("append"). To start over, delete and create the topic.',
        )  # fmt: skip


class RocketqWriter(DataSourceArrowWriter):
    """`df.write.format("rocketq")`, at least once."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return send_rows(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing to do: what the tasks sent is in the topic already."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _warn_of_remains(messages)


class RocketqStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("rocketq")`, at least once: a batch that is repeated is sent again."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return send_rows(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing to do: what the tasks sent is in the topic already."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _warn_of_remains(messages)


def _warn_of_remains(messages: Sequence[WriterCommitMessage | None]) -> None:
    sent = sum(message.messages for message in messages if isinstance(message, SinkCommit))
    log.warning("The write failed after %d messages of whole tasks were sent; they stay in the topic.", sent)
