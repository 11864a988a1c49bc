"""When servers die: what goes on, what is retried elsewhere, and what must not be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketq import (
    LocalCluster,
    Message,
    MessageQueue,
    NameServersUnreachable,
    NoPermission,
    SendFailed,
    SendStatus,
    TopicNotFound,
)
from rocketq.net.route_cache import RouteCache
from tests.support.conditions import WAIT_MS
from tests.support.patience import PatientClient, patient_transport


@pytest.fixture(scope="module")
def fragile_cluster() -> Iterator[LocalCluster]:
    """Two NameServers and two brokers that these tests may break."""
    with LocalCluster(brokers=2, nameservers=2, broker_arguments=["--heartbeat-ms", "300"]) as running:
        with PatientClient(running.nameservers) as mq:
            mq.create_topic("canary", queues=1)
        yield running


@pytest.fixture
def own_cluster(fragile_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster, whole; it is mended after the test."""
    yield fragile_cluster
    for name in fragile_cluster.names:
        if not fragile_cluster.running(name):
            fragile_cluster.restart(name)
    with patient_transport() as transport:
        for address in fragile_cluster.nameservers:
            routes = RouteCache(address, transport)
            known = routes.wait_for_route("canary", WAIT_MS, brokers=fragile_cluster.brokers)
            assert len(known.queues) == 2


def test_sending_survives_a_killed_broker_and_nothing_is_lost(own_cluster: LocalCluster, topic: str) -> None:
    with PatientClient(own_cluster.nameservers) as mq:
        mq.create_topic(topic, queues=2)
        with mq.producer() as producer:
            before = [producer.send(topic, b"%d" % n) for n in range(8)]
            own_cluster.kill("broker-a")
            after = [producer.send(topic, b"%d" % n) for n in range(8, 20)]
            assert {result.queue.broker for result in before} == {"broker-a", "broker-b"}
            assert {result.queue.broker for result in after} == {"broker-b"}
            batch = producer.send_batch(topic, [Message(b"%d" % n) for n in range(20, 400)])
            assert {result.queue.broker for result in batch} == {"broker-b"}
            futures = [producer.submit(topic, b"%d" % n) for n in range(400, 420)]
            producer.flush()
            assert all(future.result().queue.broker == "broker-b" for future in futures)
        own_cluster.restart("broker-a")
        with mq.pull_consumer(topic, start="earliest") as consumer:
            found: set[bytes] = set()
            while len(found) < 420:
                messages = consumer.poll(timeout_ms=WAIT_MS)
                assert messages
                found |= {message.body for message in messages}
        assert found == {b"%d" % n for n in range(420)}


def test_an_ordered_send_never_moves_to_another_queue(own_cluster: LocalCluster, topic: str) -> None:
    with PatientClient(own_cluster.nameservers) as mq:
        mq.create_topic(topic, queues=1)
        lost = MessageQueue(topic, "broker-a", 0)
        with mq.producer() as producer:
            producer.send(topic, b"x", queue=lost)
            own_cluster.kill("broker-a")
            with pytest.raises(SendFailed) as caught:
                producer.send(topic, b"y", queue=lost, timeout_ms=500)
            assert all(attempt.startswith("broker-a") for attempt in caught.value.facts["attempts"])
        own_cluster.restart("broker-a")
        with mq.producer() as producer:
            assert producer.send(topic, b"z", queue=lost).queue == lost


def test_a_frozen_broker_delays_one_send_and_is_then_avoided(own_cluster: LocalCluster, topic: str) -> None:
    with PatientClient(own_cluster.nameservers) as mq:
        mq.create_topic(topic, queues=1)
        with mq.producer(timeout_ms=9_000) as producer:
            for _ in range(2):
                producer.send(topic, b"x", timeout_ms=WAIT_MS)
            own_cluster.pause("broker-a")
            try:
                results = [producer.send(topic, b"y") for _ in range(6)]
            finally:
                own_cluster.resume("broker-a")
        assert {result.queue.broker for result in results} == {"broker-b"}


def test_without_nameservers_known_topics_are_sent_to_and_read(own_cluster: LocalCluster, topic: str) -> None:
    with PatientClient(own_cluster.nameservers) as mq:
        mq.create_topic(topic, queues=1)
        with mq.producer() as producer, mq.pull_consumer(topic, start="earliest") as consumer:
            producer.send(topic, b"before")
            own_cluster.kill("nameserver-1")
            own_cluster.kill("nameserver-2")
            for _ in range(10):
                assert producer.send(topic, b"after").status is SendStatus.SEND_OK
            mq.invalidate_route(topic)
            assert producer.send(topic, b"after").status is SendStatus.SEND_OK
            found = 0
            while found < 12:
                messages = consumer.poll(timeout_ms=WAIT_MS)
                assert messages
                found += len(messages)
            with pytest.raises(NameServersUnreachable) as caught:
                producer.send(f"{topic}-unknown", b"x")
            assert set(caught.value.facts["tried"]) == set(own_cluster.nameservers)


def test_one_nameserver_is_enough(own_cluster: LocalCluster, topic: str) -> None:
    with PatientClient(own_cluster.nameservers) as mq:
        mq.create_topic(f"{topic}-1", queues=1)
        own_cluster.kill("nameserver-1")
        mq.create_topic(f"{topic}-2", queues=1)
        with mq.producer() as producer:
            producer.send(f"{topic}-2", b"x")
        own_cluster.restart("nameserver-1")
        own_cluster.kill("nameserver-2")
        with mq.producer() as producer:
            producer.send(f"{topic}-1", b"y")


def test_a_consumer_goes_on_when_its_broker_comes_back(own_cluster: LocalCluster, topic: str) -> None:
    with PatientClient(own_cluster.nameservers) as mq:
        mq.create_topic(topic, queues=1)
        first, second = (MessageQueue(topic, broker, 0) for broker in ("broker-a", "broker-b"))
        with (
            mq.producer() as producer,
            mq.pull_consumer(topic, start="earliest") as consumer,
        ):
            producer.send(topic, b"1", queue=first)
            assert [m.body for m in consumer.poll(timeout_ms=WAIT_MS)] == [b"1"]
            own_cluster.kill("broker-a")
            producer.send(topic, b"2", queue=second)
            assert [m.body for m in consumer.poll(timeout_ms=WAIT_MS)] == [b"2"]
            own_cluster.restart("broker-a")
            producer.send(topic, b"3", queue=first)
            assert [m.body for m in consumer.poll(timeout_ms=WAIT_MS)] == [b"3"]


def test_a_consumer_begins_with_live_brokers_and_adds_the_others_later(
    own_cluster: LocalCluster, topic: str
) -> None:
    with PatientClient(own_cluster.nameservers) as mq:
        mq.create_topic(topic, queues=1)
        with mq.producer() as producer:
            producer.send(topic, b"a", queue=MessageQueue(topic, "broker-a", 0))
            producer.send(topic, b"b", queue=MessageQueue(topic, "broker-b", 0))
        own_cluster.kill("broker-a")
        with mq.pull_consumer(topic, start="earliest") as consumer:
            assert [m.body for m in consumer.poll(timeout_ms=WAIT_MS)] == [b"b"]
            own_cluster.restart("broker-a")
            assert [m.body for m in consumer.poll(timeout_ms=WAIT_MS)] == [b"a"]


def test_a_deleted_topic_stays_deleted_where_brokers_do_not_create_topics() -> None:
    arguments = ["--no-auto-create-topics"]
    with (
        LocalCluster(brokers=1, broker_arguments=arguments) as cluster,
        PatientClient(cluster.nameservers) as mq,
    ):
        mq.create_topic("t", queues=1)
        with mq.producer() as producer:
            producer.send("t", b"x")
            with PatientClient(cluster.nameservers) as other:
                other.delete_topic("t")
            with pytest.raises((TopicNotFound, NoPermission)):
                producer.send("t", b"y")
        assert mq.topics() == []
