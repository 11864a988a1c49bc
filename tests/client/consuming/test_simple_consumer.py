"""The consumer that leases messages one by one, against real brokers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from rocketq import (
    Client,
    Closed,
    GroupNotFound,
    InvalidConfiguration,
    LeaseExpired,
    Message,
    RouteNotFound,
    Tag,
)
from tests.client.consuming.groups_support import fill, lag
from tests.support.conditions import wait_until

HOUR_MS = 3_600_000


def test_messages_of_all_brokers_come_once_and_are_acknowledged_together(mq: Client, topic: str) -> None:
    fill(mq, topic, 300, queues=3)
    with mq.simple_consumer(f"{topic}-g", topic, invisible_ms=HOUR_MS, wait_ms=0) as consumer:

        def work(_: int) -> list[bytes]:
            own: list[bytes] = []
            while messages := consumer.receive(20):
                result = consumer.ack(messages)
                assert (result.acknowledged, result.settled, result.refused) == (len(messages), 0, ())
                own += [each.body for each in messages]
            return own

        with ThreadPoolExecutor(4) as pool:
            found = [body for own in pool.map(work, range(4)) for body in own]
    assert len(found) == len(set(found)) == 300
    assert lag(mq, f"{topic}-g") == 0


def test_a_message_knows_its_place_its_attempt_and_its_handle(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=1, brokers=["broker-a"])
    with mq.producer() as producer:
        producer.send_batch(topic, [Message(b"\xff", b"k", "paid", {"a": "b"}, 7)])
    with mq.simple_consumer(f"{topic}-g", topic) as consumer:
        (message,) = consumer.receive()
        assert (message.body, message.key, message.tag) == (b"\xff", b"k", "paid")
        assert message.properties is not None
        assert (message.properties["a"], message.born_at_us, message.attempt) == ("b", 7, 1)
        assert message.receipt_handle == f"broker-a:{topic}:0:0:{message.receipt_handle.rsplit(':', 1)[1]}"
        assert consumer.ack([message.receipt_handle]).acknowledged == 1
        message.ack()


def test_a_message_that_is_made_visible_comes_again_and_the_first_handle_is_refused(
    mq: Client, topic: str
) -> None:
    fill(mq, topic, 1, queues=1)
    with mq.simple_consumer(f"{topic}-g", topic, invisible_ms=HOUR_MS) as consumer:
        (first,) = consumer.receive()
        first.nack()
        (second,) = consumer.receive()
        assert (second.offset, second.attempt) == (first.offset, 2)
        with pytest.raises(LeaseExpired) as refused:
            first.ack()
        assert [each["reason"] for each in refused.value.refused] == ["replaced"]
        second.change_invisible(HOUR_MS)
        second.ack()


def test_a_message_whose_last_lease_ran_out_is_a_dead_letter_like_any_other(mq: Client, topic: str) -> None:
    group = f"{topic}-g"
    mq.create_topic(topic, queues=1, brokers=["broker-a"])
    mq.groups.set(group, retries_max=0)
    with mq.producer() as producer:
        sent = producer.send(topic, b"x")
    with mq.simple_consumer(group, topic, wait_ms=0) as consumer:
        (message,) = consumer.receive()
        message.nack()
        assert consumer.receive() == []
        (letter,) = mq.dead_letters(group).list()
        assert (letter.topic, letter.message_id, letter.unique_id) == (topic, sent.message_id, sent.unique_id)
        assert (letter.attempts, letter.reason) == (1, "its last lease ran out")
        (resent,) = mq.dead_letters(group).resend()
        (again,) = consumer.receive()
        assert (again.message_id, again.attempt) == (resent.message_id, 1)


def test_a_loop_acknowledges_what_was_handled(mq: Client, topic: str) -> None:
    fill(mq, topic, 5, queues=1)
    group = f"{topic}-g"
    with mq.simple_consumer(group, topic, invisible_ms=HOUR_MS) as consumer:
        for number, _ in enumerate(consumer, start=1):
            if number == 4:
                break
        assert len(consumer.receive()) == 1
    assert lag(mq, group) == 2


def test_a_filter_is_that_of_the_group(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=1, brokers=["broker-a"])
    with mq.producer() as producer:
        producer.send_batch(topic, [Message(b"%d" % n, tag="paid" if n % 3 else "open") for n in range(9)])
    with mq.simple_consumer(f"{topic}-g", {topic: Tag("paid")}) as consumer:
        assert [each.body for each in consumer.receive()] == [b"1", b"2", b"4", b"5", b"7", b"8"]


def is_known(mq: Client, group: str) -> bool:
    """Whether a broker has the group, which the first receive creates."""
    try:
        return bool(mq.groups.describe(group))
    except GroupNotFound:
        return False


def test_closing_ends_a_receive_that_is_held(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=1, brokers=["broker-a"])
    consumer = mq.simple_consumer(f"{topic}-g", topic)
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(consumer.receive, wait_ms=60_000)
        wait_until(lambda: is_known(mq, f"{topic}-g"))
        consumer.close()
        with pytest.raises(Closed):
            held.result()
    assert consumer.is_closed


def test_what_cannot_be_is_refused_before_a_call(mq: Client, topic: str) -> None:
    with pytest.raises(RouteNotFound):
        mq.simple_consumer("billing", topic)
    with pytest.raises(InvalidConfiguration, match="start"):
        mq.simple_consumer("billing", topic, start="last")
    fill(mq, topic, 1, queues=1)
    with mq.simple_consumer("billing", topic) as consumer:
        for wrong in ({"max_messages": 0}, {"max_messages": 1_001}, {"invisible_ms": 0}):
            with pytest.raises(InvalidConfiguration):
                consumer.receive(**wrong)
        with pytest.raises(InvalidConfiguration):
            consumer.change_invisible([], -1)
