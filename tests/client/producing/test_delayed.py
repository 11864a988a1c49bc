"""Delayed messages from a program: every way of sending takes a delay or a time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pandas as pd
import pyarrow as pa
import pytest

from rocketq import (
    Client,
    InvalidConfiguration,
    InvalidMessage,
    LocalCluster,
    Message,
    MessageQueue,
    NotFound,
    StoredMessage,
)
from rocketq.model import NO_OFFSET, TimerId, TimerStatus
from tests.support.patience import PatientClient

SOON = timedelta(milliseconds=200)


@pytest.fixture(scope="module")
def mq(cluster: LocalCluster) -> Iterator[Client]:
    with PatientClient(cluster.nameservers) as client:
        yield client


def read(mq: Client, topic: str, count: int) -> list[StoredMessage]:
    """The first messages of a topic, each delivered no earlier than it asked for."""
    found: list[StoredMessage] = []
    with mq.pull_consumer(topic, start="earliest") as consumer:
        while len(found) < count:
            polled = consumer.poll(timeout_ms=60_000)
            assert polled, "the rest never came"
            found += polled
    for message in found:
        at = (message.properties or {}).get("TIMER_DELIVER_MS")
        assert at is None or message.stored_at_us >= 1000 * int(at)
    return found


def test_send_takes_a_delay_or_a_time(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=1)
    at = datetime.now(UTC) + 2 * SOON
    with mq.producer() as producer:
        late = producer.send(topic, "at a time", deliver_at=at, properties={"a": "b"})
        results = [
            producer.send(topic, "a timedelta", delay=SOON),
            producer.send(topic, "a text", delay="100ms"),
            late,
        ]
        plain = producer.send(topic, "now")
    assert (plain.offset, plain.is_delayed, plain.timer_id) == (0, False, None)
    for result in results:
        assert (result.offset, result.is_delayed) == (NO_OFFSET, True)
        assert result.message_id == result.timer_id
        assert TimerId.parse(result.message_id) is not None
    found = {message.body: message.properties or {} for message in read(mq, topic, 4)}
    assert set(found) == {b"now", b"a text", b"a timedelta", b"at a time"}
    wanted = {"a": "b", "TIMER_DELIVER_MS": str(-(-int(at.timestamp() * 10**6) // 1000))}
    assert {name: found[b"at a time"][name] for name in wanted} == wanted


def test_submit_sends_delayed_messages_apart_from_the_others(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=1)
    with mq.producer() as producer:
        delayed = [producer.submit(topic, f"late {n}", delay="300ms", ordering_key="k") for n in range(3)]
        others = [producer.submit(topic, f"{n}", ordering_key="k") for n in range(3)]
        producer.flush()
        assert all(each.result().offset >= 0 for each in others)
        assert all(each.result().offset == NO_OFFSET for each in delayed)
    bodies = [message.body for message in read(mq, topic, 6)]
    assert [body for body in bodies if not body.startswith(b"late")] == [b"0", b"1", b"2"]
    assert [body for body in bodies if body.startswith(b"late")] == [b"late 0", b"late 1", b"late 2"]


def test_a_batch_may_have_one_delay_or_a_column_of_times(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=1)
    now = time.time_ns() // 1_000_000
    times = [now + 600, None, now + 400]
    stamps = pd.to_datetime(pd.Series(times), unit="ms", utc=True)
    tables = [
        pa.table({"body": ["a3", "a1", "a2"], "deliver_at": pa.array(times, pa.timestamp("ms", tz="UTC"))}),
        pa.table({"body": ["b3", "b1", "b2"], "deliver_at": pa.array(times, pa.int64())}),
        pd.DataFrame({"body": ["c3", "c1", "c2"], "deliver_at": stamps}),
    ]
    with mq.producer() as producer:
        for table in tables:
            (result,) = producer.send_batch(topic, table)
            assert (result.offset, result.count, result.timer_id) == (NO_OFFSET, 3, None)
        (result,) = producer.send_batch(topic, [Message(b"d4")], delay="800ms")
        assert (result.offset, result.timer_id is not None) == (NO_OFFSET, True)
    # A request goes to one queue, which has its messages in the order of their times.
    places: dict[tuple[MessageQueue, str], list[str]] = {}
    for message in read(mq, topic, 10):
        body = message.body.decode()
        places.setdefault((message.queue, body[0]), []).append(body)
    assert sorted(itertools.chain(*places.values())) == [
        "a1",
        "a2",
        "a3",
        "b1",
        "b2",
        "b3",
        "c1",
        "c2",
        "c3",
        "d4",
    ]
    assert all(bodies == sorted(bodies) for bodies in places.values())


def test_a_delayed_message_can_be_listed_looked_at_and_cancelled(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=2)
    with mq.producer() as producer:
        late = producer.send(topic, b"late", delay="2h", key="k", tag="t")
        soon = producer.send(topic, b"soon", delay="1h")
    assert late.timer_id is not None
    assert [each.timer_id for each in mq.timers.list(topic, page_messages=1)] == [
        soon.timer_id,
        late.timer_id,
    ]
    shown = mq.timers.show(late.timer_id)
    assert (shown.body, shown.key, shown.tag, shown.status) == (b"late", b"k", "t", TimerStatus.PENDING)
    assert shown.queue == late.queue
    mq.timers.cancel(late.timer_id)
    assert mq.timers.show(late.timer_id).status is TimerStatus.CANCELLED
    assert [each.timer_id for each in mq.timers.list(topic)] == [soon.timer_id]
    with pytest.raises(NotFound):
        mq.timers.show(late.timer_id.replace("@", "@1"))
    with pytest.raises(InvalidConfiguration, match="timer_id"):
        mq.timers.cancel("broker-a:orders:0:7")


def test_a_wrong_delay_is_refused_before_anything_is_sent(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=1)
    with mq.producer() as producer:
        for call in (producer.send, producer.submit, producer.send_oneway):
            with pytest.raises(InvalidConfiguration, match="contradicts deliver_at"):
                call(topic, b"x", delay="1s", deliver_at=5)
            with pytest.raises(InvalidConfiguration, match="not a duration"):
                call(topic, b"x", delay="soon")
            with pytest.raises(InvalidMessage, match="'DELAY' has the value 'x'"):
                call(topic, b"x", properties={"DELAY": "x"})
        with pytest.raises(InvalidMessage, match="'TIMER_DELAY_MS' in row 1 has the value 'x'"):
            producer.send_batch(topic, [Message(b""), Message(b"", properties={"TIMER_DELAY_MS": "x"})])
        with pytest.raises(InvalidMessage, match="beyond the broker's horizon"):
            producer.send(topic, b"x", delay="4d")
