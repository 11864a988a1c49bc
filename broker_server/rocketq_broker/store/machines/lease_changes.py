"""The changes of message leases, which two machines fold: `lease_table` and `group_table`."""

from __future__ import annotations

import msgspec

from rocketq.protocol.documents.broker import GroupOffset
from rocketq_broker.store.machines.queue_leases import Range


class Lease(msgspec.Struct, frozen=True, array_like=True):
    """A new lease of messages of one queue; `before` is the lease that they had, -1 if they had none."""

    number: int
    attempt: int
    before: int
    ranges: tuple[Range, ...]


class QueueTaken(msgspec.Struct, frozen=True, array_like=True):
    """What was leased of a queue; everything below `next` has been looked at."""

    topic: str
    queue: int
    next: int
    leases: tuple[Lease, ...]


class LeasesTaken(msgspec.Struct, frozen=True, omit_defaults=True, tag="leases_taken"):
    """Messages are leased until `until_ms`, those of one receive or of one change of the time.

    `filters` are what the group wants of topics from now on. `offsets` are those of queues that the receive
    has passed without leasing anything.
    """

    group: str
    at_ms: int
    until_ms: int
    queues: tuple[QueueTaken, ...]
    filters: dict[str, str] = {}
    offsets: tuple[GroupOffset, ...] = ()


class Settled(msgspec.Struct, frozen=True, array_like=True):
    """Messages of one lease."""

    topic: str
    queue: int
    number: int
    ranges: tuple[Range, ...]


class LeasesSettled(msgspec.Struct, frozen=True, omit_defaults=True, tag="leases_settled"):
    """Messages are acknowledged or given up; `offsets` are those that the group reaches by that."""

    group: str
    at_ms: int
    settled: tuple[Settled, ...]
    offsets: tuple[GroupOffset, ...] = ()
