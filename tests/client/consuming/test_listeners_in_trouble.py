"""A listener one of whose queues cannot go on: it names the queue, and handles those of the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from rocketq import Client, ConsumedMessage, LocalCluster, Message, MessageQueue, OffsetOutOfRange
from tests.client.consuming.groups_support import take
from tests.support.conditions import wait_until
from tests.support.patience import PatientClient

#: The broker keeps hardly more than one segment.
SEGMENT_BYTES: Final = 100_000
RETENTION: Final = ("--segment-bytes", str(SEGMENT_BYTES), "--retention-bytes", str(SEGMENT_BYTES))


@pytest.fixture
def mq() -> Iterator[Client]:
    with (
        LocalCluster(brokers=1, broker_arguments=RETENTION) as cluster,
        PatientClient(cluster.nameservers) as client,
    ):
        yield client


@pytest.mark.slow
def test_a_queue_whose_offset_retention_removed_stops_alone(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=2)
    gone, kept = (MessageQueue(topic, "broker-a", number) for number in range(2))
    with mq.producer() as producer:
        producer.send(topic, b"0", queue=gone)
        producer.send(topic, b"1", queue=gone)
        producer.send(topic, b"0", queue=kept)
        with mq.consumer(topic, topic, ack="manual") as consumer:
            consumer.commit([message for message in take(consumer, 3) if message.body == b"0"])
        producer.send_batch(topic, [Message(b"-" * 10_000)] * 30, queue=gone)
        wait_until(lambda: mq.describe_topic(topic)["broker-a"].queues[gone.queue].min > 1)
    handled: list[MessageQueue] = []

    def handle(message: ConsumedMessage) -> None:
        handled.append(message.queue)

    with mq.listener(topic, handle, group=topic, offset_reset="error", workers=2) as listener:
        wait_until(lambda: listener.stopped().keys() == {gone})
        assert isinstance(listener.error, OffsetOutOfRange)
        with mq.producer() as producer:
            for body in (b"1", b"2"):
                producer.send(topic, body, queue=kept)
        wait_until(lambda: handled == [kept, kept])
        assert listener.owned().keys() == {gone, kept}, "it stays in the group, with both"
        assert listener.owned()[gone] == 1
