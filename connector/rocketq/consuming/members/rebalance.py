"""Decisions of a member of a consumer group: which queues are its own, and for how long. Pure, no I/O.

A member shares the queues of each topic with the members that one broker names, the same one for all
members: the first broker of the topic, by name, that answers. Brokers learn of a member one after the
other, so two members may differ for a moment. Claims keep them from reading the same queue meanwhile, and
the next round, which follows every change, agrees.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from rocketq.consuming.allocation.view import AllocationStrategy, group_view
from rocketq.model import MessageQueue
from rocketq.protocol.documents.groups import ClaimedOffset, GroupMembers

#: Waits before a claim that was refused is made again, while the owner gives the queue up.
CLAIM_AGAIN_MS = (20, 50, 100, 200, 500, 1_000)


@dataclass(frozen=True, slots=True)
class Shares:
    """What a member is to consume. `unknown` are topics of which no broker has said the members."""

    queues: frozenset[MessageQueue]
    unknown: frozenset[str]

    def with_unknown(self, topics: Collection[str]) -> Shares:
        """Return the same with more topics of which nothing is known."""
        return Shares(self.queues, self.unknown.union(topics))


@dataclass(frozen=True, slots=True)
class Moves:
    """What a member releases, and what it claims, each sorted."""

    leave: tuple[MessageQueue, ...]
    claim: tuple[MessageQueue, ...]


def members_of(topic: str, brokers: Collection[str], known: Mapping[str, GroupMembers]) -> list[str] | None:
    """Return the client ids that share a topic, as its first broker that is known says; None if none is."""
    for broker in sorted(brokers):
        if broker in known:
            found = [list(one.client_ids) for one in known[broker].topics if one.topic == topic]
            return found[0] if found else []
    return None


def shares_of(
    client_id: str,
    queues: Mapping[str, Collection[MessageQueue]],
    known: Mapping[str, GroupMembers],
    owners: Mapping[MessageQueue, str],
    strategy: AllocationStrategy,
) -> Shares:
    """Decide which of the queues of each topic are the member's."""
    found: set[MessageQueue] = set()
    unknown: set[str] = set()
    for topic, of_topic in queues.items():
        members = members_of(topic, {queue.broker for queue in of_topic}, known)
        if members is None:
            unknown.add(topic)
        elif of_topic and client_id in members:
            found.update(strategy(group_view(list(of_topic), members, owners), client_id))
    return Shares(frozenset(found), frozenset(unknown))


def moves_to(shares: Shares, owned: Collection[MessageQueue], leaving: Collection[MessageQueue]) -> Moves:
    """Decide what to release and what to claim; a topic whose members are unknown stays as it is."""
    staying = shares.queues.union(leaving)
    leave = (queue for queue in owned if queue not in staying and queue.topic not in shares.unknown)
    return Moves(tuple(sorted(leave)), tuple(sorted(shares.queues - set(owned))))


def again_in_ms(refusals: int) -> int:
    """Return how long to wait before claims are made again, after so many refusals in a row."""
    return CLAIM_AGAIN_MS[min(refusals, len(CLAIM_AGAIN_MS)) - 1]


def progress_of(
    queue: MessageQueue, epoch: int, committable: int, committed: int | None
) -> ClaimedOffset | None:
    """Return what to commit for a queue, None if the broker has it already."""
    return None if committable == committed else ClaimedOffset(queue.topic, queue.queue, epoch, committable)
