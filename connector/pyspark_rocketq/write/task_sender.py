"""Sending the rows of one task: each batch goes to the producer's batch sender.

The sender gathers rows into requests of `maxRequestBytes` and keeps a few of these in flight
(`rocketq.producing.batch_sender`); at-least-once tasks give it a sender that sends, exactly-once tasks one
that stages. Each Python process keeps one producer for each set of options.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, TypedDict, TypeVar, cast

from pyspark_rocketq.connections import connection_to
from pyspark_rocketq.options.options import SinkOptions
from rocketq.config import Compression, ProducerConfig
from rocketq.errors import QueueNotFound

if TYPE_CHECKING:
    import pyarrow as pa

    from rocketq.producing.batch_sender import BatchSender
    from rocketq.producing.producer import Producer

#: Attempts end with sendTimeoutMs, not with their number.
RETRIES: Final = 1_000
#: Threads that send the requests of a task: three requests in flight, to two brokers each.
SENDER_THREADS: Final = 6

R = TypeVar("R")


class QueueChoice(TypedDict, total=False):
    """What chooses the queues of rows, as `Producer.batch_sender` and `batch_stager` take it."""

    ordering_key: str
    selection: str


def queue_choice(options: SinkOptions) -> QueueChoice:
    """Return what `queueSelection` says; a row that names its queue goes there all the same."""
    if options.selection_needs_key:
        return {"selection": options.selection, "ordering_key": "key"}
    return {"selection": options.selection}


def send_all(sender: BatchSender[R], options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> list[R]:
    """Send all rows of a task; return the results when the last request is acknowledged."""
    from pyspark_rocketq.write.rows_to_messages import addressed

    named_by_rows = set()
    with sender:
        try:
            for batch in batches:
                if batch.num_rows:
                    for destination, messages in addressed(batch, options.topic):
                        if destination.queue is not None:
                            named_by_rows.add(destination.queue)
                        sender.add(destination.topic, messages, destination.queue)
            return sender.finish()
        except QueueNotFound as error:
            place = (error.facts["topic"], error.facts.get("broker"), error.facts["queue"])
            if any((queue.topic, queue.broker, queue.queue) == place for queue in named_by_rows):
                error.hint = f"Rows name this queue in their columns broker and queue. {error.hint}"
            raise


_producers: dict[tuple[int, tuple[str, ...], int, int, str | None], Producer] = {}
_lock = threading.Lock()


def producer_for(options: SinkOptions) -> Producer:
    """Return this process's producer for these options, which remembers slow brokers from task to task."""
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
                compression=cast(Compression | None, options.compression),
                request_bytes=options.max_request_bytes,
                sender_threads=SENDER_THREADS,
            )
            found = _producers[key] = Producer(connection.transport, connection.routes, config=config)
        return found
