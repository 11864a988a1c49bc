"""Looking messages up by id, key and time, over all brokers of a real cluster."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta, timezone

import pytest

from rocketq import (
    BrokerUnreachable,
    Client,
    InvalidConfiguration,
    LocalCluster,
    MessageQueue,
    NotFound,
    RouteNotFound,
    SendResult,
    TopicNotFound,
)
from tests.support.patience import PatientClient


@pytest.fixture
def sent(mq: Client, topic: str) -> list[SendResult]:
    """Twelve messages in turn on both brokers, every third with the key `k`; a body is its number."""
    mq.create_topic(topic, queues=2)
    with mq.producer() as producer:
        return [
            producer.send(
                topic,
                b"%d" % number,
                key="k" if number % 3 == 0 else b"\xff",
                tag="t",
                properties={"n": "1"},
                queue=MessageQueue(topic, ("broker-a", "broker-b")[number % 2], number // 2 % 2),
            )
            for number in range(12)
        ]


def test_a_message_is_found_by_the_id_its_sender_was_given(mq: Client, sent: list[SendResult]) -> None:
    for number, result in enumerate(sent[:4]):
        message = mq.query.by_id(result.message_id)
        assert (message.message_id, message.queue, message.offset) == (
            result.message_id, result.queue, result.offset,
        )  # fmt: skip
        assert (message.body, message.tag, message.unique_id) == (b"%d" % number, "t", result.unique_id)
        assert message.properties == {"n": "1", "UNIQ_KEY": result.unique_id}
        assert message.key == (b"k" if number % 3 == 0 else b"\xff")


def test_an_id_that_leads_nowhere_is_not_found(mq: Client, sent: list[SendResult], topic: str) -> None:
    with pytest.raises(NotFound):
        mq.query.by_id(f"broker-a:{topic}:0:4711")
    # It may have the message, and be away.
    with pytest.raises(BrokerUnreachable):
        mq.query.by_id(f"broker-z:{topic}:0:0")
    with pytest.raises(RouteNotFound):
        mq.query.by_id("broker-a:no-such-topic:0:0")
    for identity in ("", "a:b:c", "a:b:x:0", "a:b:0:-1", f"broker-a:{topic}:0:0:0"):
        with pytest.raises(InvalidConfiguration):
            mq.query.by_id(identity)


def test_messages_are_found_by_key_newest_first_over_all_brokers(
    mq: Client, sent: list[SendResult], topic: str
) -> None:
    while any((found := mq.query.by_key(topic, "k")).lag_bytes.values()):
        pass
    assert [message.body for message in found.messages] == [b"9", b"6", b"3", b"0"]
    assert {message.queue.broker for message in found.messages} == {"broker-a", "broker-b"}
    third = found.messages[2].stored_at_us

    def bodies(**bounds: int) -> list[bytes]:
        return [message.body for message in mq.query.by_key(topic, b"k", **bounds).messages]

    assert bodies(limit=3) == [b"9", b"6", b"3"]
    assert bodies(end=third) == [b"3", b"0"]
    assert bodies(begin=third + 1) == [b"9", b"6"]
    assert mq.query.by_key(topic, "absent").messages == ()


def test_a_search_by_key_reads_on_where_an_answer_was_cut(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=1)
    large = bytes(1_500_000)
    with mq.producer() as producer:
        for number in range(7):
            producer.send(topic, b"%d" % number + large, key="large")
    while any((found := mq.query.by_key(topic, "large")).lag_bytes.values()):
        pass
    assert sorted(message.body[:1] for message in found.messages) == [b"%d" % number for number in range(7)]
    assert len(mq.query.by_key(topic, "large", limit=6).messages) == 6


@pytest.mark.parametrize("page_messages", [1, 2, 5, 1_000])
def test_messages_of_an_interval_come_oldest_first_over_all_brokers(
    mq: Client, sent: list[SendResult], topic: str, page_messages: int
) -> None:
    found = list(mq.query.by_time(topic, 0, page_messages=page_messages))
    assert [message.body for message in found] == [b"%d" % number for number in range(12)]
    begin, end = found[3].stored_at_us, found[7].stored_at_us
    some = mq.query.by_time(topic, begin, end, page_messages=page_messages)
    assert list(some) == found[3:8]


def test_a_time_may_be_a_datetime_with_a_time_zone(mq: Client, sent: list[SendResult], topic: str) -> None:
    found = list(mq.query.by_time(topic, datetime(1970, 1, 1, tzinfo=UTC)))
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    moment = (epoch + timedelta(microseconds=found[5].stored_at_us)).astimezone(timezone(timedelta(hours=5)))
    assert next(mq.query.by_time(topic, moment)) == found[5]
    with pytest.raises(InvalidConfiguration, match="time zone"):
        mq.query.by_time(topic, datetime(2026, 1, 1))


def test_only_the_pages_that_are_taken_are_fetched(mq: Client, sent: list[SendResult], topic: str) -> None:
    found = mq.query.by_time(topic, 0, page_messages=1)
    assert [message.body for message in itertools.islice(found, 2)] == [b"0", b"1"]
    mq.delete_topic(topic)
    with pytest.raises(TopicNotFound):
        next(found)


def test_a_broker_that_does_not_answer_makes_the_search_fail(topic: str) -> None:
    with LocalCluster(brokers=2) as own, PatientClient(own.nameservers) as mq:
        mq.create_topic(topic, queues=1)
        with mq.producer() as producer:
            for broker in ("broker-a", "broker-b"):
                producer.send(topic, b"x", key="k", queue=MessageQueue(topic, broker, 0))
        own.kill("broker-b")
        with pytest.raises(BrokerUnreachable):
            mq.query.by_key(topic, "k")
        with pytest.raises(BrokerUnreachable):
            list(mq.query.by_time(topic, 0))


@pytest.mark.parametrize("limit", [0, 1_001])
def test_a_limit_that_no_broker_takes_is_refused_before_a_call(mq: Client, limit: int) -> None:
    with pytest.raises(InvalidConfiguration):
        mq.query.by_key("any", "k", limit=limit)
    with pytest.raises(InvalidConfiguration):
        mq.query.by_time("any", 0, page_messages=limit)
