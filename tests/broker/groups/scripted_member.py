"""A member of a group as a test wants it: heartbeats, watches and claims when the test says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from rocketq.net.broker_api import BrokerApi
from rocketq.protocol.documents.groups import (
    ClaimAnswer,
    ClaimedOffset,
    GroupMembers,
    Heartbeat,
    HeartbeatAnswer,
    MemberCommit,
    QueueOfTopic,
    Subscription,
)
from tests.support.conditions import WAIT_MS
from tests.support.patience import patient_transport

Place = tuple[str, int]
T = TypeVar("T")


def orders(*queues: int) -> list[QueueOfTopic]:
    return [QueueOfTopic("orders", queue) for queue in queues]


class GroupMember:
    """One member of group `billing`; the number is its age, and the smallest is the oldest."""

    def __init__(self, address: str, number: int, group: str = "billing") -> None:
        self.transport = patient_transport()
        self.api = BrokerApi(self.transport, "broker-0", address)
        self.group = group
        self.client_id = f"10.0.0.{number}@7#1"
        self.number = number
        self._threads = ThreadPoolExecutor(4)

    def close(self) -> None:
        self.transport.close()
        self._threads.shutdown()

    def join(self, *topics: Subscription | str, **said: Any) -> HeartbeatAnswer:
        wanted = tuple(Subscription(t) if isinstance(t, str) else t for t in topics or ("orders",))
        return self.api.heartbeat(self.group, self.client_id, Heartbeat(self.number, wanted, **said))

    def leave(self) -> None:
        self.api.leave_group(self.group, self.client_id)

    def watch(self, known: str | None) -> Future[GroupMembers]:
        """Hold a watch on a thread of its own."""
        return self.run(lambda: self.watch_now(known, WAIT_MS))

    def run(self, call: Callable[[], T]) -> Future[T]:
        """Make a call on a thread of its own."""
        return self._threads.submit(call)

    def watch_now(self, known: str | None = None, wait_ms: int = 0) -> GroupMembers:
        return self.api.members(self.group, client_id=self.client_id, known=known, wait_ms=wait_ms)

    def claim(self, *queues: int) -> ClaimAnswer:
        return self.api.claim_queues(self.group, self.client_id, orders(*queues))

    def epochs(self, *queues: int) -> dict[int, int]:
        """Claim queues; return the epoch of each that was granted."""
        return {each.queue: each.epoch for each in self.claim(*queues).granted}

    def commit(self, *offsets: tuple[int, int, int], **more: Any) -> dict[int, int]:
        """Commit (queue, epoch, offset) of `orders`; return where the group stands then."""
        claimed = tuple(ClaimedOffset("orders", *each) for each in offsets)
        answer = self.api.commit_claimed(self.group, MemberCommit(self.client_id, claimed, **more))
        return {each.queue: each.offset for each in answer.offsets}


def owners(api: BrokerApi, group: str = "billing") -> dict[Place, str]:
    """Return the owner of each queue, as the broker describes the group."""
    return {
        (each.topic, each.queue): each.owner for each in api.group(group).queues if each.owner is not None
    }


def close_all(members: Iterable[GroupMember]) -> None:
    for member in members:
        member.close()
