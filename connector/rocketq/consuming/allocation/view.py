"""What an allocation strategy decides from, and what every strategy is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rocketq.errors import InvalidConfiguration
from rocketq.model import MessageQueue


@dataclass(frozen=True, slots=True)
class GroupView:
    """One topic as a member of a consumer group sees it.

    `queues` and `members` are sorted, each value once (RocketMQ sorts both: RebalanceImpl). `owners` says
    who owns a queue now, as far as the brokers said; only strategies that keep queues look at it.
    """

    queues: tuple[MessageQueue, ...]
    members: tuple[str, ...]
    owners: Mapping[MessageQueue, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not self.queues:
            raise InvalidConfiguration("queues", [], "there is no queue to allocate")
        if not self.members:
            raise InvalidConfiguration("members", [], "there is no member to allocate queues to")
        if any(not member for member in self.members):
            raise InvalidConfiguration("members", list(self.members), "a client id is empty")


def group_view(
    queues: list[MessageQueue], members: list[str], owners: Mapping[MessageQueue, str] | None = None
) -> GroupView:
    """Return a view of queues and members in any order, doubled ones once."""
    return GroupView(tuple(sorted(set(queues))), tuple(sorted(set(members))), owners or {})


class AllocationStrategy(Protocol):
    """Decides which queues of a topic a member consumes (RocketMQ: AllocateMessageQueueStrategy).

    Every member calls it with the same view and its own client id; so the same view must always give the
    same answer, and no queue may be given to two members.
    """

    def __call__(self, view: GroupView, member: str) -> tuple[MessageQueue, ...]:
        """Return the member's queues, sorted; none if the view does not name the member."""
        ...
