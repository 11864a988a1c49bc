"""What a member does with time: how long it lets brokers hold its watch, and what a wrong clock does to it.

And members that say themselves which queues they read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rocketq import Client, Configured, LocalCluster, MessageQueue
from rocketq.clock import ManualClock
from rocketq.net.group_api import GroupApi
from rocketq.protocol.documents.groups import WATCH_MS
from tests.client.consuming.groups_support import numbers, one_queue, shares, take
from tests.support.conditions import wait_until
from tests.support.patience import PatientClient


@pytest.fixture(scope="module")
def mq(cluster: LocalCluster) -> Iterator[Client]:
    with PatientClient(cluster.nameservers) as client:
        yield client


@pytest.mark.parametrize(
    ("settings", "hold_ms"),
    [
        ({}, WATCH_MS),
        ({"watch_ms": 70}, 70),
        ({"session_timeout_ms": 10_000}, 5_000),
    ],
)
def test_a_broker_holds_a_watch_for_as_long_as_the_member_says(
    mq: Client, topic: str, settings: dict[str, Any], hold_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    members = GroupApi.members

    def noted(self: GroupApi, group: str, *, wait_ms: int = 0, **more: Any) -> Any:
        if more:
            held.append(wait_ms)
        return members(self, group, wait_ms=wait_ms, **more)

    monkeypatch.setattr(GroupApi, "members", noted)
    one_queue(mq, topic, 0)
    with mq.consumer(topic, topic, **settings):
        wait_until(lambda: bool(held))
    assert set(held) == {hold_ms}


def test_a_member_whose_clock_stands_still_works_and_hands_over(cluster: LocalCluster, topic: str) -> None:
    """No heartbeat and no commit falls due; its watches keep it in the group."""
    with (
        PatientClient(cluster.nameservers) as mq,
        Client(cluster.nameservers, clock=ManualClock()) as stopped,
    ):
        one_queue(mq, topic, 5)
        with stopped.consumer(topic, topic, ack="manual") as first:
            messages = take(first, 5)
            first.commit(messages[:3])
        with mq.consumer(topic, topic) as second:
            assert numbers(take(second, 2)) == [3, 4]


def test_a_member_whose_clock_jumps_asks_its_brokers_and_keeps_its_queues(
    cluster: LocalCluster, topic: str
) -> None:
    """Beyond its session timeout, as after a sleep of the machine: the broker has not missed it."""
    clock = ManualClock()
    with Client(cluster.nameservers, clock=clock) as mq:
        one_queue(mq, topic, 5)
        with mq.consumer(topic, topic, ack="manual", commit_ms=20) as consumer:
            messages = take(consumer, 5)
            clock.advance(200_000)
            consumer.commit(messages)
            with mq.producer() as producer:
                producer.send(topic, b"5")
            assert numbers(take(consumer, 1)) == [5]
        [queue] = mq.groups.describe(topic)["broker-a"].queues
        assert queue.committed == 5


def test_members_that_say_different_queues_read_these_and_no_others(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=3, brokers=["broker-a"])
    with mq.producer() as producer:
        for number in range(3):
            producer.send(topic, b"%d" % number, queue=number)
    queues = [MessageQueue(topic, "broker-a", number) for number in range(3)]
    with (
        mq.consumer(topic, topic, allocation=Configured([queues[0]])) as one,
        mq.consumer(topic, topic, allocation=Configured([queues[1]])) as two,
    ):
        assert (numbers(take(one, 1)), numbers(take(two, 1))) == ([0], [1])
        assert shares([one, two]) == [{queues[0]}, {queues[1]}]
    owners = [each.owner for each in mq.groups.describe(topic)["broker-a"].queues]
    assert set(owners) <= {None}


def test_of_two_members_that_say_the_same_queue_one_owns_it_until_it_leaves(mq: Client, topic: str) -> None:
    one_queue(mq, topic, 4)
    only = Configured([MessageQueue(topic, "broker-a", 0)])
    with mq.consumer(topic, topic, allocation=only, ack="manual") as one:
        messages = take(one, 4)
        with mq.consumer(topic, topic, allocation=only, ack="manual") as two:
            assert two.poll(timeout_ms=0) == []
            assert two.owned() == {}
            one.commit(messages[:2])
            one.close()
            assert numbers(take(two, 2)) == [2, 3]
