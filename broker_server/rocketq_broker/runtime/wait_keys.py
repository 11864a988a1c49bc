"""What held calls of the broker wait for: the keys of its long polling.

A pull waits for messages in one queue, a call for offsets for messages in any queue of a topic, and
both for a change of the topic itself. A receive waits for messages of a topic, and for what only concerns the
receivers of its group. The fetch of a slave waits for the log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

#: A topic with a queue id, or with one of the numbers below; no queue id is negative.
Key = tuple[str, int]

_ANY_QUEUE: Final = -1
_TOPIC_ITSELF: Final = -2
#: With a group and a topic: a lease has run out, and a queue is free to be looked at.
_RAN_OUT: Final = -3
_FREE: Final = -4
#: The log of a replica; no topic has an empty name.
_LOG: Final = -5


#: What the fetch of a slave waits for: frames, a confirmed end, another role.
OF_LOG: Final[tuple[Key, ...]] = (("", _LOG),)


def of_queue(topic: str, queue: int) -> tuple[Key, ...]:
    """What a call waits for that reads one queue."""
    return (topic, queue), (topic, _TOPIC_ITSELF)


def of_topic(topic: str) -> tuple[Key, ...]:
    """What a call waits for that watches all queues of a topic."""
    return (topic, _ANY_QUEUE), (topic, _TOPIC_ITSELF)


def of_receive(group: str, topic: str, *, for_a_queue: bool) -> tuple[Key, ...]:
    """What a receive waits for; with `for_a_queue`, also that another receive lets go of a queue."""
    keys = (*of_topic(topic), *ran_out(group, topic))
    return (*keys, *freed(group, topic)) if for_a_queue else keys


def ran_out(group: str, topic: str) -> tuple[Key, ...]:
    """What has changed when a lease of a group ran out, or was ended."""
    # A colon is legal in no name.
    return ((f"{group}:{topic}", _RAN_OUT),)


def freed(group: str, topic: str) -> tuple[Key, ...]:
    """What has changed when a receive has let go of queues."""
    return ((f"{group}:{topic}", _FREE),)


def arrived(arrivals: Collection[tuple[str, int]]) -> Iterator[Key]:
    """What has changed when messages arrived in these queues, each a topic and a queue id."""
    yield from arrivals
    yield from {(topic, _ANY_QUEUE) for topic, _ in arrivals}


def altered(topic: str) -> tuple[Key, ...]:
    """What has changed when a topic was altered or deleted."""
    return ((topic, _TOPIC_ITSELF),)
