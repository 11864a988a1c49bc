"""A real SparkSession over a cluster that loses a broker: no answer is wrong without a word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from rocketq import LocalCluster
from rocketq.client import Client
from rocketq.model import MessageQueue
from tests.support.patience import PatientClient
from tests.support.spark_harness import Source, fill, forget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.spark

TIMEOUT_S = 540


@pytest.fixture(scope="module")
def fragile() -> Iterator[LocalCluster]:
    """Two brokers; a test that ends one starts it again."""
    with LocalCluster(
        brokers=2,
        broker_arguments=["--heartbeat-ms", "200", "--lease-ms", "600000"],
    ) as running:
        yield running


@pytest.fixture
def mq(fragile: LocalCluster) -> Iterator[Client]:
    with PatientClient(fragile.nameservers) as made:
        yield made


def stream(spark: SparkSession, source: Source, **options: str) -> DataFrame:
    given = {"startingOffsets": "earliest", "brokerWaitMs": "300", **options}
    return spark.readStream.format("rocketq").options(**source.options(given)).load()


def started(frame: DataFrame, checkpoint: Path, **trigger: bool | str) -> StreamingQuery:
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    return writer.trigger(**trigger).start()  # type: ignore[arg-type]


def failure(query: StreamingQuery) -> str:
    """What the query failed with; empty if it ended well."""
    try:
        assert query.awaitTermination(TIMEOUT_S)
    except StreamingQueryException as error:
        return str(error)
    return ""


def test_a_broker_that_is_away_is_named_or_streamed_around(
    spark: SparkSession, fragile: LocalCluster, mq: Client, topic: str, tmp_path: Path
) -> None:
    mq.create_topic(topic, queues=2)
    fill(mq, topic, 500)
    source = Source(fragile.nameservers, topic)
    options = source.options({"brokerWaitMs": "300"})
    assert spark.read.format("rocketq").options(**options).load().count() == 2_000
    assert failure(started(stream(spark, source), tmp_path / "run", availableNow=True)) == ""

    fragile.kill("broker-b")
    forget(source, "broker-b")
    # A NameServer that has never heard of the dead broker.
    fragile.kill("nameserver-1")
    fragile.restart("nameserver-1")

    with pytest.raises(Exception, match=rf"topic {topic} on broker-b .no NameServer knows it to be alive"):
        spark.read.format("rocketq").options(**options).load().count()
    assert f"topic {topic} on broker-b" in failure(
        started(stream(spark, source), tmp_path / "run", availableNow=True)
    )
    query = started(stream(spark, source), tmp_path / "stream", processingTime="0 seconds")
    try:
        fill(mq, topic, 10, [MessageQueue(topic, "broker-a", 0)])
        query.processAllAvailable()
        seen = [progress.json for progress in query.recentProgress]
        assert sum(progress.numInputRows for progress in query.recentProgress) == 1_010
        assert any('"away": {"' + topic + '": ["broker-b"]}' in each.replace('\\"', '"') for each in seen)
        fragile.restart("broker-b")
        while sum(progress.numInputRows for progress in query.recentProgress) < 2_010:
            assert query.isActive
            query.processAllAvailable()
    finally:
        query.stop()
    assert spark.read.format("rocketq").options(**options).load().count() == 2_010


@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_query_whose_topic_was_deleted_fails_at_restart_by_default(
    spark: SparkSession, fragile: LocalCluster, mq: Client, topic: str, tmp_path: Path, strict: str
) -> None:
    mq.create_topic(topic, queues=1)
    fill(mq, topic, 5)
    source = Source(fragile.nameservers, topic)
    frame = stream(spark, source, failOnDataLoss=strict)
    assert failure(started(frame, tmp_path / "run", availableNow=True)) == ""
    mq.delete_topic(topic)
    said = failure(started(frame, tmp_path / "run", availableNow=True))
    assert ("has no such topic: it was deleted there" in said) == (strict == "true")
    assert (said == "") == (strict == "false")
