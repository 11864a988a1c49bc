"""Members of a group whose brokers restart, whose sessions end, and whose queues an operator moves."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

import pytest

from rocketq import Client, ConsumedMessage, GroupDisabled, LocalCluster
from rocketq.clock import ManualClock
from rocketq.errors import ClaimLost, MemberUnknown
from rocketq.net.broker_api import BrokerApi
from rocketq.protocol.documents.groups import QueueOfTopic, ResetRequest, ResetTarget, SetGroupRequest
from tests.client.consuming.groups_support import fill, numbers, one_queue, take, wait_for_shares
from tests.support.conditions import wait_until
from tests.support.patience import PatientClient, patient_transport


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1) as cluster:
        yield cluster


@pytest.fixture
def mq(own_cluster: LocalCluster) -> Iterator[Client]:
    with PatientClient(own_cluster.nameservers) as client:
        yield client


@pytest.fixture
def broker(own_cluster: LocalCluster) -> Iterator[BrokerApi]:
    with patient_transport() as transport:
        yield BrokerApi(transport, "broker-a", own_cluster.brokers["broker-a"])


def test_members_keep_their_queues_when_a_broker_restarts(
    own_cluster: LocalCluster, mq: Client, topic: str
) -> None:
    fill(mq, topic, 100, queues=4)
    with (
        mq.consumer("t-restart", [topic], retry_ms=50) as one,
        mq.consumer("t-restart", [topic], retry_ms=50) as two,
    ):
        wait_for_shares([one, two], 4)
        before = [set(one.owned()), set(two.owned())]
        read = take(one, sum(one.lag().values()))
        own_cluster.kill("broker-a")
        own_cluster.restart("broker-a")
        fill(mq, topic, 100, first=100)
        wait_until(lambda: sum(one.lag().values()) + sum(two.lag().values()) >= 100)
        read += take(two, sum(two.lag().values()))
        wait_until(lambda: bool(read.extend(one.poll(timeout_ms=50)) or read.extend(two.poll(timeout_ms=50))
                              or len(read) >= 200))  # fmt: skip
        assert [set(one.owned()), set(two.owned())] == before
        one.commit()
    assert numbers(read) == list(range(200))


def test_a_forced_reset_takes_the_members_to_the_new_offsets(
    own_cluster: LocalCluster, broker: BrokerApi, topic: str
) -> None:
    """At once: the member's clock stands still, so no heartbeat falls due."""
    with Client(own_cluster.nameservers, clock=ManualClock()) as mq:
        one_queue(mq, topic, 50)
        with mq.consumer(topic, [topic]) as consumer:
            assert numbers(take(consumer, 50)) == list(range(50))
            consumer.commit()
            broker.reset_group(topic, ResetRequest(topic, ResetTarget.EARLIEST, force=True))
            assert numbers(take(consumer, 50)) == list(range(50))


def test_a_pull_of_a_queue_that_is_not_the_members_any_more_is_refused_and_noticed(
    own_cluster: LocalCluster, broker: BrokerApi, topic: str
) -> None:
    with Client(own_cluster.nameservers, clock=ManualClock()) as mq:
        one_queue(mq, topic, 5)
        with mq.consumer(topic, [topic]) as consumer:
            take(consumer, 5)
            consumer.commit()
            broker.release_queues(topic, consumer.client_id, [QueueOfTopic(topic, 0)])
            with mq.producer() as producer:
                producer.send(topic, b"5")
            wait_until(lambda: [each.owner for each in broker.group(topic).queues] == [consumer.client_id])
            assert numbers(take(consumer, 1)) == [5]


def test_a_queue_whose_claim_was_lost_is_dropped_and_claimed_again(
    mq: Client, broker: BrokerApi, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(mq, topic, 20, queues=1)
    with (
        caplog.at_level(logging.WARNING, "rocketq.consuming.members.member"),
        mq.consumer("t-lost", [topic], ack="manual") as consumer,
    ):
        messages = take(consumer, 20)
        broker.leave_group("t-lost", consumer.client_id)
        # The member's own thread may have found out first.
        with contextlib.suppress(ClaimLost, MemberUnknown):
            consumer.commit(messages[:5])
        wait_until(lambda: len(consumer.owned()) == 1 and list(consumer.owned().values()) == [0])
        assert numbers(take(consumer, 20)) == list(range(20)), "what was not committed comes again"
        for message in messages:
            message.ack()
        assert list(consumer.owned().values()) == [0], "late acknowledgements change nothing"
    assert "is lost" in caplog.text


def test_a_group_that_is_disabled_stops_its_members_until_it_is_enabled(
    mq: Client, broker: BrokerApi, topic: str
) -> None:
    fill(mq, topic, 10, queues=1)
    with mq.consumer("t-off", [topic], retry_ms=20) as consumer:
        take(consumer, 10)
        consumer.poll(timeout_ms=0)
        broker.set_group("t-off", SetGroupRequest(enabled=False))

        def is_refused() -> bool:
            try:
                consumer.poll(timeout_ms=0)
            except GroupDisabled:
                return True
            return False

        wait_until(is_refused)
        broker.set_group("t-off", SetGroupRequest(enabled=True))
        fill(mq, topic, 10, first=10)
        wait_until(lambda: not is_refused() and len(consumer.owned()) == 1)
        wait_until(lambda: sum(consumer.lag().values()) > 0)


def test_a_listener_of_a_disabled_group_gets_nothing_more(mq: Client, broker: BrokerApi, topic: str) -> None:
    fill(mq, topic, 300, queues=1)
    seen: list[int] = []
    go_on = threading.Event()

    def handle(message: ConsumedMessage) -> None:
        seen.append(int(message.body))
        assert go_on.wait(60)

    with mq.listener(topic, handle, group="t-mute", workers=1, retry_ms=20) as listener:
        wait_until(lambda: len(seen) == 1)
        broker.set_group("t-mute", SetGroupRequest(enabled=False))
        wait_until(lambda: isinstance(listener.error, GroupDisabled) and listener.owned() == {})
        go_on.set()
    assert len(seen) == 1, "what was fetched and not begun is not handed out"


def test_a_member_without_any_broker_says_so(topic: str) -> None:
    with LocalCluster(brokers=1) as cluster, PatientClient(cluster.nameservers) as mq:
        fill(mq, topic, 0)
        cluster.kill("broker-a")
        with pytest.raises(Exception, match="broker-a"):
            mq.consumer("t-none", [topic])
