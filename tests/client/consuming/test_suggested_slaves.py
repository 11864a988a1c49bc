"""A consumer follows the suggestion of a slave, and takes nothing but messages from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from rocketq import Client, StoredMessage
from rocketq.errors import OffsetOutOfRange, SystemBusy, TopicNotFound
from rocketq.model import Message, MessageQueue
from rocketq.protocol.documents.broker import SUGGESTED_BROKER_HEADER
from rocketq.protocol.message_schema import from_messages
from tests.support.conditions import WAIT_MS, wait_until
from tests.support.patience import PatientClient
from tests.support.small_cluster import TOPIC, SmallBroker, SmallCluster, refusal
from tests.support.small_server import Answer

SLAVE = 2
#: A pull brings one frame of so many messages.
FRAME, FRAMES = 5, 4


def suggesting(answer: Answer) -> Answer:
    return replace(answer, headers=answer.headers | {SUGGESTED_BROKER_HEADER: str(SLAVE)})


def damaged(answer: Answer) -> Answer:
    assert answer.body
    return replace(answer, body=answer.body[:-9] + b"\xff" + answer.body[-8:])


def fill(broker: SmallBroker, frames: int) -> None:
    for first in range(0, frames * FRAME, FRAME):
        broker.put(0, from_messages([Message(b"%d" % n) for n in range(first, first + FRAME)]))


@pytest.fixture
def small() -> Iterator[SmallCluster]:
    """A broker whose first answer suggests its slave."""
    with SmallCluster(brokers=1) as cluster:
        fill(cluster.brokers[0], FRAMES)
        cluster.brokers[0].script["pull"] = [suggesting]
        yield cluster


@pytest.fixture
def slave(small: SmallCluster) -> SmallBroker:
    return small.add_slave("broker-a", SLAVE)


@pytest.fixture
def mq(small: SmallCluster, slave: SmallBroker) -> Iterator[Client]:
    with PatientClient(small.nameserver) as client:
        yield client


def read(mq: Client) -> list[int]:
    found: list[StoredMessage] = []
    with mq.pull_consumer(TOPIC, start="earliest", hold_ms=WAIT_MS) as consumer:
        while len(found) < FRAME * FRAMES:
            messages = consumer.poll(timeout_ms=WAIT_MS)
            assert messages, f"only {len(found)} came"
            found += messages
    return [int(message.body) for message in found]


def pulled_at_master(small: SmallCluster) -> list[int]:
    asked = small.requests("broker-a", "GET")
    return [int(call.query["offset"]) for call in asked if "offset" in call.query]


def test_what_the_slave_has_is_read_there(small: SmallCluster, slave: SmallBroker, mq: Client) -> None:
    fill(slave, FRAMES)
    slave.script["pull"] = [suggesting] * (FRAMES - 1)
    assert read(mq) == list(range(FRAME * FRAMES))
    assert pulled_at_master(small) == [0]


def test_a_slave_without_the_newest_messages_holds_no_consumer_up(
    small: SmallCluster, slave: SmallBroker, mq: Client
) -> None:
    """The consumer has heard of them, and waits only for newer ones."""
    (master,), queue = small.brokers, MessageQueue(TOPIC, "broker-a", 0)
    master.script["pull"] = []
    with mq.pull_consumer(TOPIC, start="earliest", hold_ms=WAIT_MS) as consumer:
        found: list[StoredMessage] = []
        while len(found) < FRAME * FRAMES:
            found += consumer.poll(timeout_ms=WAIT_MS)
        consumer.pause(queue)
        fill(master, FRAMES)
        wait_until(lambda: consumer.lag()[queue] == FRAME * FRAMES)
        fill(slave, 2 * FRAMES - 1)
        master.script["pull"], slave.script["pull"] = [suggesting], [suggesting] * FRAMES
        consumer.resume(queue)
        while len(found) < 2 * FRAME * FRAMES:
            messages = consumer.poll(timeout_ms=WAIT_MS)
            assert messages, f"only {len(found)} came"
            found += messages
    assert [message.offset for message in found] == list(range(2 * FRAME * FRAMES))
    assert pulled_at_master(small)[FRAMES:] == [FRAMES * FRAME, (2 * FRAMES - 1) * FRAME]


@pytest.mark.parametrize(
    "lacking",
    [
        refusal(OffsetOutOfRange(TOPIC, "broker-a", 0, 0, 0, 0)),
        refusal(TopicNotFound(TOPIC, "broker-a")),
        refusal(SystemBusy("many", 1)),
        Answer(hang_up=True),
    ],
    ids=["no such offset", "no such topic", "busy", "dead"],
)
def test_what_the_slave_refuses_is_asked_of_the_master(
    small: SmallCluster, slave: SmallBroker, mq: Client, lacking: Answer
) -> None:
    slave.script["pull"] = [lacking]
    assert read(mq) == list(range(FRAME * FRAMES))


def test_what_the_slave_sends_damaged_is_asked_of_the_master(
    small: SmallCluster, slave: SmallBroker, mq: Client
) -> None:
    fill(slave, FRAMES)
    slave.script["pull"] = [damaged]
    assert read(mq) == list(range(FRAME * FRAMES))


def test_a_slave_of_another_incarnation_is_left(small: SmallCluster, slave: SmallBroker, mq: Client) -> None:
    fill(slave, FRAMES)
    slave.incarnation = "earlier"
    assert read(mq) == list(range(FRAME * FRAMES))
    assert pulled_at_master(small) == [n * FRAME for n in range(FRAMES)]
