"""Batches and transactions that come again, against real brokers; called as Spark calls."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence

import pyarrow as pa
import pytest

from pyspark_rocketq.options.options import SinkOptions, sink_options
from pyspark_rocketq.options.table import Use
from pyspark_rocketq.write import exactly_once
from pyspark_rocketq.write.exactly_once import Batch, StagedCommit
from pyspark_rocketq.write.writer import RocketqWriter
from rocketq.client import Client
from rocketq.errors.sink_errors import BatchAlreadyDecided, BatchDiffers
from rocketq.protocol.documents.sinks import SinkDescription
from tests.support.spark_harness import Source


def rows(*values: str, topics: Sequence[str] | None = None) -> pa.RecordBatch:
    columns = {"value": pa.array(values, pa.string())}
    if topics is not None:
        columns["topic"] = pa.array(topics, pa.string())
    return pa.RecordBatch.from_pydict(columns)


def streaming(source: Source, **options: str) -> SinkOptions:
    given = {"nameservers": ",".join(source.nameservers), "topic": source.topic, "sinkId": source.topic}
    return sink_options({name: text for name, text in (given | options).items() if text}, Use.STREAM_WRITE)


def task(options: SinkOptions, number: int, run: str, *batches: pa.RecordBatch) -> StagedCommit:
    """What a task of a micro-batch does; the sink of the options is that of the query."""
    assert options.sink is not None
    return exactly_once.stage_rows(options, Batch(options.sink, number, run, "query-1"), iter(batches))


def micro_batch(options: SinkOptions, number: int, *batches: pa.RecordBatch) -> StagedCommit:
    """A micro-batch of one task, by a query that was started just for it."""
    staged = task(options, number, f"run-{uuid.uuid4().hex}", *batches)
    exactly_once.commit(options, [staged])
    return staged


def values(source: Source) -> list[str]:
    return sorted(row["value"].decode() for row in source.rows())


def known(client: Client, source: Source) -> SinkDescription:
    return client.sink(source.topic).describe()


# --- micro-batches -------------------------------------------------------------------------------


def test_a_repeated_batch_is_counted_and_not_staged(source: Source, client: Client) -> None:
    options = streaming(source)
    micro_batch(options, 0, rows("a", "b"), rows(), rows("c"))
    again = micro_batch(options, 0, rows("a"), rows("b", "c"))
    assert (again.participants, dict(again.rows)) == ((), {source.topic: 3})
    assert values(source) == ["a", "b", "c"]
    with pytest.raises(BatchDiffers, match="was decided with 3 rows and comes again with 4") as raised:
        micro_batch(options, 0, rows("a", "b", "c", "d"))
    assert f"rocketq sink reset {source.topic}" in str(raised.value)
    assert '.option("onDecidedBatch", "skip")' in str(raised.value)
    assert values(source) == ["a", "b", "c"]


def test_rows_of_a_repeated_batch_are_compared_topic_by_topic(source: Source, client: Client) -> None:
    other = f"{source.topic}-other"
    client.create_topic(other, queues=1)
    options = streaming(source, topic="")
    both = [source.topic, other, other]
    micro_batch(options, 0, rows("a", "b", "c", topics=both))
    micro_batch(options, 0, rows("c", "b", "a", topics=both[::-1]))
    with pytest.raises(BatchDiffers) as raised:
        micro_batch(options, 0, rows("a", "b", "c", topics=[source.topic, source.topic, other]))
    assert raised.value.facts["topics"] == {source.topic: [1, 2], other: [2, 1]}


def test_batches_of_a_checkpoint_that_was_set_back_are_refused(source: Source, client: Client) -> None:
    options = streaming(source)
    for number in range(4):
        micro_batch(options, number, rows(f"{number}"))
    with pytest.raises(BatchAlreadyDecided, match="with its 2 rows: the sink has decided batches up to 3"):
        micro_batch(options, 1, rows("new", "newer"))
    assert values(source) == ["0", "1", "2", "3"]
    assert known(client, source).decided == 3


def test_a_task_that_staged_before_the_decision_is_counted(source: Source, client: Client) -> None:
    options = streaming(source)
    early = task(options, 0, "run-1", rows("a", "b"))
    micro_batch(options, 0, rows("a", "b", "c"))
    late = task(options, 0, "run-3", rows("c"))
    assert [bool(each.participants) for each in (early, late)] == [True, False]
    exactly_once.commit(options, [early, late])
    assert values(source) == ["a", "b", "c"]


def test_decided_batches_are_skipped_where_the_query_says_so(
    source: Source, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    options = streaming(source, onDecidedBatch="skip")
    for number in range(3):
        micro_batch(options, number, rows(f"{number}"))
    with caplog.at_level(logging.WARNING, "pyspark_rocketq"):
        micro_batch(options, 1, rows("new", "newer"))
    assert (
        f"Sink {source.topic}, batch 1: skipped, since 2 is the last one written. Rows not written: 2."
        in caplog.text
    )
    micro_batch(options, 3, rows("3"))
    assert values(source) == ["0", "1", "2", "3"]


# --- transactions --------------------------------------------------------------------------------


def write(source: Source, version: int, *batches: pa.RecordBatch) -> None:
    """A write with a transaction, of one task."""
    given = {"nameservers": ",".join(source.nameservers), "topic": source.topic}
    given |= {"txnAppId": source.topic, "txnVersion": str(version)}
    writer = RocketqWriter(sink_options(given, Use.BATCH_WRITE))
    writer.commit([writer.write(iter(batches))])


def test_a_version_not_above_the_last_is_skipped_with_a_warning(
    source: Source, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    write(source, 7, rows("a", "b"))
    for version, late in ((2, rows("x", "y", "z")), (7, rows("a", "b"))):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "pyspark_rocketq"):
            write(source, version, late)
        assert (
            f"txnAppId {source.topic}, txnVersion {version}: skipped, since 7 is the last one written. "
            f"Rows not written: {late.num_rows}." in caplog.text
        )
    write(source, 9, rows("c"))
    assert values(source) == ["a", "b", "c"]


def test_a_write_without_rows_consumes_its_version(
    source: Source, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    write(source, 3)
    assert known(client, source).decided == 3
    with caplog.at_level(logging.WARNING, "pyspark_rocketq"):
        write(source, 3, rows("late"))
    assert "since 3 is the last one written. Rows not written: 1." in caplog.text
    assert values(source) == []
