"""Exactly once, end to end: a real SparkSession, two brokers, and what may go wrong in between."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from pyspark_rocketq.connections import connection_to
from rocketq import LocalCluster
from rocketq.client import Client
from rocketq.model import StoredMessage
from rocketq.sinks.coordinator_lookup import Coordinators
from tests.support.patience import PatientClient
from tests.support.spark_harness import Source, fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.spark

TIMEOUT_S = 540


def copying(
    spark: SparkSession,
    source: Source,
    copy: str,
    checkpoint: Path,
    columns: Sequence[str] = ("value", "key"),
    **options: str,
) -> StreamingQuery:
    """Start a query that copies a topic to its end, exactly once as streams do by default."""
    nameservers = {"nameservers": ",".join(source.nameservers)}
    return (
        spark.readStream.format("rocketq")
        .options(**source.options({"startingOffsets": "earliest", "maxOffsetsPerTrigger": "8"}))
        .load()
        .selectExpr(*columns)
        .writeStream.format("rocketq")
        .options(topic=copy, **nameservers, **options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def finish(query: StreamingQuery) -> None:
    try:
        assert query.awaitTermination(TIMEOUT_S)
    finally:
        query.stop()


def values(source: Source, topic: str) -> list[bytes]:
    return sorted(row["value"] for row in source.rows(subscribe=topic))


def lose_last_commit(checkpoint: Path) -> None:
    """As after a driver that died between the sink's commit and Spark's commit log."""
    last = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink()


def test_a_replayed_batch_writes_nothing_and_a_new_checkpoint_is_refused(
    spark: SparkSession, source: Source, client: Client, tmp_path: Path
) -> None:
    copy = f"{source.topic}-copy"
    client.create_topic(copy, queues=2)
    fill(client, source.topic, 4)
    finish(copying(spark, source, copy, tmp_path / "a", sinkId=copy))
    lose_last_commit(tmp_path / "a")
    fill(client, source.topic, 3)
    query = copying(spark, source, copy, tmp_path / "a", sinkId=copy)
    finish(query)
    assert values(source, copy) == values(source, source.topic)
    known = client.sink(copy).describe()
    assert (known.query, known.pending) == (query.id, ())
    assert known.decided == max(int(path.name) for path in (tmp_path / "a" / "commits").glob("[0-9]*"))
    # Another checkpoint numbers its batches from 0 again.
    with pytest.raises(Exception, match="SinkQueryChanged") as caught:
        finish(copying(spark, source, copy, tmp_path / "b", sinkId=copy))
    assert f"rocketq sink reset {copy}" in str(caught.value)
    assert '.option("sinkId", ...)' in str(caught.value)
    assert values(source, copy) == values(source, source.topic)


def test_delayed_rows_are_delivered_once_and_never_early_after_a_replayed_batch(
    spark: SparkSession, source: Source, client: Client, tmp_path: Path
) -> None:
    """Of three messages of a queue one is delivered soon, one in an hour, and one at once."""
    copy = f"{source.topic}-copy"
    client.create_topic(copy, queues=2)
    now_ms = time.time_ns() // 1_000_000
    soon_ms, later_ms = now_ms + 2_000, now_ms + 3_600_000
    times = "".join(
        f" WHEN endswith(string(value), '#{number}') THEN timestamp_millis({at})"
        for number, at in enumerate((soon_ms, later_ms))
    )
    columns = ("value", "key", f"CASE{times} END AS deliver_at")
    fill(client, source.topic, 3)
    finish(copying(spark, source, copy, tmp_path / "a", columns, sinkId=copy))
    lose_last_commit(tmp_path / "a")
    finish(copying(spark, source, copy, tmp_path / "a", columns, sinkId=copy))
    wanted = values(source, source.topic)
    in_time = [value for value in wanted if not value.endswith(b"#1")]
    with client.pull_consumer(copy, start="earliest") as consumer:
        found: list[StoredMessage] = []
        while len(found) < len(in_time):
            found += consumer.poll(timeout_ms=60_000)
    assert sorted(message.body for message in found) == in_time
    assert all(each.stored_at_us >= soon_ms * 1000 for each in found if each.body.endswith(b"#0"))
    held = list(client.timers.list(copy))
    bodies = sorted(client.timers.show(each.timer_id).body for each in held)
    assert bodies == [value for value in wanted if value.endswith(b"#1")]
    assert {each.deliver_at_ms for each in held} == {later_ms}
    assert values(source, copy) == in_time


def test_a_checkpoint_that_was_set_back_fails_unless_told_to_skip(
    spark: SparkSession, source: Source, client: Client, tmp_path: Path
) -> None:
    copy, checkpoint, backup = f"{source.topic}-copy", tmp_path / "checkpoint", tmp_path / "backup"
    client.create_topic(copy, queues=2)
    fill(client, source.topic, 2)
    finish(copying(spark, source, copy, checkpoint, sinkId=copy))
    shutil.copytree(checkpoint, backup)
    fill(client, source.topic, 6)
    finish(copying(spark, source, copy, checkpoint, sinkId=copy))
    written = values(source, copy)
    assert written == values(source, source.topic)
    kept = committed(backup)
    # The backup is put back: its next batches have numbers that are decided.
    with pytest.raises(Exception, match="BatchAlreadyDecided") as caught:
        finish(copying(spark, source, copy, backup, sinkId=copy))
    assert '.option("onDecidedBatch", "skip")' in str(caught.value)
    assert committed(backup) == kept, "Spark has not committed the batch either"
    assert values(source, copy) == written
    fill(client, source.topic, 2)
    finish(copying(spark, source, copy, backup, sinkId=copy, onDecidedBatch="skip"))
    # Here the skipped batches hold what was written before; what is new comes after them.
    assert values(source, copy) == values(source, source.topic)
    assert committed(backup)[-1] == client.sink(copy).describe().decided


def committed(checkpoint: Path) -> list[int]:
    """The batches in Spark's commit log."""
    return sorted(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))


def test_versions_of_transactions_only_grow_also_by_writes_without_rows(
    spark: SparkSession, source: Source, client: Client
) -> None:
    def write(version: int, rows: int) -> None:
        frame = spark.range(rows).selectExpr(f"concat('{version}-', id) AS value")
        writer = frame.write.format("rocketq").mode("append").options(topic=source.topic)
        writer = writer.options(txnAppId=source.topic, txnVersion=version)
        writer.option("nameservers", ",".join(source.nameservers)).save()

    for version, rows in ((7, 2), (2, 3), (9, 0), (9, 4), (10, 1)):
        write(version, rows)
    assert values(source, source.topic) == [b"10-0", b"7-0", b"7-1"]
    assert client.sink(source.topic).describe().decided == 10


def failing(attempts: int) -> Any:
    """Rows that are there at first, and then fail the task's first attempts."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 0 and context.attemptNumber() < attempts:
            raise RuntimeError("told to fail")

    return rows


def numbered(spark: SparkSession, rows: int, failures: int) -> DataFrame:
    frame = spark.range(0, rows, 1, 2).selectExpr("CAST(id AS STRING) AS value")
    return frame.mapInArrow(failing(failures), "value STRING")


def test_rows_of_a_task_attempt_that_failed_never_appear(spark: SparkSession, source: Source) -> None:
    writer = numbered(spark, 600, 1).write.format("rocketq").mode("append")
    # Requests are so small that the first attempt has staged most of its rows when it fails.
    writer = writer.options(topic=source.topic, maxRequestBytes="1k", delivery="exactly-once")
    writer.option("nameservers", ",".join(source.nameservers)).save()
    assert sorted(int(row["value"]) for row in source.rows()) == list(range(600))
    # The sink of a single write is gone with it.
    connection = connection_to(tuple(source.nameservers))
    brokers = Coordinators(connection.transport, connection.routes).brokers()
    left = [sink.sink for broker in brokers for sink in broker.sinks().sinks]
    assert [name for name in left if name.startswith("write-")] == []


def test_a_write_that_fails_leaves_nothing_behind(spark: SparkSession, source: Source) -> None:
    writer = numbered(spark, 600, 2).write.format("rocketq").mode("append")
    writer = writer.options(topic=source.topic, maxRequestBytes="1k", delivery="exactly-once")
    with pytest.raises(Exception, match="told to fail"):
        writer.option("nameservers", ",".join(source.nameservers)).save()
    assert source.rows() == []


def test_in_for_each_batch_a_transaction_is_written_once(
    spark: SparkSession, source: Source, client: Client, tmp_path: Path
) -> None:
    out = f"{source.topic}-out"
    client.create_topic(out, queues=1)
    fill(client, source.topic, 4)
    written: list[int] = []

    def write(frame: DataFrame, batch: int) -> None:
        writer = frame.selectExpr("key", "CAST(count AS STRING) AS value").write.format("rocketq")
        writer = writer.mode("append").option("nameservers", ",".join(source.nameservers))
        writer.options(topic=out, txnAppId=out, txnVersion=batch).save()
        written.append(batch)
        if batch == 1 and written.count(1) == 1:
            raise RuntimeError("told to fail after the write")

    def run(checkpoint: Path) -> None:
        reader = spark.readStream.format("rocketq")
        reader = reader.options(
            **source.options({"startingOffsets": "earliest", "maxOffsetsPerTrigger": "8"})
        )
        counts = reader.load().groupBy("broker").count().withColumnRenamed("broker", "key")
        writer = counts.writeStream.foreachBatch(write).outputMode("update")
        finish(writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start())

    with pytest.raises(Exception, match="told to fail after the write"):
        run(tmp_path / "first")
    run(tmp_path / "first")
    assert written == [0, 1, 1]
    expected = [b"4", b"4", b"8", b"8"]
    assert values(source, out) == expected
    with pytest.raises(Exception, match="SinkQueryChanged"):
        run(tmp_path / "second")
    assert values(source, out) == expected


def test_a_query_fails_without_its_coordinator_and_goes_on_with_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    with LocalCluster(brokers=2) as cluster, PatientClient(cluster.nameservers) as client:
        client.create_topic("orders", queues=1)
        # The input is on neither broker that is killed.
        client.create_topic("copy", queues=1)
        source = Source(cluster.nameservers, "orders")
        fill(client, "orders", 2)
        finish(copying(spark, source, "copy", tmp_path, sinkId="copies"))
        coordinator = client.sink("copies").coordinator()
        cluster.kill(coordinator)
        frame = spark.range(1).selectExpr("'late' AS value")
        writer = frame.write.format("rocketq").mode("append").options(topic="copy", sendTimeoutMs=500)
        writer = writer.options(txnAppId="copies", txnVersion=100, nameservers=",".join(cluster.nameservers))
        with pytest.raises(Exception, match="CoordinatorUnreachable") as caught:
            writer.save()
        assert f"Broker {coordinator}, which coordinates sink 'copies', cannot be reached" in str(
            caught.value
        )
        assert cluster.brokers[coordinator] in str(caught.value)
        cluster.restart(coordinator)
        fill(client, "orders", 2)
        finish(copying(spark, source, "copy", tmp_path, sinkId="copies"))
        assert values(source, "copy") == values(source, "orders")
