"""The sink: each task sends its rows as messages.

At least once: a task ends when the brokers have acknowledged all its messages. If a task fails, Spark runs
it again, so messages can be stored twice, and none is missing.

Exactly once: the tasks stage messages, which no consumer sees, and the driver's commit publishes them once
(`pyspark_rocketq.write.exactly_once`).

Each task returns one commit message. At-least-once ignores them in `commit`; exactly-once sends one
decision that lists what all tasks staged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from pyspark_rocketq.options.options import DeliveryGuarantee, SinkOptions
from pyspark_rocketq.write import exactly_once
from pyspark_rocketq.write.task_sender import producer_for, queue_choice, send_all
from rocketq.errors import InvalidConfiguration
from rocketq.model import SendStatus

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("pyspark_rocketq")


@dataclass(frozen=True)
class SinkCommit(WriterCommitMessage):
    """What one task sent, all of it acknowledged; `less_safe` of it not as safely as the broker is set to."""

    messages: int
    requests: int
    less_safe: int


def send_rows(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> SinkCommit:
    """Send all rows of a task; return when the last is acknowledged."""
    sender = producer_for(options).batch_sender(**queue_choice(options))
    results = send_all(sender, options, batches)
    less_safe = sum(result.count for result in results if result.status is not SendStatus.SEND_OK)
    if less_safe:
        log.warning("%d messages are stored, but not as safely as their broker is set to.", less_safe)
    return SinkCommit(sum(result.count for result in results), len(results), less_safe)


def refuse_overwrite(overwrite: bool) -> None:
    """A topic only grows: raise for df.write.mode("overwrite")."""
    if overwrite:
        raise InvalidConfiguration(
            "mode", "overwrite", "messages that were sent cannot be taken back",
            hint='Use .mode("append"). To start over, delete and create the topic.',
        )  # fmt: skip


class RocketqWriter(DataSourceArrowWriter):
    """`df.write.format("rocketq")`: at least once, or one transaction."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._batch = None
        if options.delivery is DeliveryGuarantee.EXACTLY_ONCE:
            self._batch = exactly_once.write_batch(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if self._batch is None:
            return send_rows(self._options, iterator)
        query = exactly_once.query_of_task() if self._options.transaction is not None else ""
        return exactly_once.stage_rows(self._options, replace(self._batch, query=query), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the transaction; at least once there is nothing to do, since what was sent is there."""
        if self._batch is not None:
            exactly_once.commit(self._options, messages)
            exactly_once.clear_up(self._options, self._batch)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._batch is None:
            _warn_of_remains(messages)
        else:
            exactly_once.abort(self._options, messages)
            exactly_once.clear_up(self._options, self._batch)


class RocketqStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("rocketq")`: each micro-batch exactly once, or at least once."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._is_exact = options.delivery is DeliveryGuarantee.EXACTLY_ONCE

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if self._is_exact:
            batch = exactly_once.stream_batch(self._options)
            return exactly_once.stage_rows(self._options, batch, iterator)
        return send_rows(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit the micro-batch; at least once there is nothing to do, since what was sent is there."""
        if self._is_exact:
            exactly_once.commit(self._options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if self._is_exact:
            exactly_once.abort(self._options, messages)
        else:
            _warn_of_remains(messages)


def _warn_of_remains(messages: Sequence[WriterCommitMessage | None]) -> None:
    sent = sum(message.messages for message in messages if isinstance(message, SinkCommit))
    log.warning("The write failed after %d messages of whole tasks were sent; they stay in the topic.", sent)
