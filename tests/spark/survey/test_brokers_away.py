"""Reads while a broker is away, came back without its data, or was taken off the topic; on real servers."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Iterator
from typing import NoReturn

import pytest

from pyspark_rocketq.connections import connection_to
from pyspark_rocketq.errors import BrokersAway, DataLost
from pyspark_rocketq.read.partitions import QueueRange
from pyspark_rocketq.read.range_pull import RangePulls
from rocketq import LocalCluster
from rocketq.client import Client
from rocketq.errors import BrokerUnreachable
from rocketq.model import MessageQueue
from rocketq.net.route_cache import RouteCache
from rocketq.protocol.documents.broker import CreateTopicRequest
from tests.support.patience import PatientClient, patient_transport
from tests.support.spark_harness import Source, Stream, await_brokers, by_queue, fill, forget, masters

SHORT = {"brokerWaitMs": "300", "longPollMs": "50"}


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalCluster]:
    """Two brokers that these tests may break."""
    with LocalCluster(
        brokers=2,
        broker_arguments=["--heartbeat-ms", "200", "--lease-ms", "600000"],
    ) as running:
        yield running


@pytest.fixture
def fragile(shared: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster, whole; it is mended after the test."""
    yield shared
    for name in shared.names:
        if not shared.running(name):
            shared.restart(name)


@pytest.fixture
def mq(fragile: LocalCluster) -> Iterator[Client]:
    with PatientClient(fragile.nameservers) as made:
        yield made


@pytest.fixture
def orders(fragile: LocalCluster, mq: Client, topic: str) -> Source:
    """A topic of two queues on each broker, with five messages in every queue."""
    mq.create_topic(topic, queues=2)
    fill(mq, topic, 5)
    return Source(fragile.nameservers, topic)


def lose(cluster: LocalCluster, source: Source) -> None:
    """Kill broker-b, and have it forgotten as at the end of its lease."""
    cluster.kill("broker-b")
    forget(source, "broker-b")


def renew_nameserver(cluster: LocalCluster, source: Source) -> None:
    """Replace the NameServer by one that has never heard of what is dead; forget the routes known here."""
    cluster.kill("nameserver-1")
    cluster.restart("nameserver-1")
    connection_to(tuple(source.nameservers)).routes.forget(source.topic)


def come_back_empty(cluster: LocalCluster, source: Source) -> None:
    """Let broker-b come back without its data."""
    cluster.kill("broker-b")
    # It would wait for the end of its own former lease.
    forget(source, "broker-b")
    shutil.rmtree(cluster.data_dir / "broker-b")
    cluster.restart("broker-b")
    await_brokers(source, 1)


def until(query: Stream, rows: int) -> list:
    found: list = []
    while len(found) < rows:
        found += query.next_batch()
    return found


def read_forever(query: Stream, read: list) -> NoReturn:
    while True:
        read += query.next_batch()


# --- reads with an end ----------------------------------------------------------------------


@pytest.mark.parametrize("new_nameserver", [False, True])
def test_a_batch_fails_and_names_the_broker_that_is_away(
    fragile: LocalCluster, orders: Source, new_nameserver: bool
) -> None:
    lose(fragile, orders)
    if new_nameserver:
        renew_nameserver(fragile, orders)
    with pytest.raises(BrokersAway, match=f"topic {orders.topic} on broker-b") as caught:
        orders.rows(brokerWaitMs="300")
    assert list(caught.value.facts["away"][orders.topic]) == ["broker-b"]
    assert caught.value.facts["waited_ms"] >= 300
    assert f"topic alter {orders.topic} --remove-broker broker-b" in caught.value.hint
    fragile.restart("broker-b")
    assert len(orders.rows(brokerWaitMs="60000")) == 20


def test_a_batch_waits_for_a_broker_that_comes_back(
    fragile: LocalCluster, orders: Source, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(fragile, orders)
    restarted: list[float] = []

    class PauseThatRestarts:
        """Stands for the module `time` in the survey alone: other threads still pause."""

        monotonic = staticmethod(time.monotonic)

        @staticmethod
        def sleep(seconds: float) -> None:
            if not restarted:
                fragile.restart("broker-b")
            restarted.append(seconds)

    monkeypatch.setattr("pyspark_rocketq.survey.broker_survey.time", PauseThatRestarts)
    assert len(orders.rows(brokerWaitMs="60000")) == 20
    assert restarted
    assert "Waiting for brokers that are away, at most 60000 ms" in caplog.text


def test_a_batch_does_not_need_brokers_that_are_not_assigned(fragile: LocalCluster, orders: Source) -> None:
    lose(fragile, orders)
    assert len(orders.rows(assign=json.dumps({orders.topic: {"broker-a": [0, 1]}}), brokerWaitMs="0")) == 10
    for assigned in ({"broker-b": [0]}, [0]):
        with pytest.raises(BrokersAway):
            orders.rows(assign=json.dumps({orders.topic: assigned}), brokerWaitMs="0")


@pytest.mark.parametrize("trigger", ["availableNow", "once"])
def test_a_run_with_an_end_needs_every_broker(fragile: LocalCluster, orders: Source, trigger: str) -> None:
    checkpoint = orders.stream(startingOffsets="earliest", **SHORT).begin().offset
    lose(fragile, orders)
    renew_nameserver(fragile, orders)
    query = orders.stream(**SHORT)
    with pytest.raises(BrokersAway, match="broker-b"):
        (query.prepare() if trigger == "availableNow" else query.once()).begin(checkpoint).next_batch()
    fragile.restart("broker-b")
    query = orders.stream(longPollMs="50")
    query = query.prepare() if trigger == "availableNow" else query.once()
    assert len(query.begin(checkpoint).next_batch()) == 20


def test_a_run_whose_broker_goes_under_way_does_not_end_well(fragile: LocalCluster, orders: Source) -> None:
    query = orders.stream(startingOffsets="earliest", maxOffsetsPerTrigger="4", **SHORT).prepare().begin()
    read = query.next_batch()
    lose(fragile, orders)
    with pytest.raises(BrokersAway, match="broker-b"):
        read_forever(query, read)
    assert len([row for row in read if row["broker"] == "broker-a"]) == 10


def test_a_run_does_not_end_well_when_all_brokers_of_its_topic_are_away(
    fragile: LocalCluster, mq: Client, topic: str
) -> None:
    mq.create_topic(topic, queues=1, brokers=["broker-b"])
    fill(mq, topic, 3)
    source = Source(fragile.nameservers, topic)
    checkpoint = source.stream(startingOffsets="earliest", **SHORT).begin().offset
    fragile.kill("broker-b")
    renew_nameserver(fragile, source)
    with pytest.raises(BrokersAway, match="broker-b"):
        source.stream(**SHORT).prepare().begin(checkpoint).next_batch()


# --- streams --------------------------------------------------------------------------------


def test_a_stream_goes_on_with_the_rest_and_says_so(
    fragile: LocalCluster, mq: Client, orders: Source, caplog: pytest.LogCaptureFixture
) -> None:
    query = orders.stream(startingOffsets="earliest", **SHORT).begin()
    read = until(query, 20)
    lose(fragile, orders)
    renew_nameserver(fragile, orders)
    fill(mq, orders.topic, 2, [MessageQueue(orders.topic, "broker-a", queue) for queue in (0, 1)])
    read += until(query, 4)
    for _ in range(3):
        read += query.next_batch()
    assert (query.reader.reportLatestOffset() or {})["away"] == {orders.topic: ["broker-b"]}
    assert "away" not in (query.offset or {})
    fragile.restart("broker-b")
    fill(mq, orders.topic, 2, [MessageQueue(orders.topic, "broker-b", queue) for queue in (0, 1)])
    read += until(query, 4)
    assert "away" not in (query.reader.reportLatestOffset() or {})
    assert all(offsets == list(range(7)) for offsets in by_queue(read).values())
    assert len(read) == 28
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len([text for text in said if text.startswith("Broker broker-b is away")]) == 1
    assert len([text for text in said if text.startswith("Broker broker-b is back")]) == 1


def test_a_restarted_stream_knows_what_is_away_from_its_checkpoint(
    fragile: LocalCluster, mq: Client, orders: Source
) -> None:
    first = orders.stream(startingOffsets="earliest", **SHORT).begin()
    read = until(first, 20)
    lose(fragile, orders)
    renew_nameserver(fragile, orders)
    query = orders.stream(**SHORT).begin(first.offset)
    fill(mq, orders.topic, 1, [MessageQueue(orders.topic, "broker-a", 0)])
    read += until(query, 1)
    assert (query.reader.reportLatestOffset() or {})["away"] == {orders.topic: ["broker-b"]}
    fragile.restart("broker-b")
    fill(mq, orders.topic, 1, [MessageQueue(orders.topic, "broker-b", 1)])
    read += until(query, 1)
    assert sorted(len(offsets) for offsets in by_queue(read).values()) == [5, 5, 6, 6]


def test_a_new_stream_begins_with_the_rest_only_under_earliest(
    fragile: LocalCluster, mq: Client, orders: Source
) -> None:
    lose(fragile, orders)
    with pytest.raises(BrokersAway, match="broker-b"):
        orders.stream(startingOffsets="latest", **SHORT).begin()
    query = orders.stream(startingOffsets="earliest", **SHORT).begin()
    read = until(query, 10)
    fragile.restart("broker-b")
    read += until(query, 10)
    assert all(offsets == list(range(5)) for offsets in by_queue(read).values())


def test_a_stream_ends_when_no_broker_has_answered_for_the_wait(
    fragile: LocalCluster, orders: Source
) -> None:
    query = orders.stream(startingOffsets="earliest", **SHORT).begin()
    read = until(query, 20)
    fragile.kill("broker-a")
    fragile.kill("broker-b")
    renew_nameserver(fragile, orders)
    with pytest.raises(BrokersAway) as caught:
        read_forever(query, read)
    assert list(caught.value.facts["away"][orders.topic]) == ["broker-a", "broker-b"]
    assert len(read) == 20


# --- what is lost and what is not -----------------------------------------------------------


@pytest.mark.parametrize("trigger", ["processingTime", "availableNow", "once"])
def test_a_query_restarted_after_its_topic_was_deleted_ends_with_a_loss(
    mq: Client, orders: Source, trigger: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = orders.stream(startingOffsets="earliest", **SHORT).begin()
    until(first, 20)
    mq.delete_topic(orders.topic)
    connection_to(tuple(orders.nameservers)).routes.forget(orders.topic)

    def restarted(**options: str) -> Stream:
        query = orders.stream(**SHORT, **options)
        if trigger == "availableNow":
            query.prepare()
        elif trigger == "once":
            query.once()
        return query.begin(first.offset)

    with pytest.raises(DataLost, match="has no such topic: it was deleted there"):
        restarted().next_batch()
    assert restarted(failOnDataLoss="false").next_batch() == []
    for broker in ("broker-a", "broker-b"):
        assert f"Messages of {orders.topic}/{broker} that this query has not read are gone" in caplog.text


def test_a_broker_that_came_back_empty_is_a_loss_in_every_read(
    fragile: LocalCluster, mq: Client, orders: Source
) -> None:
    running = orders.stream(startingOffsets="earliest", **SHORT).begin()
    until(running, 20)
    lenient = orders.stream(failOnDataLoss="false", **SHORT).begin(running.offset)
    come_back_empty(fragile, orders)
    restarted = orders.stream(**SHORT).begin(running.offset)
    run = orders.stream(**SHORT)
    for failing in (running.next_batch, restarted.next_batch, run.prepare, orders.rows):
        with pytest.raises(DataLost, match=f"{orders.topic}/broker-b .*came back without its data"):
            failing()
    assert len(orders.rows(failOnDataLoss="false")) == 10
    mq.create_topic(orders.topic, queues=2, if_absent=True)
    fill(mq, orders.topic, 1)
    rows = by_queue(until(lenient, 4))
    assert {queue.broker: offsets for queue, offsets in rows.items()} == {"broker-a": [5], "broker-b": [0]}
    assert len(orders.rows()) == 14


def test_a_broker_taken_off_its_topic_is_missed_by_checkpoints_only(
    fragile: LocalCluster, mq: Client, orders: Source
) -> None:
    first = orders.stream(startingOffsets="earliest", **SHORT).begin()
    until(first, 20)
    lose(fragile, orders)
    mq.remove_topic_broker(orders.topic, "broker-b")
    assert len(orders.rows(brokerWaitMs="60000")) == 10
    with pytest.raises(DataLost, match=f"{orders.topic}/broker-b .*taken off the topic's record"):
        orders.stream(**SHORT).begin(first.offset).next_batch()
    fill(mq, orders.topic, 1, [MessageQueue(orders.topic, "broker-a", 0)])
    lenient = orders.stream(failOnDataLoss="false", **SHORT).begin(first.offset)
    assert len(until(lenient, 1)) == 1
    assert "broker-b" not in (lenient.offset or {})["topics"][orders.topic]


@pytest.mark.parametrize("lenient", ["true", "false"])
def test_a_task_does_not_take_a_broker_that_is_away_for_a_loss(
    fragile: LocalCluster, mq: Client, topic: str, lenient: str
) -> None:
    mq.create_topic(topic, queues=1, brokers=["broker-b"])
    fill(mq, topic, 3)
    fragile.kill("broker-b")
    source = Source(fragile.nameservers, topic)
    renew_nameserver(fragile, source)
    options = source.stream(failOnDataLoss=lenient, **SHORT).options
    pulls = RangePulls(
        connection_to(tuple(source.nameservers)),
        options,
        QueueRange(MessageQueue(topic, "broker-b", 0), 0, 3),
        1 << 20,
    )
    with pytest.raises(BrokerUnreachable, match="no NameServer knows it to be alive"):
        list(pulls.slices())


def test_queues_that_are_no_longer_read_are_a_loss_and_go_on_when_they_are(
    mq: Client, orders: Source
) -> None:
    strict = orders.stream(startingOffsets="earliest", maxOffsetsPerTrigger="8", **SHORT).begin()
    strict.next_batch()
    lenient = orders.stream(failOnDataLoss="false", **SHORT).begin(strict.offset)
    mq.alter_topic(orders.topic, read_queues=1, force=True)
    routes = RouteCache(orders.nameservers, patient_transport())
    route = routes.route(orders.topic)
    while any(data.read_queues > 1 for data in route.queues):
        route = routes.wait_for_change(orders.topic, route, 10_000)
    restarted = orders.stream(**SHORT).begin(strict.offset)
    with pytest.raises(DataLost, match="fewer read queues now, and offsets 2 to 4 were not read"):
        restarted.next_batch()
    assert set(by_queue(until(lenient, 6))) == {
        MessageQueue(orders.topic, broker, 0) for broker in ("broker-a", "broker-b")
    }
    mq.alter_topic(orders.topic, read_queues=2)
    assert by_queue(until(lenient, 6)) == {
        MessageQueue(orders.topic, broker, 1): [2, 3, 4] for broker in ("broker-a", "broker-b")
    }


def test_a_read_says_when_a_topic_has_no_record_of_its_brokers(
    fragile: LocalCluster, mq: Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    source = Source(fragile.nameservers, topic)
    for broker in masters(source):
        broker.create_topic(topic, CreateTopicRequest(read_queues=1, write_queues=1))
    RouteCache(fragile.nameservers, patient_transport()).wait_for_route(
        topic, 30_000, brokers=("broker-a", "broker-b")
    )
    fill(mq, topic, 2)
    assert len(source.rows()) == 4
    assert f"The record of topic {topic} does not say which brokers hold it" in caplog.text
    caplog.clear()
    mq.create_topic(topic, if_absent=True)
    assert {config.brokers for config in (one.config for one in mq.describe_topic(topic).values())} == {
        ("broker-a", "broker-b")
    }
