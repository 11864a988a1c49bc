"""What members and operators may get wrong: the error names the fact and the next step, and nothing moves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketq import Client, LocalCluster, MessageQueue, OffsetOutOfRange, RocketqError
from rocketq.errors import QueuesOwned
from rocketq.model import GroupKind
from rocketq.net.broker_api import BrokerApi, master_of
from rocketq.protocol.documents.broker import CommitOffsetsRequest, GroupOffset
from tests.client.consuming.groups_support import numbers, one_queue, take
from tests.support.conditions import wait_until
from tests.support.patience import PatientClient, patient_transport


@pytest.fixture(scope="module")
def mq(cluster: LocalCluster) -> Iterator[Client]:
    with PatientClient(cluster.nameservers) as client:
        yield client


@pytest.fixture
def broker(mq: Client, topic: str) -> Iterator[BrokerApi]:
    """Broker broker-a, alone with the topic: one queue of five messages."""
    one_queue(mq, topic, 5)
    with patient_transport() as transport:
        yield master_of(mq.route(topic), "broker-a", transport)


def committed(broker: BrokerApi, group: str) -> list[int]:
    return [each.offset for each in broker.group_offsets(group).offsets]


def told(error: RocketqError, *facts: str) -> None:
    """Check that an error names each of the facts, and says what to do next."""
    assert error.hint
    for fact in facts:
        assert fact in str(error)


def test_a_commit_beyond_the_end_is_refused_with_the_end(mq: Client, broker: BrokerApi, topic: str) -> None:
    queue = MessageQueue(topic, "broker-a", 0)
    with mq.pull_consumer(topic, group=topic, start="earliest", offset_reset="error") as consumer:
        consumer.seek(queue, 99)
        with pytest.raises(OffsetOutOfRange) as refused:
            consumer.commit()
    told(refused.value, topic, "99", "5")
    assert committed(broker, topic) == []
    with mq.consumer(topic, topic, ack="manual", offset_reset="error") as member:
        assert numbers(take(member, 5)) == [0, 1, 2, 3, 4]
        member.commit()
        member.seek(queue, 99)
        with pytest.raises(OffsetOutOfRange) as refused:
            member.commit()
        told(refused.value, topic, "99", "5")
        assert committed(broker, topic) == [5]
        member.seek(queue, 5)


def test_a_query_of_spark_commits_nothing_for_a_group_whose_members_own_the_queue(
    mq: Client, broker: BrokerApi, topic: str
) -> None:
    report = CommitOffsetsRequest((GroupOffset(topic, 0, 3),), kind=GroupKind.SPARK)
    with mq.consumer(topic, topic, ack="manual") as member:
        take(member, 1)
        with pytest.raises(QueuesOwned) as refused:
            broker.commit_offsets(topic, report)
        told(refused.value, topic, member.client_id)
    broker.commit_offsets(topic, report)
    assert committed(broker, topic) == [3]
    [found] = [each for each in mq.groups.overviews() if each.group == topic]
    assert (found.kind, found.members) == (GroupKind.SPARK, 0)


def test_messages_for_which_a_listener_raises_are_dead_letters_with_the_reason(
    mq: Client, broker: BrokerApi, topic: str
) -> None:
    def fail(message: object) -> None:
        raise ValueError("the till is closed")

    mq.groups.set(topic, retries_max=0)
    with mq.listener(topic, fail, group=topic):
        letters = mq.dead_letters(topic)
        wait_until(lambda: len(list(letters.list())) == 5)
    assert {letter.reason for letter in letters.list()} == {"ValueError: the till is closed"}
    assert committed(broker, topic) == [5]
