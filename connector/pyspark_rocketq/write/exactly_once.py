"""Exactly once: tasks stage, the driver's commit decides (`rocketq.sinks.sink`).

    task     learns the batch and the run it works for, begins the run at the sink's coordinator (once a
             process), and stages its rows; of a batch that is decided already it only counts them
    driver   commit: one call that names every staged frame of every task that counted, and how many rows
             there were for each topic; the coordinator refuses a batch that was decided with other rows,
             or that lies below the last decided one (`onDecidedBatch`), and Spark does not commit it
             abort: one call that ends the run, unless the batch is decided

Rows of a task attempt that failed, or lost to another, are named by no commit and are never seen.

Which batch it is:

    stream                 sink = sinkId or the query's id, number = Spark's batch, run = the query's run
    txnAppId, txnVersion   sink = txnAppId, number = txnVersion, run = this write; a version at or below
                           the last one is skipped, as in Delta
    batch write            a sink of its own, deleted when the write is over: all of its rows or none
"""

from __future__ import annotations

import logging
import os
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import WriterCommitMessage

from pyspark_rocketq.connections import connection_to
from pyspark_rocketq.errors import BatchUnknown
from pyspark_rocketq.options.options import SinkOptions
from pyspark_rocketq.write.task_sender import producer_for, queue_choice, send_all
from rocketq.errors import RocketqError
from rocketq.errors.sink_errors import BatchAlreadyDecided, BatchDiffers, SinkBusy, SinkQueryChanged
from rocketq.model import SendStatus
from rocketq.protocol.documents.sinks import CommitOutcome, Participant
from rocketq.sinks.sink import Sink

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("pyspark_rocketq")

#: What Spark tells a task of a streaming query, as local properties.
QUERY_PROPERTY: Final = "sql.streaming.queryId"
BATCH_PROPERTY: Final = "streaming.sql.batchId"
#: StreamExecution puts its jobs into a group named by the run.
RUN_PROPERTY: Final = "spark.jobGroup.id"

#: The next run does what an abort would do, so a query that ends does not wait long for an abort.
ABORT_TIMEOUT_MS: Final = 5_000
#: Sinks that one process remembers: workers live on, and each batch write may have a sink of its own.
SINKS_MAX: Final = 64


@dataclass(frozen=True)
class Batch:
    """What a write is for: a numbered batch of a sink, by one run, of a query if there is one."""

    sink: str
    number: int
    run: str
    query: str = ""
    #: Whether the sink is there for this one write.
    is_single: bool = False


@dataclass(frozen=True)
class StagedCommit(WriterCommitMessage):
    """What one task staged, all of it acknowledged; nothing of it counts before the commit names it."""

    batch: Batch
    participants: tuple[Participant, ...]
    #: How many rows the task had for each topic, also where it staged none because the batch is decided.
    rows: Mapping[str, int]
    less_safe: int = 0


def stream_batch(options: SinkOptions) -> Batch:
    """Return the batch that the running task of a streaming query works for. Raises BatchUnknown."""
    query, number, run = (
        _task_property(QUERY_PROPERTY),
        _task_property(BATCH_PROPERTY),
        _task_property(RUN_PROPERTY),
    )
    if not query or not number or not run:
        raise BatchUnknown()
    return Batch(options.sink or query, int(number), run, query)


def write_batch(options: SinkOptions) -> Batch:
    """Return the batch that a batch write is; made once, on the driver, and carried to its tasks.

    The sink of a single write is made here, so that a task that outlives the write cannot make it anew.
    """
    run = uuid.uuid4().hex
    if options.transaction is not None:
        return Batch(options.transaction.app, options.transaction.version, run)
    batch = Batch(f"write-{run}", 0, run, is_single=True)
    _sink(options, batch.sink, options.send_timeout_ms).begin(run)
    return batch


def query_of_task() -> str:
    """Return the query that a task works for inside foreachBatch; empty where Spark does not tell."""
    return _task_property(QUERY_PROPERTY)


def stage_rows(options: SinkOptions, batch: Batch, rows: Iterator[pa.RecordBatch]) -> StagedCommit:
    """Stage all rows of a task; return when the last is acknowledged."""
    sink = _sink(options, batch.sink, options.send_timeout_ms)
    try:
        decided = sink.begin(batch.run, batch.query, elect=not batch.is_single)
    except SinkQueryChanged as error:
        error.hint = _another_checkpoint(batch.sink)
        raise
    if decided is not None and batch.number <= decided:
        return StagedCommit(batch, (), _counted(options, rows))
    from rocketq.producing.staged_send import participants, rows_by_topic

    stage = sink.stage(batch.number, batch.run)
    sender = producer_for(options).batch_stager(stage, **queue_choice(options))
    staged = send_all(sender, options, rows)
    less_safe = sum(piece.count for piece in staged if piece.status is not SendStatus.SEND_OK)
    return StagedCommit(batch, participants(staged), rows_by_topic(staged), less_safe)


def _counted(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> Mapping[str, int]:
    """Count the rows of a task by topic, for a batch that is decided.

    Reads them all: Spark writes its own books, as observed metrics, as rows pass, and does not use a
    worker again that leaves some unread.
    """
    from pyspark_rocketq.write.rows_to_messages import addressed

    rows: Counter[str] = Counter()
    for batch in batches:
        if batch.num_rows:
            for destination, messages in addressed(batch, options.topic):
                rows[destination.topic] += messages.num_rows
    return rows


def commit(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Have the coordinator decide that the batch is what these tasks staged.

    Raises BatchAlreadyDecided, BatchDiffers, SinkFenced, StageNotFound, CommitUnanswered and the others
    of `Sink.commit`.
    """
    staged = [message for message in messages if isinstance(message, StagedCommit)]
    if not staged:
        # Not one task ran, so there is nothing to decide; a batch that is tried again is as empty.
        return
    batch = staged[0].batch
    less_safe = sum(message.less_safe for message in staged)
    if less_safe:
        log.warning("%d messages are stored, but not as safely as their broker is set to.", less_safe)
    from rocketq.producing.staged_send import merged

    sink = _sink(options, batch.sink, options.commit_timeout_ms)
    parts = merged(part for message in staged for part in message.participants)
    rows: Counter[str] = Counter()
    for message in staged:
        rows.update(message.rows)
    try:
        answer = sink.commit(
            batch.number, batch.run, parts, batch.query, rows=rows, on_decided=options.on_decided
        )
    except (BatchAlreadyDecided, BatchDiffers) as error:
        error.hint = _numbers_went_back(batch.sink)
        raise
    if answer.outcome is CommitOutcome.ALREADY_COMMITTED:
        log.info("Batch %d of sink %s was committed before.", batch.number, batch.sink)
    elif answer.outcome is CommitOutcome.SKIPPED:
        # Python shows a WARNING without any setting of its own.
        kind = ("Sink", "batch") if options.transaction is None else ("txnAppId", "txnVersion")
        log.warning(_SKIPPED, kind[0], batch.sink, kind[1], batch.number, answer.decided, rows.total())


def abort(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """End the run, so that what it staged is dropped soon; a batch that is decided stays."""
    staged = [message for message in messages if isinstance(message, StagedCommit)]
    if not staged:
        log.warning("The write failed before a task was through; the sink's next run drops what it staged.")
        return
    batch = staged[0].batch
    try:
        answer = _sink(options, batch.sink, ABORT_TIMEOUT_MS).abort(batch.number, batch.run)
    except RocketqError as error:
        # Nothing depends on it: the run is over when the next begins, and the brokers ask by themselves.
        log.warning("Batch %d of sink %s could not be aborted: %s", batch.number, batch.sink, error)
        return
    held = "is decided and stays" if answer.is_decided else "is given up, and nothing of it is seen"
    log.warning("The write failed; batch %d of sink %s %s.", batch.number, batch.sink, held)


def clear_up(options: SinkOptions, batch: Batch) -> None:
    """Delete the sink of a single write that is over; one that is busy is for `rocketq sink delete`."""
    if not batch.is_single:
        return
    try:
        _sink(options, batch.sink, ABORT_TIMEOUT_MS).delete()
    except SinkBusy as error:
        log.warning("The write is committed, and a broker has yet to publish its part. %s", error)
    except RocketqError as error:
        log.warning("Sink %s of a write that is over could not be deleted: %s", batch.sink, error)


def _sink(options: SinkOptions, name: str, timeout_ms: int) -> Sink:
    return _sink_of_process(os.getpid(), options.nameservers, name, timeout_ms)


@lru_cache(maxsize=SINKS_MAX)
def _sink_of_process(_pid: int, nameservers: tuple[str, ...], name: str, timeout_ms: int) -> Sink:
    connection = connection_to(nameservers)
    return Sink(connection.transport, connection.routes, name, timeout_ms=timeout_ms)


def _task_property(name: str) -> str:
    """Return a local property of the running task; empty if there is none, or no task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return (context.getLocalProperty(name) or "") if context is not None else ""


_SKIPPED: Final = "%s %s, %s %d: skipped, since %s is the last one written. Rows not written: %d."


def _numbers_went_back(sink: str) -> str:
    return (
        f"To write this batch and those after it, run `rocketq sink reset {sink}` and start the query again; "
        'or set .option("sinkId", ...) to a new name. Rows that were written before are written again then. '
        'With .option("onDecidedBatch", "skip") batches up to the last decided one write nothing. '
        "docs/spark.md, A checkpoint that was set back, has more."
    )


def _another_checkpoint(sink: str) -> str:
    return (
        'Set .option("sinkId", ...) to a new name; or, if this query goes on where the other stopped, '
        f"run `rocketq sink reset {sink}` and start it again. docs/spark.md, A new checkpoint, has more."
    )
