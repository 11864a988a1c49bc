"""One range of one queue: every offset comes, or is left out by the filter, or is a loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pyspark_rocketq.connections import connection_to
from pyspark_rocketq.errors import DataLost
from pyspark_rocketq.options.options import source_options
from pyspark_rocketq.options.table import Use
from pyspark_rocketq.read.partitions import QueueRange
from pyspark_rocketq.read.range_pull import RangePulls
from rocketq.errors import (
    CorruptFrame,
    NotMaster,
    OffsetOutOfRange,
    QueueNotFound,
    RocketqError,
    TopicNotFound,
)
from rocketq.model import Message, MessageQueue
from rocketq.protocol.damage import MessageRange, damaged_in_log
from rocketq.protocol.message_schema import from_messages
from tests.support.small_cluster import TOPIC, SmallBroker, SmallCluster, refusal
from tests.support.small_server import Answer


@pytest.fixture
def small() -> Iterator[SmallCluster]:
    """One broker with messages 0 to 14 in three frames."""
    with SmallCluster(brokers=1) as cluster:
        for first in (0, 5, 10):
            cluster.brokers[0].put(0, from_messages([Message(b"%d" % n) for n in range(first, first + 5)]))
        yield cluster


@pytest.fixture
def broker(small: SmallCluster) -> SmallBroker:
    return small.brokers[0]


def read(small: SmallCluster, begin: int = 0, end: int = 15, **given: str) -> list[int]:
    options = source_options({"nameservers": small.nameserver, "subscribe": TOPIC} | given, Use.BATCH_READ)
    whole = QueueRange(MessageQueue(TOPIC, "broker-a", 0), begin, end, "first")
    pulls = RangePulls(connection_to(options.nameservers), options, whole, 1 << 20)
    return [offset for piece in pulls.slices() for offset in piece.offsets().tolist()]


def damaged(answer: Answer) -> Answer:
    assert answer.body
    return replace(answer, body=answer.body[:-9] + b"\xff" + answer.body[-8:])


def test_a_range_comes_whole_and_cut_to_its_bounds(small: SmallCluster) -> None:
    assert read(small) == list(range(15))
    assert read(small, 3, 11) == list(range(3, 11))


def test_a_frame_damaged_on_its_way_is_pulled_again_and_comes_once(
    small: SmallCluster, broker: SmallBroker
) -> None:
    broker.script["pull"] = [lambda answer: answer, damaged]
    assert read(small) == list(range(15))


def test_a_frame_damaged_in_the_log_ends_the_task_and_names_the_queue(
    small: SmallCluster, broker: SmallBroker
) -> None:
    broker.script["pull"] = [damaged, damaged, damaged]
    with pytest.raises(CorruptFrame) as caught:
        read(small)
    facts = caught.value.facts
    assert (facts["broker"], facts["topic"], facts["queue"], facts["first_offset"]) == (
        "broker-a",
        TOPIC,
        0,
        0,
    )
    assert f"{TOPIC}/broker-a/0 comes damaged from offset 0 on" in str(caught.value)


def test_damage_that_the_broker_confirms_is_reported_in_its_words(
    small: SmallCluster, broker: SmallBroker
) -> None:
    plain = CorruptFrame(0, "the checksum is wrong")
    held = MessageRange(0, 0, 5)
    told = damaged_in_log(
        plain, broker="broker-a", topic=TOPIC, segment="commitlog/0", log_offset=64, held=held
    )
    broker.script["pull"] = [damaged, damaged]
    broker.script["message"] = [refusal(told)]
    with pytest.raises(CorruptFrame) as caught:
        read(small)
    assert caught.value.facts == told.facts
    assert "at log offset 64, in commitlog/0" in str(caught.value)
    assert f"messages 0 to 4 of queue 0 of topic {TOPIC}" in str(caught.value)


@pytest.mark.parametrize(
    "lacking",
    [
        OffsetOutOfRange(TOPIC, "broker-a", 0, 0, 0, 0),
        TopicNotFound(TOPIC, "broker-a"),
        QueueNotFound(TOPIC, 0, 0),
    ],
    ids=lambda error: error.code,
)
def test_what_a_slave_lacks_is_asked_of_the_master_and_is_no_loss(
    small: SmallCluster, broker: SmallBroker, lacking: RocketqError
) -> None:
    """The second answer is that of a slave too: the master has changed meanwhile."""
    broker.script["pull"] = [refusal(lacking), refusal(NotMaster("group", 2))]
    assert read(small) == list(range(15))
    asked = [
        call.query.get("master_only") for call in small.requests("broker-a", "GET") if "offset" in call.query
    ]
    assert asked == [None, "true", "true", None, None]


@pytest.mark.parametrize("lacking", [1, 2])
def test_what_a_salvaged_log_lacks_is_a_loss_or_a_gap(
    small: SmallCluster, broker: SmallBroker, lacking: int
) -> None:
    first, _ = broker.queues[0].batches.pop(lacking)
    if lacking == 2:
        # Nothing is left behind the gap but the queue's end.
        broker.script["pull"] = [
            lambda a: a,
            lambda a: replace(a, headers=a.headers | {"x-rocketq-next-offset": "15"}),
        ]
        broker.script["pull"] *= 2
    with pytest.raises(DataLost, match=f"lacks offsets {first} to {first + 4}"):
        read(small)
    broker.script["pull"] = broker.script["pull"][-2:] if lacking == 2 else []
    kept = read(small, failOnDataLoss="false")
    assert kept == [n for n in range(15) if not first <= n < first + 5]


def test_a_queue_that_ends_before_the_range_is_a_loss(small: SmallCluster, broker: SmallBroker) -> None:
    with pytest.raises(DataLost, match="has offsets up to 14 only"):
        read(small, 0, 20)
    assert read(small, 0, 20, failOnDataLoss="false") == list(range(15))


def test_a_queue_of_another_incarnation_is_a_loss(small: SmallCluster, broker: SmallBroker) -> None:
    broker.incarnation = "second"
    with pytest.raises(DataLost, match="deleted and created again"):
        read(small)
