"""RocketMQ's strategies that need no knowledge of machine rooms, and one that keeps what a member has."""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import md5
from typing import Final

from rocketq.consuming.allocation.view import AllocationStrategy, GroupView
from rocketq.errors import InvalidConfiguration
from rocketq.model import MessageQueue

#: Points on the ring for each member (RocketMQ: AllocateMessageQueueConsistentHash).
RING_POINTS: Final = 10


def average(view: GroupView, member: str) -> tuple[MessageQueue, ...]:
    """Give each member one run of neighbouring queues; the first members get one more where it does not
    come out even (RocketMQ: AllocateMessageQueueAveragely).
    """
    if member not in view.members:
        return ()
    index = view.members.index(member)
    size, extra = divmod(len(view.queues), len(view.members))
    start = index * size + min(index, extra)
    return view.queues[start : start + size + (index < extra)]


def circle(view: GroupView, member: str) -> tuple[MessageQueue, ...]:
    """Deal the queues out one by one (RocketMQ: AllocateMessageQueueAveragelyByCircle)."""
    if member not in view.members:
        return ()
    return view.queues[view.members.index(member) :: len(view.members)]


def consistent_hash(view: GroupView, member: str) -> tuple[MessageQueue, ...]:
    """Give a queue to the member whose point follows it on a ring of hashes; few queues move when members
    change, and the shares are uneven (RocketMQ: AllocateMessageQueueConsistentHash, MD5, 10 points a member).
    """
    if member not in view.members:
        return ()
    points, owners = _ring(view.members)
    return tuple(
        queue
        for queue in view.queues
        if owners[bisect_left(points, _ring_hash(_rocketmq_text(queue))) % len(points)] == member
    )


def sticky(view: GroupView, member: str) -> tuple[MessageQueue, ...]:
    """Leave each member what it owns, as far as the shares stay even, and share out the rest.

    No two members' shares differ by more than one queue, and no strategy that promises this moves fewer
    queues. Without owners it deals the queues out, beginning at a member that the topic's name chooses, so
    that the odd queues of many topics do not all go to the same member.
    """
    if member not in view.members:
        return ()
    start = zlib.crc32(view.queues[0].topic.encode()) % len(view.members)
    order = view.members[start:] + view.members[:start]
    kept = _kept(view)
    size, extra = divmod(len(view.queues), len(order))
    # Whoever owns most is first in line for the shares that are larger by one: so the least has to move.
    by_owned = sorted(order, key=lambda one: -len(kept[one]))
    shares = {one: size + (place < extra) for place, one in enumerate(by_owned)}
    held = {one: kept[one][: shares[one]] for one in order}
    taken = {queue for queues in held.values() for queue in queues}
    free = [queue for queue in view.queues if queue not in taken]
    missing = {one: shares[one] - len(held[one]) for one in order}
    turns = (one for turn in range(len(free)) for one in order if missing[one] > turn)
    for queue, one in zip(free, turns, strict=False):
        held[one].append(queue)
    return tuple(sorted(held[member]))


@dataclass(frozen=True, slots=True)
class Configured:
    """Always these queues, whoever else there is (RocketMQ: AllocateMessageQueueByConfig).

    The queues that no member names are consumed by nobody, and a queue that two members name by whoever
    claims it first.
    """

    queues: frozenset[MessageQueue]

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        object.__setattr__(self, "queues", frozenset(queues))
        if not self.queues:
            raise InvalidConfiguration("queues", [], "a member without any queue would consume nothing")

    def __call__(self, view: GroupView, member: str) -> tuple[MessageQueue, ...]:
        """Return those of the configured queues that the topic has."""
        return tuple(queue for queue in view.queues if queue in self.queues)


#: The strategies without settings, by the names that `allocation=` takes.
STRATEGIES: Final[dict[str, AllocationStrategy]] = {
    "sticky": sticky,
    "average": average,
    "circle": circle,
    "consistent_hash": consistent_hash,
}


def strategy_of(given: str | AllocationStrategy) -> AllocationStrategy:
    """Return a strategy by its name, or the given one; raise InvalidConfiguration."""
    if not isinstance(given, str):
        return given
    if given not in STRATEGIES:
        raise InvalidConfiguration(
            "allocation", given, "there is no such strategy", hint=f"Use one of {', '.join(STRATEGIES)}."
        )
    return STRATEGIES[given]


def _kept(view: GroupView) -> dict[str, list[MessageQueue]]:
    kept: dict[str, list[MessageQueue]] = {one: [] for one in view.members}
    for queue in view.queues:
        owner = view.owners.get(queue)
        if owner in kept:
            kept[owner].append(queue)
    return kept


@lru_cache(maxsize=64)
def _ring(members: tuple[str, ...]) -> tuple[list[int], list[str]]:
    ring = sorted((_ring_hash(f"{one}-{n}"), one) for one in members for n in range(RING_POINTS))
    return [point for point, _ in ring], [one for _, one in ring]


def _ring_hash(text: str) -> int:
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def _rocketmq_text(queue: MessageQueue) -> str:
    """Return a queue as RocketMQ writes it: the shares are then those of a RocketMQ client."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.queue}]"
