"""Brokers that stall, leave the route and come back while a send is under way."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from rocketq import Client, Message, MessageQueue, SendFailed, SendStatus, StoreFull, SystemBusy
from rocketq.errors import NoPermission, TopicNotFound
from rocketq.protocol.hashing import hash_value
from tests.support.patience import PatientClient
from tests.support.small_cluster import TOPIC, SmallBroker, SmallCluster, refusal
from tests.support.small_server import Answer

A = MessageQueue(TOPIC, "broker-a", 0)
BUSY = refusal(SystemBusy("full", 1))


@pytest.fixture
def small() -> Iterator[SmallCluster]:
    with SmallCluster(queues=2) as cluster:
        yield cluster


@pytest.fixture
def mq(small: SmallCluster) -> Iterator[Client]:
    with PatientClient(small.nameserver) as client:
        yield client


def in_turn(*answers: Callable[[], Answer | None]) -> Callable[[], Answer | None]:
    """Give each answer once, in order; then the true ones."""
    left = iter(answers)
    return lambda: next(left, lambda: None)()


def refused_and(change: Callable[[], object]) -> Callable[[], Answer]:
    """Refuse a send, which is not stored, after changing something."""

    def answer() -> Answer:
        change()
        return BUSY

    return answer


def leave(small: SmallCluster, broker: SmallBroker) -> None:
    small.away.add(broker.name)
    small.route_changed()


def come_back(small: SmallCluster, broker: SmallBroker) -> None:
    small.away.discard(broker.name)
    small.route_changed()


def stored(small: SmallCluster) -> list[bytes]:
    return [body for broker in small.brokers for queue in (0, 1) for body in broker.bodies(queue)]


def keys_of(broker: str) -> Iterator[bytes]:
    """Keys whose queue is on `broker` while both brokers are in the route, with two queues each."""
    names = ["broker-a", "broker-a", "broker-b", "broker-b"]
    return (key for n in itertools.count() if names[hash_value(key := b"k%d" % n) % 4] == broker)


def test_brokers_that_stall_one_after_the_other_do_not_end_a_send(small: SmallCluster, mq: Client) -> None:
    for broker in small.brokers:
        broker.instead = in_turn(broker.stall)
    with mq.producer(timeout_ms=6_000, retries=1_000) as producer:
        producer.send(TOPIC, b"x")
    assert stored(small) == [b"x"]


def test_a_stalled_only_broker_leaves_time_for_one_that_comes_back(small: SmallCluster, mq: Client) -> None:
    away, stalling = small.brokers
    leave(small, away)
    stalling.instead = lambda: come_back(small, away) or stalling.stall()
    with mq.producer(timeout_ms=9_000, retries=1_000) as producer:
        assert producer.send(TOPIC, b"x").queue.broker == away.name
    assert stored(small) == [b"x"]


def test_after_every_failed_attempt_the_route_is_asked_for_again(small: SmallCluster, mq: Client) -> None:
    for broker in small.brokers:
        broker.instead = lambda: refusal(StoreFull("x", 99))
    with mq.producer(retries=4, timeout_ms=60_000) as producer, pytest.raises(SendFailed):
        producer.send(TOPIC, b"x")
    assert small.route_questions() == 5, "once to begin with, and once before each attempt but the first"


def test_a_keyed_message_follows_its_key_when_its_broker_leaves(small: SmallCluster, mq: Client) -> None:
    leaving, staying = small.brokers
    leaving.instead = refused_and(lambda: leave(small, leaving))
    key = next(keys_of(leaving.name))
    with mq.producer(timeout_ms=60_000) as producer:
        moved = producer.send(TOPIC, b"1", ordering_key=key).queue
        assert moved == producer.send(TOPIC, b"2", ordering_key=key).queue
    assert moved == MessageQueue(TOPIC, staying.name, hash_value(key) % 2)
    assert staying.bodies(moved.queue) == [b"1", b"2"]


def test_a_keyed_batch_is_stored_once_in_order_when_its_broker_leaves(
    small: SmallCluster, mq: Client
) -> None:
    leaving, staying = small.brokers
    # The first request of the leaving broker is stored; the second is refused.
    leaving.instead = in_turn(lambda: None, refused_and(lambda: leave(small, leaving)))
    keys = [b"k%d" % (n % 23) for n in range(2_000)]
    table = pa.table({"body": [b"%d" % n for n in range(2_000)], "of": keys})
    with mq.producer(timeout_ms=60_000, slice_bytes=4_000, request_bytes=8_000) as producer:
        results = producer.send_batch(TOPIC, table, ordering_key="of")
    assert sum(result.count for result in results) == 2_000
    assert sorted(map(int, stored(small))) == list(range(2_000))
    assert any(leaving.bodies(queue) for queue in (0, 1)), "what it had stored before stays there"
    for key in range(23):
        for queue in (0, 1):
            mine = [int(body) for body in staying.bodies(queue) if int(body) % 23 == key]
            assert mine == sorted(mine)


def test_submitted_messages_of_a_key_stay_in_order_when_its_broker_leaves(
    small: SmallCluster, mq: Client
) -> None:
    leaving, staying = small.brokers
    # The first request of the leaving broker is stored; the second is refused.
    leaving.instead = in_turn(lambda: None, refused_and(lambda: leave(small, leaving)))
    with mq.producer(timeout_ms=60_000, batch_messages=5, linger_ms=0) as producer:
        futures = [producer.submit(TOPIC, b"%d" % n, ordering_key=b"k%d" % (n % 23)) for n in range(400)]
        producer.flush()
        results = [future.result() for future in futures]
    assert sorted(map(int, stored(small))) == list(range(400))
    assert leaving.name in {result.queue.broker for result in results}
    for n, result in enumerate(results):
        (broker,) = (b for b in small.brokers if b.name == result.queue.broker)
        assert broker.bodies(result.queue.queue)[result.offset] == b"%d" % n
    for key in range(23):
        for queue in (0, 1):
            mine = [int(body) for body in staying.bodies(queue) if int(body) % 23 == key]
            assert mine == sorted(mine)


def test_a_message_for_an_explicit_queue_waits_for_its_broker_to_come_back(
    small: SmallCluster, mq: Client
) -> None:
    leaving, staying = small.brokers
    leaving.instead = in_turn(refused_and(lambda: leave(small, leaving)))
    answered = small.nameserver_answers(3, then=lambda: come_back(small, leaving))
    with mq.producer(timeout_ms=60_000, retries=1_000) as producer:
        assert producer.send(TOPIC, b"x", queue=A).queue == A
    assert answered.is_set()
    assert not any(staying.bodies(queue) for queue in (0, 1))


def test_a_send_waits_while_no_broker_is_in_the_route(small: SmallCluster, mq: Client) -> None:
    def both_leave() -> None:
        for broker in small.brokers:
            leave(small, broker)

    # Whichever broker is chosen first: the second attempt must find the one that came back willing.
    first_refused = in_turn(refused_and(both_leave))
    for broker in small.brokers:
        broker.instead = first_refused
    small.nameserver_answers(4, then=lambda: come_back(small, small.brokers[1]))
    with mq.producer(timeout_ms=60_000, retries=1_000) as producer:
        assert producer.send(TOPIC, b"x").queue.broker == "broker-b"


def test_what_was_only_refused_was_not_stored_and_the_error_says_so(small: SmallCluster, mq: Client) -> None:
    for broker in small.brokers:
        broker.instead = lambda: BUSY
    with (
        mq.producer() as producer,
        pytest.raises(SendFailed, match="Nothing of this request was stored") as e,
    ):
        producer.send(TOPIC, b"x")
    assert e.value.facts["may_be_stored"] is False


def test_what_never_reached_a_broker_was_not_stored_and_the_error_says_so(
    small: SmallCluster, mq: Client
) -> None:
    small.close_broker("broker-a")
    with mq.producer() as producer:
        producer.send(TOPIC, b"y", queue=MessageQueue(TOPIC, "broker-b", 0))
        with pytest.raises(SendFailed, match="the connection was refused") as caught:
            producer.send(TOPIC, b"x", queue=A, timeout_ms=500)
    assert caught.value.facts["may_be_stored"] is False
    assert "Nothing of this request was stored" in caught.value.hint


@pytest.mark.parametrize("error", [TopicNotFound(TOPIC, "x"), NoPermission("sending", TOPIC)])
def test_a_refusal_does_not_hide_that_an_earlier_attempt_may_have_stored(
    small: SmallCluster, mq: Client, error: TopicNotFound | NoPermission
) -> None:
    times = itertools.count()
    for broker in small.brokers:
        broker.instead = lambda: Answer(hang_up=True) if next(times) == 0 else refusal(error)
    with mq.producer() as producer, pytest.raises(SendFailed, match="may have been stored") as caught:
        producer.send(TOPIC, b"x")
    assert caught.value.facts["may_be_stored"] is True
    assert len(caught.value.facts["attempts"]) == 3


@pytest.mark.parametrize("status", [SendStatus.FLUSH_SLAVE_TIMEOUT, SendStatus.SLAVE_NOT_AVAILABLE])
def test_a_master_whose_slaves_do_not_follow_may_have_been_replaced(
    small: SmallCluster, mq: Client, status: SendStatus
) -> None:
    with mq.producer() as producer:
        producer.send(TOPIC, b"confirmed")
        producer.send(TOPIC, b"confirmed, too")
        assert small.route_questions() == 1
        for broker in small.brokers:
            broker.status = status
        assert producer.send(TOPIC, b"one").status is status
        assert producer.send_batch(TOPIC, [Message(b"two")])[0].status is status
        producer.send(TOPIC, b"three")
    assert small.route_questions() == 3, "once to begin with, and once after each answer without slaves"
