"""What held calls of the broker wait for: the keys of its long polling.

A pull waits for messages in one queue, a call for offsets for messages in any queue of a topic, and
both for a change of the topic itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

#: A topic with a queue id, or with one of the two numbers below; no queue id is negative.
Key = tuple[str, int]

_ANY_QUEUE: Final = -1
_TOPIC_ITSELF: Final = -2


def of_queue(topic: str, queue: int) -> tuple[Key, ...]:
    """What a call waits for that reads one queue."""
    return (topic, queue), (topic, _TOPIC_ITSELF)


def of_topic(topic: str) -> tuple[Key, ...]:
    """What a call waits for that watches all queues of a topic."""
    return (topic, _ANY_QUEUE), (topic, _TOPIC_ITSELF)


def arrived(arrivals: Collection[tuple[str, int]]) -> Iterator[Key]:
    """What has changed when messages arrived in these queues, each a topic and a queue id."""
    yield from arrivals
    yield from {(topic, _ANY_QUEUE) for topic, _ in arrivals}


def altered(topic: str) -> tuple[Key, ...]:
    """What has changed when a topic was altered or deleted."""
    return ((topic, _TOPIC_ITSELF),)
