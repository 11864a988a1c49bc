"""Producer, brokers, Spark and consumer as one pipeline, while servers crash under it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from rocketq import LocalCluster
from tests.support.conditions import WAIT_MS
from tests.support.patience import PatientClient

ROUND = 2_000


def numbers(first: int) -> pa.Table:
    return pa.table({"body": [str(number).encode() for number in range(first, first + ROUND)]})


@pytest.mark.spark
def test_a_pipeline_loses_nothing_while_its_servers_crash(spark: SparkSession, tmp_path: Path) -> None:
    with (
        LocalCluster(brokers=2, nameservers=2) as cluster,
        PatientClient(cluster.nameservers) as client,
    ):
        client.create_topic("in", queues=2)
        client.create_topic("out", queues=2)
        addresses = ",".join(cluster.nameservers)
        query = (
            spark.readStream.format("rocketq")
            .option("nameservers", addresses)
            .option("subscribe", "in")
            .option("startingOffsets", "earliest")
            .load()
            .select("value", F.concat_ws("/", "broker", "queue", "offset").alias("key"))
            .writeStream.format("rocketq")
            .option("nameservers", addresses)
            .option("topic", "out")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            with client.producer(retries=20) as producer:
                producer.send_batch("in", numbers(0))
                query.processAllAvailable()
                cluster.kill("nameserver-1")
                producer.send_batch("in", numbers(ROUND))
                query.processAllAvailable()
                cluster.kill("broker-a")
                # The other broker takes these; the killed one's own messages wait for it.
                producer.send_batch("in", numbers(2 * ROUND))
                cluster.restart("broker-a")
                cluster.restart("nameserver-1")
                producer.send_batch("in", numbers(3 * ROUND))
            query.processAllAvailable()
        finally:
            query.stop()
        found: list[tuple[bytes | None, int]] = []
        with client.pull_consumer(["out"], start="earliest") as consumer:
            stored = sum(each.total for each in client.describe_topic("out").values())
            while len(found) < stored:
                batch = consumer.poll(max_messages=5_000, timeout_ms=WAIT_MS)
                assert batch, f"only {len(found)} of {stored} came"
                found += [(message.key, int(message.body)) for message in batch]
    # The source reads each message once; the sink is at least once and may repeat what a retry sent.
    assert {number for _, number in found} == set(range(4 * ROUND))
    places = dict(found)
    assert sorted(places.values()) == sorted({*places.values()}), "one place, one message"
