"""A sender of batches: what it gathers, how many requests are in flight, and what a failure leaves."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from rocketq import Client, InvalidMessage, MessageQueue, SendFailed
from tests.support.patience import PatientClient
from tests.support.small_cluster import TOPIC, SmallCluster
from tests.support.small_server import Answer

A = MessageQueue(TOPIC, "broker-a", 0)


@pytest.fixture
def small() -> Iterator[SmallCluster]:
    with SmallCluster() as cluster:
        yield cluster


@pytest.fixture
def mq(small: SmallCluster) -> Iterator[Client]:
    with PatientClient(small.nameserver) as client:
        yield client


def batch(first: int, rows: int = 10, body_bytes: int = 100) -> pa.RecordBatch:
    bodies = [str(n).zfill(body_bytes).encode() for n in range(first, first + rows)]
    return pa.record_batch({"body": bodies, "key": [b"k"] * rows})


def numbers(small: SmallCluster) -> list[int]:
    return [int(body) for broker in small.brokers for body in broker.bodies()]


def test_small_batches_are_gathered_into_one_request(small: SmallCluster, mq: Client) -> None:
    with mq.producer() as producer, producer.batch_sender() as sender:
        for first in range(0, 50, 10):
            sender.add(TOPIC, batch(first), A)
        results = sender.finish()
    assert [len(broker.sends) for broker in small.brokers] == [1, 0]
    assert [(result.queue, result.count) for result in results] == [(A, 50)]
    assert numbers(small) == list(range(50))


def test_rows_of_one_key_keep_their_order_over_many_requests(small: SmallCluster, mq: Client) -> None:
    with mq.producer(request_bytes=2_000) as producer, producer.batch_sender(ordering_key="key") as sender:
        for first in range(0, 200, 10):
            sender.add(TOPIC, batch(first))
        results = sender.finish()
    assert sum(result.count for result in results) == 200
    assert numbers(small) == list(range(200))
    assert sum(len(broker.sends) for broker in small.brokers) >= 10


def test_several_requests_are_in_flight_where_order_does_not_matter(small: SmallCluster, mq: Client) -> None:
    together = threading.Barrier(2)

    def meet(answer: Answer) -> Answer:
        """Answer only when another request is there at the same time."""
        together.wait(60)
        return answer

    for broker in small.brokers:
        broker.script["send"] = [meet] * 2
    with mq.producer(request_bytes=1_500, timeout_ms=60_000) as producer, producer.batch_sender() as sender:
        for first in range(0, 20, 10):
            sender.add(TOPIC, batch(first))
        assert sum(result.count for result in sender.finish()) == 20
    assert sorted(numbers(small)) == list(range(20))


def test_after_a_failure_the_next_ordered_request_is_not_sent(small: SmallCluster, mq: Client) -> None:
    small.brokers[0].script["send"] = [lambda answer: answer, lambda _: Answer(hang_up=True)]
    with mq.producer(request_bytes=1_500, retries=0) as producer, producer.batch_sender() as sender:

        def send_all() -> None:
            for first in range(0, 60, 10):
                sender.add(TOPIC, batch(first), A)
            sender.finish()

        with pytest.raises(SendFailed, match="may have been stored") as caught:
            send_all()
    assert "10 messages of this call were stored" in caught.value.hint
    assert caught.value.facts["stored"] == [["broker-a", 0, 0, 10]]
    assert len(numbers(small)) <= 20


def test_data_that_is_refused_sends_nothing_of_what_was_gathered(small: SmallCluster, mq: Client) -> None:
    refused = pa.record_batch({"body": [b"x", b"y"], "tag": ["A", "A B"]})
    with mq.producer() as producer, producer.batch_sender() as sender:
        sender.add(TOPIC, batch(0), A)
        with pytest.raises(InvalidMessage, match="the tag 'A B' in row 1"):
            sender.add(TOPIC, refused, A)
    assert numbers(small) == []
