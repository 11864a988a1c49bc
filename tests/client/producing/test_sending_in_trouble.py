"""Sends to brokers that refuse, vanish or are slow to say so: how often, where, and what is told."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from rocketq import (
    BrokerUnavailable,
    Client,
    InternalError,
    InvalidBatch,
    Message,
    MessageQueue,
    NoPermission,
    QueueNotFound,
    RocketqError,
    SendFailed,
    SendResult,
    SendStatus,
    StoreFull,
    SystemBusy,
    TopicNotFound,
)
from rocketq.errors import UnsupportedMediaType
from rocketq.producing.attempts.parcels import parcels
from rocketq.producing.selection.queue_selectors import QueueSlice
from rocketq.protocol.documents.broker import OCTET_STREAM
from rocketq.protocol.hashing import hash_value
from rocketq.protocol.message_schema import from_messages
from tests.support.patience import PatientClient
from tests.support.small_cluster import TOPIC, SmallBroker, SmallCluster, refusal
from tests.support.small_server import Answer

A = MessageQueue(TOPIC, "broker-a", 0)
B = MessageQueue(TOPIC, "broker-b", 0)


@pytest.fixture
def small() -> Iterator[SmallCluster]:
    with SmallCluster() as cluster:
        yield cluster


@pytest.fixture
def mq(small: SmallCluster) -> Iterator[Client]:
    with PatientClient(small.nameserver) as client:
        yield client


def both_refuse(small: SmallCluster, answer: Answer, times: int = 9) -> None:
    for broker in small.brokers:
        broker.script["send"] = [answer] * times


def calls_left(small: SmallCluster, times: int = 9) -> int:
    """How many of the scripted answers were given."""
    return sum(times - len(broker.script["send"]) for broker in small.brokers)


@pytest.mark.parametrize(
    "error",
    [
        SystemBusy("full", 10), BrokerUnavailable("a", "draining"), StoreFull("a", 99), InternalError("t"),
        TopicNotFound(TOPIC, "a"), NoPermission("sending", TOPIC),
    ],
    ids=lambda e: e.code,
)  # fmt: skip
def test_a_message_one_broker_does_not_take_goes_to_the_other(
    error: RocketqError,
) -> None:
    with SmallCluster(queues=3) as small, PatientClient(small.nameserver) as mq:
        broken, healthy = small.brokers
        # Without numbers an internal error, too, has no second attempt at the same broker.
        with mq.producer(fault_avoidance=False, idempotent=False) as producer:
            for _ in range(8):
                broken.script["send"] = [refusal(error)] * 3
                assert producer.send(TOPIC, b"x").queue.broker == "broker-b"
                assert len(broken.script["send"]) >= 2, "the second attempt went elsewhere"
    assert sum(len(healthy.bodies(queue)) for queue in range(3)) == 8


def test_a_broker_that_failed_is_left_alone_for_a_while(small: SmallCluster, mq: Client) -> None:
    broken = small.brokers[0]
    broken.script["send"] = [refusal(SystemBusy("full", 10))] * 20
    with mq.producer() as producer:
        for _ in range(10):
            producer.send(TOPIC, b"x")
    assert len(broken.script["send"]) >= 19, "it was asked once at most"


def test_there_are_three_attempts_and_the_error_tells_each(small: SmallCluster, mq: Client) -> None:
    both_refuse(small, refusal(StoreFull("x", 99)))
    with mq.producer() as producer, pytest.raises(SendFailed) as caught:
        producer.send(TOPIC, b"x")
    attempts = caught.value.facts["attempts"]
    assert len(attempts) == calls_left(small) == 3
    brokers = [attempt.split(":")[0] for attempt in attempts]
    assert brokers[0] != brokers[1], "the second attempt went to the other broker"


def test_a_refused_batch_is_not_sent_again(small: SmallCluster, mq: Client) -> None:
    both_refuse(small, refusal(InvalidBatch("no")))
    with mq.producer() as producer, pytest.raises(InvalidBatch):
        producer.send(TOPIC, b"x")
    assert calls_left(small) == 1


def test_an_ordered_message_waits_for_its_busy_broker(small: SmallCluster, mq: Client) -> None:
    small.brokers[0].script["send"] = [refusal(SystemBusy("full", 1))] * 2
    with mq.producer(timeout_ms=60_000) as producer:
        assert producer.send(TOPIC, b"x", queue=A).queue == A
    assert small.brokers[0].bodies() == [b"x"]


def test_an_ordered_message_without_an_answer_is_not_sent_twice(small: SmallCluster, mq: Client) -> None:
    # The broker stored it, and the connection broke before it could say so.
    small.brokers[0].script["send"] = [lambda _: Answer(hang_up=True)] * 5
    with (
        mq.producer(idempotent=False) as producer,
        pytest.raises(SendFailed, match="may have been stored"),
    ):
        producer.send(TOPIC, b"x", queue=A)
    assert small.brokers[0].bodies() == [b"x"]


@pytest.mark.parametrize("where", [{}, {"queue": A}, {"ordering_key": b"k"}], ids=["any", "queue", "key"])
def test_a_numbered_message_without_an_answer_is_stored_once(
    small: SmallCluster, mq: Client, where: dict[str, Any]
) -> None:
    for broker in small.brokers:
        broker.script["send"] = [lambda _: Answer(hang_up=True)] * 2
    with mq.producer(timeout_ms=30_000, retries=2, move_unanswered=False) as producer:
        result = producer.send(TOPIC, b"x", **where)
        assert producer.send(TOPIC, b"y", queue=result.queue).offset == 1
    (stored,) = [broker.bodies() for broker in small.brokers if broker.name == result.queue.broker]
    assert stored == [b"x", b"y"]
    assert (result.offset, result.may_be_duplicate) == (0, False)
    assert sum(len(broker.bodies()) for broker in small.brokers) == 2


def test_a_numbered_batch_without_an_answer_is_stored_once(small: SmallCluster, mq: Client) -> None:
    for broker in small.brokers:
        broker.script["send"] = [lambda answer: answer, lambda _: Answer(hang_up=True)] * 3
    data = pa.table({"body": [b"%d" % n for n in range(2_000)]})
    with mq.producer(slice_bytes=4_000, request_bytes=16_000) as producer:
        results = producer.send_batch(TOPIC, data)
    stored = [body for broker in small.brokers for body in broker.bodies()]
    assert sorted(map(int, stored)) == list(range(2_000))
    assert sum(result.count for result in results) == 2_000
    for result in results:
        (broker,) = (each for each in small.brokers if each.name == result.queue.broker)
        assert result.offset + result.count <= len(broker.bodies())


def test_a_message_goes_elsewhere_when_its_broker_has_not_answered_twice(
    small: SmallCluster, mq: Client
) -> None:
    silent, healthy = small.brokers
    silent.script["send"] = [lambda _: Answer(hang_up=True), Answer(hang_up=True)]
    with mq.producer(timeout_ms=30_000) as producer:
        results = [producer.send(TOPIC, b"%d" % n) for n in range(2)]
    assert {result.queue.broker for result in results} == {healthy.name}
    assert sorted(result.may_be_duplicate for result in results) == [False, True]
    assert len(silent.bodies()) == 1, "this is the copy that the result speaks of"


def test_a_message_that_must_not_move_fails_where_its_broker_does_not_answer(
    small: SmallCluster, mq: Client
) -> None:
    for broker in small.brokers:
        broker.script["send"] = [Answer(hang_up=True)] * 3
    with mq.producer(move_unanswered=False) as producer, pytest.raises(SendFailed) as caught:
        producer.send(TOPIC, b"x")
    attempts = caught.value.facts["attempts"]
    assert len({attempt.split(":")[0] for attempt in attempts}) == 1
    assert caught.value.facts["may_be_stored"] is True


def test_an_ordered_message_that_may_be_stored_waits_for_its_broker(small: SmallCluster, mq: Client) -> None:
    broker, other = small.brokers

    def come_back() -> None:
        small.away.clear()
        small.route_changed()

    def stored_and_gone(_: Answer) -> Answer:
        small.away.add(broker.name)
        small.route_changed()
        small.nameserver_answers(2, then=come_back)
        return Answer(hang_up=True)

    broker.script["send"] = [stored_and_gone]
    key = next(k for n in itertools.count() if hash_value(k := b"%d" % n) % 2 == 0)
    with mq.producer(timeout_ms=60_000, retries=1_000) as producer:
        result = producer.send(TOPIC, b"x", ordering_key=key)
    assert result.queue == A
    assert (broker.bodies(), other.bodies()) == ([b"x"], [])


def test_an_unanswered_unordered_message_is_sent_to_another_broker(small: SmallCluster, mq: Client) -> None:
    for broker in small.brokers:
        broker.script["send"] = [lambda _: Answer(hang_up=True)]
    with mq.producer(timeout_ms=60_000, idempotent=False) as producer:
        assert producer.send(TOPIC, b"x").may_be_duplicate
    stored = [body for broker in small.brokers for body in broker.bodies()]
    assert stored == [b"x"] * 3, "at least once: two answers were lost"


def test_a_status_that_is_not_ok_is_returned_and_not_retried(small: SmallCluster, mq: Client) -> None:
    for broker in small.brokers:
        broker.status = SendStatus.FLUSH_DISK_TIMEOUT
    with mq.producer() as producer:
        assert producer.send(TOPIC, b"x").status is SendStatus.FLUSH_DISK_TIMEOUT
        assert producer.submit(TOPIC, b"x").result(60).status is SendStatus.FLUSH_DISK_TIMEOUT
    assert sum(len(broker.bodies()) for broker in small.brokers) == 2


def test_a_oneway_message_has_one_attempt(small: SmallCluster, mq: Client) -> None:
    both_refuse(small, refusal(SystemBusy("full", 1)))
    with mq.producer() as producer:
        producer.send_oneway(TOPIC, b"x")
    assert calls_left(small) == 1


def test_a_queue_that_is_gone_makes_a_key_find_its_place_in_the_new_route(
    small: SmallCluster, mq: Client
) -> None:
    for broker in small.brokers:
        broker.queues.append(type(broker.queues[0])())
    small.route_changed()
    with mq.producer() as producer:
        before = {n: producer.send(TOPIC, b"x", ordering_key=b"%d" % n).queue for n in range(20)}
        assert {queue.queue for queue in before.values()} == {0, 1}
        for broker in small.brokers:
            broker.queues.pop()
            broker.script["send"] = [refusal(QueueNotFound(TOPIC, 1, 1))]
        small.route_changed()
        after = [producer.send(TOPIC, b"x", ordering_key=b"%d" % n).queue for n in range(20)]
    assert {queue.queue for queue in after} == {0}


def test_part_of_a_batch_that_was_stored_is_told_with_the_failure(small: SmallCluster, mq: Client) -> None:
    small.brokers[1].script["send"] = [refusal(InvalidBatch("no"))] * 9
    keys = [Message(b"%d" % n, b"%d" % n) for n in range(50)]
    with mq.producer(idempotent=False) as producer:
        with pytest.raises(InvalidBatch):
            producer.send_batch(TOPIC, keys, ordering_key="key")
        small.brokers[1].script["send"] = [lambda _: Answer(hang_up=True)]
        with pytest.raises(SendFailed) as caught:
            producer.send_batch(TOPIC, keys, ordering_key="key")
    (stored,) = caught.value.facts["stored"]
    assert stored[0] == "broker-a"
    assert f"{stored[3]} messages of this call were stored" in caught.value.hint


def test_a_batch_for_two_brokers_moves_whole_to_the_one_that_takes_it(
    small: SmallCluster, mq: Client
) -> None:
    small.brokers[0].script["send"] = [refusal(StoreFull("a", 99))] * 9
    data = pa.table({"body": [b"%d" % n for n in range(1_000)]})
    with mq.producer(slice_bytes=4_000) as producer:
        results = producer.send_batch(TOPIC, data)
    assert {result.queue for result in results} == {B}
    assert sorted(small.brokers[1].bodies(), key=int) == [b"%d" % n for n in range(1_000)]


def test_one_request_carries_all_slices_of_a_broker(small: SmallCluster, mq: Client) -> None:
    keys = [Message(b"x", b"%d" % n) for n in range(100)]
    with mq.producer() as producer:
        results = producer.send_batch(TOPIC, keys, ordering_key="key")
    assert [len(broker.sends) for broker in small.brokers] == [1, 1]
    assert sum(result.count for result in results) == 100


def test_after_a_failed_ordered_batch_the_next_try_is_in_order(small: SmallCluster, mq: Client) -> None:
    broker = small.brokers[0]
    broker.script["send"] = [lambda _: Answer(hang_up=True)]
    with mq.producer(batch_messages=1, linger_ms=0, idempotent=False) as producer:
        futures = [producer.submit(TOPIC, b"%d" % n, queue=A) for n in range(5)]
        producer.flush()
        outcomes = [future.exception() or future.result() for future in futures]
        stored = [int(body) for body in broker.bodies()]
        assert stored == sorted(stored)
        succeeded = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, SendResult)]
        failed = [n for n, outcome in enumerate(outcomes) if not isinstance(outcome, SendResult)]
        assert 0 in failed
        assert not succeeded or min(succeeded) > max(failed), "nothing overtook what failed"


def test_nothing_overtakes_an_ordered_batch_that_is_repeated(small: SmallCluster, mq: Client) -> None:
    broker = small.brokers[0]
    lost: list[Answer | Callable[[Answer], Answer]] = [Answer(hang_up=True), lambda _: Answer(hang_up=True)]
    broker.script["send"] = [*lost, lambda answer: answer] * 4
    with mq.producer(batch_messages=2, linger_ms=0, timeout_ms=60_000) as producer:
        futures = [producer.submit(TOPIC, b"%d" % n, queue=A) for n in range(9)]
        offsets = [future.result(60).offset for future in futures]
    assert broker.bodies() == [b"%d" % n for n in range(9)]
    assert offsets == list(range(9))


def test_parcels_keep_order_and_bounds() -> None:
    batch = from_messages([Message(bytes(1_000))] * 10)
    queues = itertools.cycle([A, B])
    slices = [QueueSlice(next(queues), batch, n) for n in range(600)]
    packed = parcels(TOPIC, slices, request_bytes=25_000)
    assert set(packed) == {"broker-a", "broker-b"}
    for broker, made in packed.items():
        assert [s.first_row for p in made for s in p.slices] == list(range(broker == "broker-b", 600, 2))
        assert all(len(p.slices) <= 2 for p in made)
    (many,) = parcels(TOPIC, [QueueSlice(A, batch.slice(0, 1), n) for n in range(1_000)], 1 << 30).values()
    assert [len(p.slices) for p in many] == [256, 256, 256, 232]


def test_no_broker_alive_is_said_by_name(small: SmallCluster, mq: Client) -> None:
    gone: list[SmallBroker] = [small.brokers.pop(), small.brokers.pop()]
    assert gone
    with mq.producer() as producer, pytest.raises(NoPermission, match="no writable queue"):
        producer.send(TOPIC, b"x")


def test_an_older_broker_that_refuses_the_plain_form_is_named(small: SmallCluster, mq: Client) -> None:
    both_refuse(small, refusal(UnsupportedMediaType("Content-Type", OCTET_STREAM, "Arrow streams")))
    with mq.producer() as producer, pytest.raises(UnsupportedMediaType, match="older than this client"):
        producer.send(TOPIC, b"one")
    assert calls_left(small) == 1
