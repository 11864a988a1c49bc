"""Messages that fail come again by the retry topic, at any member, and end as dead letters."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest

from rocketq import Client, ConsumedMessage, LocalCluster
from rocketq.clock import ManualClock
from rocketq.errors import InvalidConfiguration
from tests.client.consuming.groups_support import fill, numbers, one_queue, take
from tests.support.conditions import wait_until


def letters(mq: Client, group: str) -> dict[int, dict[str, str]]:
    """Return the dead letters of a group: for each body its properties."""
    topic = f"%DLQ%{group}"
    if topic not in mq.topics():
        return {}
    found = {}
    with mq.pull_consumer(topic, start="earliest") as consumer:
        wait_until(lambda: bool(found.update({int(m.body): m.properties for m in consumer.poll()}) or found))
        while more := consumer.poll(timeout_ms=100):
            found.update({int(m.body): m.properties for m in more})
    return {body: properties or {} for body, properties in found.items()}


def test_a_message_that_failed_comes_again_as_itself(mq: Client, topic: str) -> None:
    one_queue(mq, topic, 4)
    with mq.consumer(topic, [topic], ack="manual", commit_ms=50) as consumer:
        messages = take(consumer, 4)
        failed = messages[1]
        failed.nack("1ms", reason="no stock")
        for message in messages:
            message.ack()
        [again] = take(consumer, 1)
        assert (again.queue, again.offset, again.message_id) == (failed.queue, 1, failed.message_id)
        assert (again.body, again.attempt) == (b"1", 2)
        assert (again.properties or {})["FAILURE_REASON"] == "no stock"
        assert again.unique_id == failed.message_id
        again.nack("1ms")
        [third] = take(consumer, 1)
        assert (third.message_id, third.attempt) == (failed.message_id, 3)
        third.ack()
        wait_until(lambda: sum(consumer.lag().values()) == 0)
        consumer.commit([])
        assert set(consumer.owned().values()) == {4, 2}, "nothing is held up"


def test_a_failed_message_does_not_hold_the_offset_of_its_queue(mq: Client, topic: str) -> None:
    one_queue(mq, topic, 3)
    with mq.consumer(topic, [topic], ack="manual") as consumer:
        messages = take(consumer, 3)
        messages[0].nack("1h")
        for message in messages[1:]:
            message.ack()
        wait_until(lambda: consumer.owned()[messages[0].queue] == 3)
    with mq.consumer(topic, [topic], ack="manual") as consumer:
        assert consumer.poll(timeout_ms=100) == [], "it waits, and the others were handled"


def test_another_member_gets_what_one_gave_back(mq: Client, topic: str) -> None:
    one_queue(mq, topic, 10)
    with mq.consumer(topic, [topic], ack="manual") as first:
        for message in take(first, 10):
            message.nack("1ms")
    with mq.consumer(topic, [topic], ack="manual") as second:
        found = take(second, 10)
        assert numbers(found) == list(range(10))
        assert {message.attempt for message in found} == {2}
        assert {message.queue.topic for message in found} == {topic}


@pytest.mark.parametrize("own", [False, True])
def test_after_its_last_attempt_a_message_is_a_dead_letter(mq: Client, topic: str, own: bool) -> None:
    one_queue(mq, topic, 2)
    mq.groups.set(topic, retries_max=1 if not own else 16)
    attempts: list[int] = []
    handled = threading.Event()

    def handle(message: ConsumedMessage) -> None:
        if message.body == b"0":
            attempts.append(message.attempt)
            message.nack("1ms", reason=f"attempt {message.attempt}")
            return
        handled.set()

    with mq.listener(topic, handle, group=topic, max_attempts=2 if own else None):
        wait_until(lambda: f"%DLQ%{topic}" in mq.topics())
        assert handled.wait(60)
        found = letters(mq, topic)
    assert attempts == [1, 2]
    assert found[0]["FAILURE_REASON"] == "attempt 2"
    assert (found[0]["RECONSUME_TIME"], found[0]["RETRY_TOPIC"]) == ("2", topic)


def test_an_exception_of_a_listener_is_the_reason(mq: Client, topic: str) -> None:
    one_queue(mq, topic, 1)

    def handle(message: ConsumedMessage) -> None:
        raise ArithmeticError("seven")

    with mq.listener(topic, handle, group=topic, max_attempts=1):
        wait_until(lambda: f"%DLQ%{topic}" in mq.topics())
        assert letters(mq, topic)[0]["FAILURE_REASON"] == "ArithmeticError: seven"


def test_an_ordered_queue_goes_on_behind_a_dead_letter(mq: Client, topic: str) -> None:
    one_queue(mq, topic, 10)
    seen: list[tuple[int, int]] = []
    with mq.consumer(topic, [topic], ordered=True, suspend_ms=10, max_attempts=3) as consumer:
        for message in consumer:
            seen.append((message.offset, message.attempt))
            if message.offset in (3, 4):
                message.nack(reason="never")
            if message.offset == 9:
                message.ack()
                break
        wait_until(lambda: list(consumer.owned().values()) == [10])
    assert seen == [(0, 1), (1, 1), (2, 1), (3, 1), (3, 2), (3, 3), (4, 1), (4, 2), (4, 3),
                    *((offset, 1) for offset in range(5, 10))]  # fmt: skip
    assert {body: p["RECONSUME_TIME"] for body, p in letters(mq, topic).items()} == {3: "3", 4: "3"}


def test_a_message_that_the_broker_does_not_take_stays_with_the_member(
    cluster: LocalCluster, topic: str
) -> None:
    clock = ManualClock()
    again: list[ConsumedMessage] = []

    def comes_again() -> bool:
        clock.advance(1_000)
        again.extend(consumer.poll(timeout_ms=0))
        return bool(again)

    with Client(cluster.nameservers, clock=clock) as mq:
        one_queue(mq, topic, 2)
        with mq.consumer(topic, [topic], ack="manual") as consumer:
            first, second = take(consumer, 2)
            second.ack()
            mq.alter_topic(topic, perm=2)
            first.nack("1h")
            wait_until(comes_again)
            assert [(each.offset, each.attempt) for each in again] == [(0, 2)]
            assert list(consumer.owned().values()) == [0]
            mq.alter_topic(topic, perm=6)


def test_what_is_no_duration_is_refused_and_nothing_happens(mq: Client, topic: str) -> None:
    one_queue(mq, topic, 1)
    with mq.consumer(topic, [topic], ack="manual") as consumer:
        [message] = take(consumer, 1)
        with pytest.raises(InvalidConfiguration, match="delay"):
            message.nack("soon")
        message.ack()
        message.nack("1ms")
        assert consumer.poll(timeout_ms=50) == []


@pytest.mark.parametrize("seed", range(2))
def test_every_message_is_handled_once_or_is_a_dead_letter(mq: Client, topic: str, seed: int) -> None:
    """Members come and go in good order, and a function fails at random: exactly once, since nobody dies."""
    fill(mq, topic, 400, queues=4)
    mq.groups.set(topic, retries_max=3)
    handled: Counter[int] = Counter()
    failures: Counter[int] = Counter()
    lock = threading.Lock()
    chance = random.Random(seed)

    def handle(message: ConsumedMessage) -> None:
        number = int(message.body)
        with lock:
            assert message.attempt == failures[number] + 1
            if chance.random() < 0.3:
                failures[number] += 1
                message.nack("1ms", reason=f"{failures[number]}")
            else:
                handled[number] += 1

    def is_settled() -> bool:
        with lock:
            dead = sum(1 for count in failures.values() if count == 4)
            return len(handled) + dead == 400

    first = mq.listener(topic, handle, group=topic, workers=2)
    for _ in range(2):
        with mq.listener(topic, handle, group=topic, workers=2):
            wait_until(lambda: sum(handled.values()) > 100 or is_settled())
    wait_until(is_settled)
    first.close()
    dead = {number for number, count in failures.items() if count == 4}
    assert max(handled.values()) == 1
    assert handled.keys() | dead == set(range(400))
    assert not handled.keys() & dead
    assert letters(mq, topic).keys() == dead
