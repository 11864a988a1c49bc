"""Strategies that know in which machine room a broker and a member are (RocketMQ: AllocateMessageQueueBy
MachineRoom, AllocateMachineRoomNearby).

The room of a broker or member is what `room_of` says of its name or client id: the part before its only
`@`, as in RocketMQ, unless another function is given. Names of brokers have no `@` in rocketq, so a real
cluster gives a function, for instance `{"broker-a": "north", "broker-b": "south"}.__getitem__`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from rocketq.consuming.allocation.strategies import strategy_of
from rocketq.consuming.allocation.view import AllocationStrategy, GroupView
from rocketq.errors import InvalidConfiguration
from rocketq.model import MessageQueue

#: From the name of a broker, or from a client id, to the name of its room.
RoomOf: TypeAlias = Callable[[str], str]


def room_before_at(name: str) -> str:
    """Return the part before the only `@` of a name; raise InvalidConfiguration if there is none."""
    room, at, rest = name.partition("@")
    if not at or not room or "@" in rest:
        raise InvalidConfiguration(
            "allocation", name, "this name does not say its machine room", hint="Give room_of=…, a function."
        )
    return room


@dataclass(frozen=True, slots=True)
class MachineRoom:
    """Only queues of brokers in `rooms`, in equal runs; the first members get what is left over, one each."""

    rooms: frozenset[str]
    room_of: RoomOf = room_before_at

    def __init__(self, rooms: Iterable[str], room_of: RoomOf = room_before_at) -> None:
        object.__setattr__(self, "rooms", frozenset(rooms))
        object.__setattr__(self, "room_of", room_of)
        if not self.rooms:
            raise InvalidConfiguration("rooms", [], "without a room there is no queue to consume")

    def __call__(self, view: GroupView, member: str) -> tuple[MessageQueue, ...]:
        """Return the member's queues: queue i + c·⌊n/c⌋ besides its run, where c members share n queues."""
        if member not in view.members:
            return ()
        queues = [queue for queue in view.queues if self.room_of(queue.broker) in self.rooms]
        index, count = view.members.index(member), len(view.members)
        size = len(queues) // count
        rest = index + count * size
        return tuple(queues[index * size : (index + 1) * size] + queues[rest : rest + 1])


@dataclass(frozen=True, slots=True)
class MachineRoomNearby:
    """Queues of a room go to the members of that room; those of a room without members to all members.

    `inner` shares them out within a room: a strategy or its name.
    """

    inner: str | AllocationStrategy = "average"
    room_of_broker: RoomOf = room_before_at
    room_of_member: RoomOf = room_before_at

    def __call__(self, view: GroupView, member: str) -> tuple[MessageQueue, ...]:
        """Return the member's queues, sorted."""
        if member not in view.members:
            return ()
        share_out = strategy_of(self.inner)
        members: dict[str, list[str]] = {}
        for one in view.members:
            members.setdefault(self.room_of_member(one), []).append(one)
        queues: dict[str, list[MessageQueue]] = {}
        for queue in view.queues:
            queues.setdefault(self.room_of_broker(queue.broker), []).append(queue)
        found: list[MessageQueue] = []
        for room, of_room in sorted(queues.items()):
            sharing = members.get(room, list(view.members))
            if member in sharing:
                found += share_out(GroupView(tuple(of_room), tuple(sharing), view.owners), member)
        return tuple(sorted(found))
