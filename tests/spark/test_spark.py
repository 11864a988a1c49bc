"""The whole way: a real SparkSession, real brokers, nothing registered."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rocketq import LocalCluster
from rocketq.client import Client
from rocketq.model import MessageQueue
from tests.support.patience import PatientClient
from tests.support.spark_harness import Source, by_queue, fill, grow, masters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamReader

pytestmark = pytest.mark.spark

TIMEOUT_S = 540


class Collected:
    """A sink that keeps what each batch had; as every sink it may be given a batch again."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Any]] = {}

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.batches[batch] = frame.collect()

    def rows(self) -> list[Any]:
        return [row for rows in self.batches.values() for row in rows]


def reading(spark: SparkSession, source: Source, **options: str) -> DataStreamReader:
    return spark.readStream.format("rocketq").options(**source.options(options))


def run(frame: DataFrame, checkpoint: Path, sink: Callable | None = None) -> Collected:
    """Run a query over all there is, from its checkpoint to the end."""
    collected = Collected()
    query = (
        frame.writeStream.foreachBatch(sink or collected)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(TIMEOUT_S)
        assert query.exception() is None
    finally:
        query.stop()
    return collected


def test_what_is_written_is_read_with_all_its_columns(spark: SparkSession, source: Source) -> None:
    frame = spark.range(1000).selectExpr(
        "CAST(id AS STRING) AS value",
        "CONCAT('k', id) AS key",
        "IF(id % 2 = 0, 'even', NULL) AS tag",
        "MAP('id', CAST(id AS STRING)) AS properties",
    )
    options = {"nameservers": ",".join(source.nameservers)}
    frame.write.format("rocketq").options(topic=source.topic, **options).mode("append").save()
    read = spark.read.format("rocketq").options(**source.options({"includeProperties": "true"})).load()
    assert read.columns == [
        "key", "value", "tag", "topic", "broker", "queue", "offset", "timestamp", "properties",
    ]  # fmt: skip
    rows = read.collect()
    assert sorted(int(row["value"]) for row in rows) == list(range(1000))
    for row in rows:
        number = int(row["value"])
        assert row["key"] == f"k{number}".encode()
        assert row["tag"] == ("even" if number % 2 == 0 else None)
        assert row["properties"] == {"id": str(number)}
        assert row["topic"] == source.topic
        assert row["timestamp"] is not None
    assert read.selectExpr("COUNT(DISTINCT broker, queue, offset)").first()[0] == 1000


def test_a_user_schema_is_a_projection(spark: SparkSession, source: Source, client: Client) -> None:
    fill(client, source.topic, 3)
    reader = spark.read.format("rocketq").options(**source.options({}))
    read = reader.schema("message_id STRING, born_timestamp TIMESTAMP, value BINARY").load()
    rows = read.where("message_id LIKE '%:1'").collect()
    assert sorted(row["message_id"] for row in rows) == [
        f"{broker}:{source.topic}:{queue}:1" for broker in ("broker-a", "broker-b") for queue in (0, 1)
    ]
    assert all(row["born_timestamp"] is not None for row in rows)


def test_large_arrow_types_are_taken_too(spark: SparkSession, source: Source) -> None:
    frame = spark.range(20).selectExpr(
        "CAST(id AS STRING) AS value", "CAST(CAST(id AS STRING) AS BINARY) AS key", "'t' AS tag",
        f"'{source.topic}' AS topic", "MAP('a', 'b') AS properties",
    )  # fmt: skip
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        writer = frame.write.format("rocketq").option("nameservers", ",".join(source.nameservers))
        writer.mode("append").save()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    rows = source.rows(includeProperties="true")
    assert sorted(int(row["value"]) for row in rows) == list(range(20))
    assert all(row["key"] == row["value"] and dict(row["properties"]) == {"a": "b"} for row in rows)


def test_restarts_read_no_row_twice_and_lose_none(
    spark: SparkSession, source: Source, client: Client, tmp_path: Path
) -> None:
    group = f"{source.topic}-g"
    frame = reading(
        spark, source, startingOffsets="earliest", maxOffsetsPerTrigger="24", groupId=group
    ).load()
    fill(client, source.topic, 10)
    first = run(frame, tmp_path)
    assert len(first.batches) == 2
    fill(client, source.topic, 5)
    grow(client, source, 3)
    fill(client, source.topic, 4, [MessageQueue(source.topic, "broker-b", 2)])
    second = run(frame, tmp_path)
    assert min(second.batches) == 2
    rows = [row.asDict() for row in first.rows() + second.rows()]
    expected = {
        MessageQueue(source.topic, broker, queue): list(range(15))
        for broker in ("broker-a", "broker-b")
        for queue in (0, 1)
    }
    assert by_queue(sorted(rows, key=lambda row: row["offset"])) == expected | {
        MessageQueue(source.topic, "broker-b", 2): [0, 1, 2, 3]
    }
    committed = {
        MessageQueue(source.topic, broker.broker, one.queue): one.offset
        for broker in masters(source)
        for one in broker.group_offsets(group, source.topic).offsets
        if one.offset
    }
    assert committed == {queue: len(offsets) for queue, offsets in by_queue(rows).items()}


def test_an_uncommitted_first_batch_is_replayed_with_the_same_rows(
    spark: SparkSession, source: Source, client: Client, tmp_path: Path
) -> None:
    fill(client, source.topic, 3)
    frame = reading(spark, source, startingOffsets=json.dumps({source.topic: 1})).load()
    before = run(frame, tmp_path)
    for commit in (tmp_path / "commits").iterdir():
        commit.unlink()
    fill(client, source.topic, 2)
    later = reading(spark, source, startingOffsets="latest").load()
    after = run(later, tmp_path)
    assert sorted(after.batches[0]) == sorted(before.batches[0])
    assert sorted({row["offset"] for row in after.batches[1]}) == [3, 4]


def test_a_running_query_copies_what_arrives(
    spark: SparkSession, source: Source, client: Client, tmp_path: Path
) -> None:
    copy = f"{source.topic}-copy"
    client.create_topic(copy, queues=1)
    options = {"nameservers": ",".join(source.nameservers)}
    query = (
        reading(spark, source, startingOffsets="earliest")
        .load()
        .selectExpr("CONCAT('copy of ', CAST(value AS STRING)) AS value", "key", "tag")
        .writeStream.format("rocketq")
        .options(topic=copy, queueSelection="random", **options)
        .option("checkpointLocation", str(tmp_path))
        .queryName("copier")
        .start()
    )
    try:
        with client.pull_consumer(copy, start="earliest", group=f"{copy}-g") as consumer:
            for round_ in range(2):
                fill(client, source.topic, 5)
                found: list = []
                while len(found) < 20:
                    assert query.isActive, query.exception()
                    found += consumer.poll(timeout_ms=60_000)
                assert sorted(message.body.decode() for message in found) == sorted(
                    f"copy of {queue}#{i}"
                    for queue in client.route(source.topic).write_queues()
                    for i in range(5)
                ), round_
    finally:
        query.stop()
    assert query.exception() is None


def test_progress_tells_the_backlog(
    spark: SparkSession, source: Source, client: Client, tmp_path: Path
) -> None:
    fill(client, source.topic, 10)
    frame = reading(spark, source, startingOffsets="earliest", maxOffsetsPerTrigger="20").load()
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(TIMEOUT_S)
    first = next(one for one in query.recentProgress if one["numInputRows"])["sources"][0]
    newest = json.loads(first["latestOffset"])["topics"][source.topic]
    reached = json.loads(first["endOffset"])["topics"][source.topic]
    assert newest == {"broker-a": {"0": 10, "1": 10}, "broker-b": {"0": 10, "1": 10}}
    assert reached == {"broker-a": {"0": 5, "1": 5}, "broker-b": {"0": 5, "1": 5}}
    lag = json.loads(first["latestOffset"])["lag"][source.topic]
    assert lag == {"broker-a": {"0": 5, "1": 5}, "broker-b": {"0": 5, "1": 5}}
    last = query.recentProgress[-1]["sources"][0]
    assert {
        n
        for queues in json.loads(last["latestOffset"])["lag"][source.topic].values()
        for n in queues.values()
    } == {0}


def test_a_null_property_of_a_row_is_a_property_the_message_does_not_have(
    spark: SparkSession, source: Source
) -> None:
    spark.sql(
        "SELECT 'a' AS value, map('region', 'eu', 'trace', CAST(NULL AS STRING)) AS properties "
        "UNION ALL SELECT 'b', map('trace', CAST(NULL AS STRING)) UNION ALL SELECT 'c', NULL"
    ).write.format("rocketq").mode("append").option("nameservers", ",".join(source.nameservers)).option(
        "topic", source.topic
    ).save()
    found = {row["value"]: row["properties"] for row in source.rows(includeProperties="true")}
    assert {value: dict(properties or ()) for value, properties in found.items()} == {
        b"a": {"region": "eu"},
        b"b": {},
        b"c": {},
    }


def test_a_write_without_a_mode_is_answered_with_the_mode_append(spark: SparkSession, source: Source) -> None:
    from pyspark.errors import AnalysisException

    writer = spark.sql("SELECT 'a' AS value").write.format("rocketq")
    writer = writer.option("nameservers", ",".join(source.nameservers)).option("topic", source.topic)
    with pytest.raises(AnalysisException, match=r"UNSUPPORTED_DATA_SOURCE_SAVE_MODE.*Append"):
        writer.save()


def test_complete_mode_sends_the_whole_result_each_time(
    spark: SparkSession, source: Source, client: Client, tmp_path: Path
) -> None:
    counts = f"{source.topic}-counts"
    client.create_topic(counts, queues=1)
    frame = (
        reading(spark, source, startingOffsets="earliest", maxOffsetsPerTrigger="8")
        .load()
        .groupBy("broker")
        .count()
        .selectExpr("broker AS key", "CAST(count AS STRING) AS value")
    )
    fill(client, source.topic, 4)
    query = (
        frame.writeStream.format("rocketq")
        .option("nameservers", ",".join(source.nameservers))
        .option("topic", counts)
        .option("checkpointLocation", str(tmp_path))
        .outputMode("complete")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(TIMEOUT_S)
    rows = source.rows(subscribe=counts)
    assert sorted((row["key"].decode(), int(row["value"])) for row in rows) == [
        ("broker-a", 4), ("broker-a", 8), ("broker-b", 4), ("broker-b", 8),
    ]  # fmt: skip


def test_a_limit_ends_a_large_read_early(spark: SparkSession, source: Source, client: Client) -> None:
    fill(client, source.topic, 50_000)
    assert len(spark.read.format("rocketq").options(**source.options({})).load().limit(5).collect()) == 5


@pytest.mark.parametrize(
    ("options", "schema", "said"),
    [
        ({"startingOfsets": "earliest"}, None, "Did you mean startingOffsets?"),
        ({}, "value STRING", "Column 'value' is asked for as string, and is binary"),
        ({"subscribe": "not-there"}, None, "No broker serves topic 'not-there'"),
    ],
)
def test_a_wrong_read_says_what_is_wrong(
    spark: SparkSession, source: Source, options: dict[str, str], schema: str | None, said: str
) -> None:
    """One of each kind; tests/spark/options and tests/spark/read have all that is refused."""
    reader = spark.read.format("rocketq").options(**source.options(options))
    with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as caught:
        (reader.schema(schema) if schema else reader).load().collect()
    assert said in str(caught.value)


def test_a_wrong_stream_says_what_is_wrong_and_nothing_else(
    spark: SparkSession, source: Source, tmp_path: Path
) -> None:
    query = (
        reading(spark, source, endingOffsets="latest")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    with pytest.raises(Exception, match=r"it belongs to spark\.read, not to spark\.readStream") as caught:
        query.awaitTermination(TIMEOUT_S)
    assert "UnboundLocalError" not in str(caught.value)


@pytest.mark.parametrize(
    ("expression", "mode", "said"),
    [
        ("id AS value", "append", "has the type bigint, and must be string or binary"),
        ("CAST(id AS STRING) AS value", "overwrite", "cannot be taken back"),
        ("IF(id = 7, NULL, CAST(id AS STRING)) AS value", "append", "column 'value' is null in 1 of"),
    ],
)
def test_a_wrong_write_says_what_is_wrong(
    spark: SparkSession, source: Source, expression: str, mode: str, said: str
) -> None:
    """One of each kind; tests/spark/options and tests/spark/read have all that is refused."""
    writer = spark.range(10).selectExpr(expression).write.format("rocketq").mode(mode)
    given = {"nameservers": ",".join(source.nameservers), "topic": source.topic}
    with pytest.raises(Exception, match=r"rocketq\.errors|pyspark_rocketq\.errors") as caught:
        writer.options(**given).save()
    assert said in str(caught.value)


def test_a_query_survives_the_crash_of_a_broker(spark: SparkSession, tmp_path: Path) -> None:
    with LocalCluster(brokers=2, flush="sync") as cluster, PatientClient(cluster.nameservers) as client:
        client.create_topic("orders", queues=1)
        source = Source(cluster.nameservers, "orders")
        fill(client, "orders", 5)
        collected = Collected()
        query = (
            reading(spark, source, startingOffsets="earliest")
            .load()
            .writeStream.foreachBatch(collected)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            until(query, lambda: len(collected.rows()) == 10)
            cluster.kill("broker-b")
            fill(client, "orders", 5, [MessageQueue("orders", "broker-a", 0)])
            until(query, lambda: len(collected.rows()) == 15)
            cluster.restart("broker-b")
            fill(client, "orders", 5, [MessageQueue("orders", "broker-b", 0)])
            until(query, lambda: len(collected.rows()) == 20)
        finally:
            query.stop()
        rows = by_queue(row.asDict() for row in collected.rows())
        assert all(sorted(offsets) == list(range(10)) for offsets in rows.values())
    shutil.rmtree(tmp_path / "checkpoint")


def until(query: Any, done: Callable[[], bool]) -> None:
    """Wait for a running query; each batch it makes is a chance."""
    while not done():
        assert query.isActive, query.exception()
        query.processAllAvailable()
