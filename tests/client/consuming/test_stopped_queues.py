"""A queue that cannot go on stops alone: its member names it, goes on with others, and stays in the group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from rocketq import Client, LocalCluster, MessageQueue, OffsetOutOfRange
from rocketq.consuming.allocation.strategies import sticky
from rocketq.consuming.allocation.view import GroupView
from tests.client.consuming.groups_support import numbers, take, wait_for_shares
from tests.support.conditions import wait_until
from tests.support.patience import PatientClient


@pytest.fixture(scope="module")
def mq(cluster: LocalCluster) -> Iterator[Client]:
    with PatientClient(cluster.nameservers) as client:
        yield client


def send(mq: Client, queues: Sequence[MessageQueue], count: int, first: int = 0) -> None:
    with mq.producer() as producer:
        for queue in queues:
            for number in range(first, first + count):
                producer.send(queue.topic, b"%d" % number, queue=queue)


@pytest.fixture
def queues(mq: Client, topic: str) -> list[MessageQueue]:
    """Two queues of one broker, with three messages each."""
    mq.create_topic(topic, queues=2, brokers=["broker-a"])
    found = [MessageQueue(topic, "broker-a", number) for number in range(2)]
    send(mq, found, 3)
    return found


def stored(mq: Client, group: str) -> dict[int, int | None]:
    described = mq.groups.describe(group)["broker-a"]
    return {each.queue: each.committed for each in described.queues}


def test_a_wrong_seek_stops_one_queue_and_the_others_are_read_and_committed(
    mq: Client, queues: list[MessageQueue], topic: str
) -> None:
    wrong, right = queues
    with mq.consumer(topic, topic, ack="manual", offset_reset="error") as consumer:
        read = take(consumer, 6)
        consumer.seek(wrong, 99)
        # All other progress is stored, and the error names the queue.
        with pytest.raises(OffsetOutOfRange, match=f"99 of {topic}/broker-a/0"):
            consumer.commit(read)
        assert stored(mq, topic)[right.queue] == 3
        wait_until(lambda: consumer.stopped().keys() == {wrong})
        with pytest.raises(OffsetOutOfRange):
            consumer.poll(timeout_ms=0)
        send(mq, [right], 2, first=3)
        consumer.pause(wrong)
        assert numbers(take(consumer, 2)) == [3, 4]
        consumer.resume(wrong)
        consumer.seek(wrong, 2)
        assert numbers(take(consumer, 1)) == [2]
        assert consumer.stopped() == {}
        consumer.commit()
        assert stored(mq, topic) == {wrong.queue: 3, right.queue: 5}


def test_a_queue_that_stopped_is_given_to_another_member_at_what_is_stored(
    mq: Client, queues: list[MessageQueue], topic: str
) -> None:
    with mq.consumer(topic, topic, ack="manual", offset_reset="error", commit_ms=20) as first:
        first.commit(take(first, 6))
        for queue in queues:
            first.seek(queue, 99)
        wait_until(lambda: first.stopped().keys() == set(queues))
        send(mq, queues, 1, first=3)
        with mq.consumer(topic, topic, ack="manual", offset_reset="error") as second:
            wait_for_shares([first, second], 2)
            assert numbers(take(second, 1)) == [3]
    assert set(stored(mq, topic).values()) == {3}


def test_a_member_whose_thread_ended_says_why_and_can_be_closed(
    mq: Client, queues: list[MessageQueue], topic: str
) -> None:
    """A strategy of the user that fails once the group has two members."""

    def failing(view: GroupView, member: str) -> tuple[MessageQueue, ...]:
        if len(view.members) > 1:
            raise ValueError("no room for two")
        return sticky(view, member)

    with mq.consumer(topic, topic, allocation=failing) as first:
        assert first.owned().keys() == set(queues)

        def has_ended() -> bool:
            try:
                first.poll(timeout_ms=0)
            except ValueError:
                return True
            return False

        with mq.consumer(topic, topic) as second:
            wait_until(has_ended)
            first.close()
            wait_for_shares([second], 2)
