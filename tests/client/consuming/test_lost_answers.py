"""The answer to a call that sends messages back, or sends dead letters again, is lost: nothing comes twice.

A proxy before the broker loses the answer; the broker has carried out the call.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketq import Client, LocalCluster
from rocketq.admin.live_masters import LiveMasters
from rocketq.clock import SystemClock
from rocketq.config import ConsumerConfig
from rocketq.consuming.fetching.subscriptions import filters_of
from rocketq.consuming.group_consumer import Consumer
from rocketq.consuming.group_reader import GroupReader
from rocketq.dead_letters import DeadLetters
from rocketq.net.route_cache import RouteCache
from tests.client.consuming.groups_support import one_queue, take
from tests.support.conditions import wait_until
from tests.support.lossy_proxy import LossyProxy, ThroughProxy

#: The second answer that is lost never comes, the others end their connection.
SEED = 1


@pytest.fixture
def mq(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster.nameservers) as client:
        yield client


def losing(cluster: LocalCluster, calls: bytes, losses_max: int = 2) -> LossyProxy:
    """A proxy before broker-a that loses the first answers to some calls."""
    return LossyProxy(SEED, 1.0, cluster.brokers["broker-a"], calls, losses_max)


def consumer_through(proxy: LossyProxy, mq: Client, group: str, **settings: int) -> Consumer:
    transport = ThroughProxy(proxy)
    routes = RouteCache(mq.nameservers, transport, clock=SystemClock())
    config = ConsumerConfig(ack="manual", commit_ms=50, retry_ms=50, **settings)
    return Consumer(GroupReader(transport, routes, group, filters_of(group), None, config, SystemClock()))


def stored(mq: Client, topic: str) -> int:
    if topic not in mq.topics():
        return 0
    return sum(extent.max for each in mq.describe_topic(topic).values() for extent in each.queues)


@pytest.mark.parametrize("max_attempts", [2, 1])
def test_a_message_that_is_sent_back_is_copied_once(
    cluster: LocalCluster, mq: Client, topic: str, max_attempts: int
) -> None:
    one_queue(mq, topic, 6)
    with (
        losing(cluster, b"POST /v1/groups/%s/send-backs" % topic.encode()) as proxy,
        consumer_through(proxy, mq, topic, max_attempts=max_attempts) as consumer,
    ):
        for message in take(consumer, 6):
            message.nack("1ms")
        wait_until(lambda: proxy.lost == 2)
        copies = f"%RETRY%{topic}" if max_attempts == 2 else f"%DLQ%{topic}"
        wait_until(lambda: max(consumer.owned().values()) == 6)
        wait_until(lambda: stored(mq, copies) >= 6)
        if max_attempts == 2:
            again = take(consumer, 6)
            assert sorted(int(each.body) for each in again) == list(range(6))
            assert {each.attempt for each in again} == {2}
        assert stored(mq, copies) == 6


def test_a_dead_letter_is_sent_again_once(cluster: LocalCluster, mq: Client, topic: str) -> None:
    one_queue(mq, topic, 3)
    mq.groups.set(topic, retries_max=0)
    with mq.consumer(topic, topic, ack="manual") as consumer:
        for message in take(consumer, 3):
            message.nack()
        wait_until(lambda: sum(mq.dead_letters(topic).count().values()) == 3)
    path = b"POST /v1/groups/%s/dead-letters/resend" % topic.encode()
    with losing(cluster, path, 1) as proxy, ThroughProxy(proxy) as transport:
        letters = DeadLetters(
            LiveMasters(transport, RouteCache(mq.nameservers, transport, clock=SystemClock())), topic
        )
        assert [each.outcome for each in letters.resend()] == ["sent"] * 3
        assert proxy.lost == 1
    assert stored(mq, topic) == 6
