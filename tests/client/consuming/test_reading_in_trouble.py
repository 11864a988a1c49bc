"""Reading from brokers that lost, damaged or replaced what was to be read."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from rocketq import (
    BrokerUnavailable,
    Client,
    Conflict,
    CorruptFrame,
    Message,
    MessageQueue,
    NoPermission,
    OffsetOutOfRange,
)
from rocketq.protocol.message_schema import from_messages
from tests.support.conditions import WAIT_MS
from tests.support.patience import PatientClient
from tests.support.small_cluster import TOPIC, SmallBroker, SmallCluster, refusal
from tests.support.small_server import Answer

QUEUE = MessageQueue(TOPIC, "broker-a", 0)


@pytest.fixture
def small() -> Iterator[SmallCluster]:
    with SmallCluster(brokers=1) as cluster:
        yield cluster


@pytest.fixture
def broker(small: SmallCluster) -> SmallBroker:
    """One broker with messages 0 to 9 in two batches."""
    (only,) = small.brokers
    put(only, 0, 5)
    put(only, 5, 10)
    return only


@pytest.fixture
def mq(small: SmallCluster) -> Iterator[Client]:
    with PatientClient(small.nameserver) as client:
        yield client


PLACE = (QUEUE.broker, QUEUE.topic, QUEUE.queue)


def put(broker: SmallBroker, first: int, after: int) -> None:
    broker.put(0, from_messages([Message(b"%d" % n) for n in range(first, after)]))


def damaged(answer: Answer) -> Answer:
    assert answer.body
    return Answer(body=answer.body[:-9] + b"\xff" + answer.body[-8:], headers=answer.headers)


def offsets(messages: list) -> list[int]:  # type: ignore[type-arg]
    return [message.offset for message in messages]


def test_a_frame_damaged_on_its_way_is_fetched_again(broker: SmallBroker, mq: Client) -> None:
    broker.script["pull"] = [damaged]
    with mq.pull_consumer(TOPIC, start="earliest") as consumer:
        assert offsets(consumer.poll(timeout_ms=WAIT_MS))[:1] == [0]


def test_a_frame_that_the_broker_finds_sound_is_fetched_a_third_time(broker: SmallBroker, mq: Client) -> None:
    broker.script["pull"] = [damaged, damaged]
    with mq.pull_consumer(TOPIC, start="earliest") as consumer:
        assert offsets(consumer.poll(timeout_ms=WAIT_MS))[:1] == [0]


def test_a_damaged_frame_raises_after_the_messages_before_it_until_a_seek(
    broker: SmallBroker, mq: Client
) -> None:
    broker.script["pull"] = [lambda answer: answer, damaged, damaged, damaged]
    with mq.pull_consumer(TOPIC, start="earliest") as consumer:
        assert offsets(consumer.poll(timeout_ms=WAIT_MS)) == [0, 1, 2, 3, 4]
        for _ in range(2):
            with pytest.raises(CorruptFrame) as caught:
                consumer.poll(timeout_ms=WAIT_MS)
        facts = caught.value.facts
        assert (facts["broker"], facts["topic"], facts["queue"], facts["first_offset"]) == (*PLACE, 5)
        assert "damaged on the way" in caught.value.message
        assert consumer.positions() == {QUEUE: 5}
        consumer.seek(QUEUE, 8)
        assert offsets(consumer.poll(timeout_ms=WAIT_MS)) == [8, 9]


def test_what_retention_removed_is_skipped_with_a_warning_that_names_it(
    broker: SmallBroker, mq: Client, caplog: pytest.LogCaptureFixture
) -> None:
    broker.queues[0].min = 7
    broker.group = {0: 3}
    with (
        caplog.at_level(logging.WARNING, "rocketq.consuming.pull_consumer"),
        mq.pull_consumer(TOPIC, group="g") as consumer,
    ):
        assert offsets(consumer.poll(timeout_ms=WAIT_MS)) == [7, 8, 9]
    assert f"Messages [3, 7) of {QUEUE} are gone" in caplog.text


def test_what_retention_removed_can_be_an_error(broker: SmallBroker, mq: Client) -> None:
    broker.queues[0].min = 7
    broker.group = {0: 3}
    with mq.pull_consumer(TOPIC, group="g", offset_reset="error") as consumer:
        with pytest.raises(OffsetOutOfRange):
            consumer.poll(timeout_ms=WAIT_MS)
        assert consumer.positions() == {QUEUE: 3}


def test_with_reset_to_latest_only_later_messages_are_read(broker: SmallBroker, mq: Client) -> None:
    broker.queues[0].min = 7
    broker.group = {0: 3}
    with mq.pull_consumer(TOPIC, group="g", offset_reset="latest") as consumer:
        while consumer.positions() != {QUEUE: 10}:
            assert consumer.poll(timeout_ms=10) == []
        put(broker, 10, 12)
        assert offsets(consumer.poll(timeout_ms=WAIT_MS)) == [10, 11]


def test_a_committed_offset_beyond_the_end_is_noticed_at_once(
    broker: SmallBroker, mq: Client, caplog: pytest.LogCaptureFixture
) -> None:
    broker.group = {0: 500}
    with (
        caplog.at_level(logging.WARNING, "rocketq.consuming.pull_consumer"),
        mq.pull_consumer(TOPIC, group="g") as consumer,
    ):
        while consumer.positions() != {QUEUE: 10}:
            assert consumer.poll(timeout_ms=10) == []
        put(broker, 10, 11)
        assert offsets(consumer.poll(timeout_ms=WAIT_MS)) == [10]
    assert "ends at 10, below the wanted offset 500" in caplog.text


def remake(broker: SmallBroker, first: int, after: int) -> None:
    """Delete the topic and create it anew with other messages."""
    with broker.changed:
        broker.queues[0] = type(broker.queues[0])()
        broker.incarnation = "second"
    put(broker, first, after)


@pytest.mark.parametrize("count", [4, 20], ids=["shorter", "longer"])
def test_a_recreated_topic_is_read_from_its_beginning(
    broker: SmallBroker, mq: Client, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    with (
        caplog.at_level(logging.WARNING, "rocketq.consuming.pull_consumer"),
        mq.pull_consumer(TOPIC, start="earliest", hold_ms=50) as consumer,
    ):
        while consumer.positions() != {QUEUE: 10}:
            consumer.poll(timeout_ms=WAIT_MS)
        remake(broker, 100, 100 + count)
        messages = consumer.poll(timeout_ms=WAIT_MS)
    assert offsets(messages) == list(range(count))
    assert messages[0].body == b"100"
    assert "created anew" in caplog.text


def test_a_topic_made_anew_can_be_an_error(broker: SmallBroker, mq: Client) -> None:
    with mq.pull_consumer(TOPIC, start="earliest", offset_reset="error", hold_ms=50) as consumer:
        while consumer.positions() != {QUEUE: 10}:
            consumer.poll(timeout_ms=WAIT_MS)
        remake(broker, 100, 120)
        with pytest.raises(Conflict, match="created anew"):
            consumer.poll(timeout_ms=WAIT_MS)
        consumer.seek(QUEUE, 0)
        assert consumer.poll(timeout_ms=WAIT_MS)[0].body == b"100"


def test_a_temporary_refusal_is_retried(broker: SmallBroker, mq: Client) -> None:
    broker.script["pull"] = [refusal(BrokerUnavailable("broker-a", "starting")), Answer(hang_up=True)]
    with mq.pull_consumer(TOPIC, start="earliest", retry_ms=10) as consumer:
        assert offsets(consumer.poll(timeout_ms=WAIT_MS))[:1] == [0]


def test_poll_raises_a_missing_permission(broker: SmallBroker, mq: Client) -> None:
    broker.script["pull"] = [refusal(NoPermission("reading", TOPIC))]
    with mq.pull_consumer(TOPIC, start="earliest") as consumer, pytest.raises(NoPermission):
        consumer.poll(timeout_ms=WAIT_MS)


def test_a_commit_after_a_seek_says_that_it_may_go_back(
    broker: SmallBroker, small: SmallCluster, mq: Client
) -> None:
    with mq.pull_consumer(TOPIC, group="g") as consumer:
        while consumer.positions() != {QUEUE: 10}:
            consumer.poll(timeout_ms=WAIT_MS)
        consumer.commit()
        consumer.seek(QUEUE, 2)
        consumer.commit()
        consumer.commit()
    resets = [b'"reset":true' in asked.body for asked in small.requests("broker-a", "PUT")]
    assert resets == [False, True, False]
    assert broker.group == {0: 2}
