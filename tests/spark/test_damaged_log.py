"""A broker's log is damaged while Spark reads: the error says where, and which messages it has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from rocketq import LocalCluster
from rocketq.errors import CorruptFrame
from rocketq.model import Message
from rocketq.protocol.frame import HEADER_BYTES
from tests.support.patience import PatientClient
from tests.support.spark_harness import Source

SEGMENT = "commitlog/00000000000000000000"
BODY = b"the fourth message"


@dataclass(frozen=True)
class Rotten:
    """A topic of one queue whose second frame, messages 3 to 5, is damaged in the log."""

    nameserver: str
    log_offset: int

    @property
    def told(self) -> tuple[str, ...]:
        """What an error must say."""
        place = f"the frame at log offset {self.log_offset}, in {SEGMENT}"
        return "The log of broker broker-a is damaged", place, "messages 3 to 5 of queue 0 of topic orders"


@pytest.fixture(scope="module")
def rotten() -> Iterator[Rotten]:
    with LocalCluster(brokers=1) as cluster, PatientClient(cluster.nameservers) as client:
        client.create_topic("orders", queues=1)
        with client.producer() as producer:
            for frame in (b"the first message", BODY, b"the seventh message"):
                producer.send_batch("orders", [Message(frame, tag="a")] * 3)
        path = cluster.data_dir / "broker-a" / SEGMENT
        data = path.read_bytes()
        at = data.index(BODY)
        with path.open("r+b") as file:
            file.seek(at)
            file.write(b"\0")
        log_offset = next(
            place
            for place in range(at - HEADER_BYTES & ~7, -1, -8)
            if int.from_bytes(data[place + 32 : place + 40], "little") == place
            and place + int.from_bytes(data[place : place + 4], "little") > at
        )
        yield Rotten(cluster.nameservers[0], log_offset)


def check(told: str, rotten: Rotten) -> None:
    for part in (*rotten.told, "docs/salvage.md"):
        assert part in told


def test_a_spark_query_over_a_damaged_frame_names_it_in_its_error(
    spark: SparkSession, rotten: Rotten
) -> None:
    reader = spark.read.format("rocketq").option("nameservers", rotten.nameserver)
    with pytest.raises(PySparkException) as caught:
        reader.option("subscribe", "orders").load().collect()
    check(str(caught.value), rotten)


@pytest.mark.parametrize("given", [{}, {"tags": "a"}], ids=["plain", "tags"])
def test_a_task_over_a_damaged_frame_raises_the_facts(rotten: Rotten, given: dict[str, str]) -> None:
    with pytest.raises(CorruptFrame) as caught:
        Source([rotten.nameserver], "orders").rows(**given)
    check(str(caught.value), rotten)
    facts: dict[str, Any] = caught.value.facts
    assert (facts["segment"], facts["log_offset"]) == (SEGMENT, rotten.log_offset)
    assert [facts[name] for name in ("broker", "topic", "queue", "first_offset", "last_offset")] == [
        "broker-a", "orders", 0, 3, 5,
    ]  # fmt: skip


def test_a_consumer_gets_what_precedes_the_damage_and_then_the_facts(rotten: Rotten) -> None:
    with (
        PatientClient([rotten.nameserver]) as client,
        client.pull_consumer("orders", start="earliest") as consumer,
    ):
        assert [each.offset for each in consumer.poll(timeout_ms=60_000)] == [0, 1, 2]
        with pytest.raises(CorruptFrame) as caught:
            consumer.poll(timeout_ms=60_000)
        check(str(caught.value), rotten)
        consumer.seek(next(iter(consumer.positions())), caught.value.facts["last_offset"] + 1)
        assert [each.offset for each in consumer.poll(timeout_ms=60_000)] == [6, 7, 8]
