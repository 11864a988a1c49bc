"""What tests of consumer groups share: filling topics, and taking messages."""

from __future__ import annotations

from collections.abc import Collection

from rocketq import Client, ConsumedMessage, Consumer, Listener, Message, MessageQueue
from tests.support.conditions import WAIT_MS, wait_until


def fill(mq: Client, topic: str, count: int, first: int = 0, queues: int = 2) -> None:
    """Send messages with the numbers from `first` on as bodies, in the order of the numbers in each queue."""
    mq.create_topic(topic, queues=queues, if_absent=True)
    # Small slices, so that every queue gets some.
    with mq.producer(slice_bytes=400) as producer:
        producer.send_batch(topic, [Message(b"%d" % n) for n in range(first, first + count)])


def lag(mq: Client, group: str) -> int:
    """Return by how many messages a group is behind, on all brokers together."""
    described = mq.groups.describe(group).values()
    return sum(queue.lag or 0 for broker in described for queue in broker.queues)


def one_queue(mq: Client, topic: str, count: int) -> None:
    """A topic of a single queue, with the numbers from 0 on as bodies at the offsets of the same numbers."""
    mq.create_topic(topic, queues=1, brokers=["broker-a"])
    with mq.producer() as producer:
        producer.send_batch(topic, [Message(b"%d" % n) for n in range(count)])


def take(consumer: Consumer, count: int, at_once: int = 500) -> list[ConsumedMessage]:
    """Poll until `count` messages have come."""
    found: list[ConsumedMessage] = []
    while len(found) < count:
        messages = consumer.poll(min(at_once, count - len(found)), WAIT_MS)
        assert messages, f"only {len(found)} of {count} came"
        found += messages
    return found


def numbers(messages: Collection[ConsumedMessage]) -> list[int]:
    return sorted(int(message.body) for message in messages)


def shares(members: Collection[Consumer | Listener]) -> list[set[MessageQueue]]:
    return [set(member.owned()) for member in members]


def wait_for_shares(members: Collection[Consumer | Listener], queues: int) -> None:
    """Wait until the members own all queues, none has two owners, and the shares differ by one at most."""

    def are_even() -> bool:
        found = shares(members)
        sizes = [len(each) for each in found]
        covered = set().union(*found)
        return len(covered) == sum(sizes) == queues and max(sizes) - min(sizes) <= 1

    wait_until(are_even)
