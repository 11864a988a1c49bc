"""Decides what receives and acknowledgements become: a change of the leases, nothing, or an error.

The functions are pure. The log writer calls them with the state at the moment when the change gets its place
in the log (as `group_decisions`), and with the time of the lease clock. A receive reads first and leases
then: what it found may be gone or leased by then, so each wish is looked at again here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

import msgspec

from rocketq.errors.group_errors import QueuesOwned
from rocketq.errors.lease_errors import ReceiveFilterDiffers
from rocketq.protocol.documents.broker import GroupOffset
from rocketq.protocol.documents.leases import LeaseRefusal, ReceiptHandle
from rocketq_broker.store.machines.claim_table import Place
from rocketq_broker.store.machines.due_runs import end_of_lease
from rocketq_broker.store.machines.group_table import OffsetsCommitted
from rocketq_broker.store.machines.lease_changes import (
    Lease,
    LeasesSettled,
    LeasesTaken,
    QueueTaken,
    Settled,
)
from rocketq_broker.store.machines.queue_leases import (
    QueueLeases,
    Range,
    offsets_of,
    ranges_of,
    ranges_of_offsets,
)
from rocketq_broker.store.state.state import State

#: The lease of messages that had none.
NO_LEASE: Final = -1


@dataclass(frozen=True, slots=True)
class OutRun:
    """Messages of a lease that has run out, as ranges, with the attempt that they had."""

    number: int
    attempt: int
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Wish:
    """What a receive has read of a queue and wants to lease.

    The group stood at `since`, and what is new was looked for up to `next`. `topic_number` tells the topic
    from a later one of the same name.
    """

    place: Place
    topic_number: int
    since: int
    next: int
    new: tuple[Range, ...] = ()
    again: tuple[OutRun, ...] = ()


@dataclass(frozen=True, slots=True)
class Receive:
    """What all wishes of a receive have in common.

    `filters` has the filter of the topic if the group gets a new one; `leases_max` bounds the leased messages
    of a queue. `ordered`: a queue of which messages are leased, and their time is not over, gives no others.
    """

    group: str
    invisible_ms: int
    leases_max: int
    wishes: tuple[Wish, ...]
    filters: Mapping[str, str] = field(default_factory=dict, hash=False)
    ordered: bool = False


# --- where a group begins ------------------------------------------------------------------


def begin(
    state: State, group: str, topic_number: int, offsets: Iterable[GroupOffset]
) -> OffsetsCommitted | None:
    """Decide where a group begins in the queues of one topic in which it has no offset by now."""
    known = state.groups.offsets(group)
    missing = tuple(each for each in offsets if (each.topic, each.queue) not in known)
    if group not in state.groups or not missing or not state.topics.has_number(topic_number):
        return None
    return OffsetsCommitted(group, missing)


# --- receives -----------------------------------------------------------------------------


def stands_at(state: State, group: str, place: Place) -> int:
    """Return the first offset of a queue that was never leased in a group; 0 if it has no offset."""
    leases = state.leases.of_queue(group, place)
    return state.groups.offsets(group).get(place, 0) if leases is None else leases.next


def out_runs(leases: QueueLeases, at_ms: int) -> Iterator[OutRun]:
    """Yield what has run out at a time, the longest ago first."""
    for number, chunk in leases.due.out(at_ms):
        run = leases.runs[number, chunk]
        yield OutRun(number, run.attempt, tuple(ranges_of(chunk, run.mask)))


def is_held(leases: QueueLeases | None, at_ms: int) -> bool:
    """Whether an ordered receive gets nothing of a queue: messages are leased and their time is not over."""
    if leases is None:
        return False
    return sum(leases.runs[key].mask.bit_count() for key in leases.due.out(at_ms)) < leases.count


def first_out(leases: QueueLeases, at_ms: int, messages_max: int) -> Iterator[OutRun]:
    """Yield what has run out in the order of the queue, its first `messages_max` messages."""
    found = sorted(
        (offset, number, leases.runs[number, chunk].attempt)
        for number, chunk in leases.due.out(at_ms)
        for offset in offsets_of(ranges_of(chunk, leases.runs[number, chunk].mask))
    )
    for (number, attempt), rows in groupby(found[:messages_max], key=lambda row: row[1:]):
        yield OutRun(number, attempt, ranges_of_offsets(offset for offset, _, _ in rows))


def check_filter(state: State, group: str, topic: str, wanted: str, broker: str) -> None:
    """Raise ReceiveFilterDiffers if a group wants something else of a topic."""
    counts = state.leases.filter_of(group, topic)
    if counts is not None and counts != wanted:
        raise ReceiveFilterDiffers(group, topic, broker, wanted, counts)


def check_unowned(state: State, group: str, topic: str, broker: str) -> None:
    """Raise QueuesOwned if members of the group own queues of the topic."""
    owners = {
        f"{name}/{broker}/{queue}": claim.client_id
        for (name, queue), claim in state.claims.claims(group).items()
        if name == topic
    }
    if owners:
        raise QueuesOwned(group, broker, owners)


def take(state: State, receive: Receive, now_ms: int, broker: str) -> LeasesTaken | None:
    """Decide which of the wishes become leases. Raises QueuesOwned."""
    table, at_ms = state.leases, max(now_ms, state.leases.at_ms)
    for topic in {wish.place[0] for wish in receive.wishes}:
        check_unowned(state, receive.group, topic, broker)
    numbers: dict[int, int] = {}
    taken: list[QueueTaken] = []
    for wish in receive.wishes:
        topic, queue = wish.place
        entry = state.topics.get(topic)
        if entry is None or entry.number != wish.topic_number:
            continue
        leases = table.of_queue(receive.group, wish.place)
        if receive.ordered and (is_held(leases, at_ms) or (wish.new and leases is not None)):
            continue
        before = stands_at(state, receive.group, wish.place)
        found = list(_again(leases, wish.again, at_ms))
        is_next, next_offset = before == wish.since, before
        if is_next and wish.new and _room(leases, receive.leases_max) >= sum(n for _, n in wish.new):
            found.append((1, NO_LEASE, wish.new))
            next_offset = wish.next
        elif is_next and not wish.new:
            next_offset = wish.next
        made = tuple(
            Lease(numbers.setdefault(attempt, table.next_number + len(numbers)), attempt, number, ranges)
            for attempt, number, ranges in found
        )
        if made or next_offset != before:
            taken.append(QueueTaken(topic, queue, next_offset, made))
    if not taken and not receive.filters:
        return None
    until_ms = end_of_lease(at_ms, receive.invisible_ms)
    change = LeasesTaken(receive.group, at_ms, until_ms, tuple(taken), dict(receive.filters))
    return msgspec.structs.replace(
        change, offsets=_reached(state, change, [(each.topic, each.queue) for each in taken])
    )


def _room(leases: QueueLeases | None, leases_max: int) -> int:
    return leases_max - (0 if leases is None else leases.count)


def _again(
    leases: QueueLeases | None, wanted: Iterable[OutRun], at_ms: int
) -> Iterator[tuple[int, int, tuple[Range, ...]]]:
    """Yield attempt, lease and ranges of what has run out and is still as it was."""
    for each in wanted:
        if leases is not None and leases.has(each.number, each.ranges):
            run = leases.run_at(each.number, each.ranges[0][0])
            if run is not None and run.until_ms <= at_ms:
                yield run.attempt + 1, each.number, each.ranges


def _reached(
    state: State, change: LeasesTaken | LeasesSettled, places: Iterable[Place]
) -> tuple[GroupOffset, ...]:
    """Return the group's offsets that a change of leases moves."""
    group = change.group
    after, stored = state.leases.apply(change, state.topics), state.groups.offsets(group)
    found = []
    for place in dict.fromkeys(places):
        leases = after.of_queue(group, place)
        reached = _next_of(state, change, place) if leases is None else leases.begin
        if reached > stored.get(place, -1):
            found.append(GroupOffset(*place, reached))
    return tuple(found)


def _next_of(state: State, change: LeasesTaken | LeasesSettled, place: Place) -> int:
    """Return where a queue stands of which nothing is leased after a change."""
    if isinstance(change, LeasesTaken):
        return next(each.next for each in change.queues if (each.topic, each.queue) == place)
    return stands_at(state, change.group, place)


def still_out(state: State, group: str, place: Place, runs: Iterable[OutRun], now_ms: int) -> list[Settled]:
    """Return those of some runs that are as they were: run out, and not leased again."""
    leases, at_ms = state.leases.of_queue(group, place), max(now_ms, state.leases.at_ms)
    return [Settled(*place, number, ranges) for _, number, ranges in _again(leases, runs, at_ms)]


# --- receipt handles ----------------------------------------------------------------------


def settle(state: State, group: str, settled: Sequence[Settled], now_ms: int) -> LeasesSettled | None:
    """Decide that messages are settled; each is of a lease that holds it."""
    if not settled:
        return None
    change = LeasesSettled(group, max(now_ms, state.leases.at_ms), tuple(settled))
    places = [(each.topic, each.queue) for each in settled]
    return msgspec.structs.replace(change, offsets=_reached(state, change, places))


def refusal(state: State, group: str, handle: ReceiptHandle, now_ms: int) -> LeaseRefusal | None:
    """Return why a receipt handle is not good now; None if it is."""
    place = handle.topic, handle.queue
    leases = state.leases.of_queue(group, place)
    if handle.topic not in state.topics or handle.lease >= state.leases.next_number:
        return LeaseRefusal.UNKNOWN
    if leases is not None and (run := leases.run_at(handle.lease, handle.offset)) is not None:
        return LeaseRefusal.EXPIRED if run.until_ms <= max(now_ms, state.leases.at_ms) else None
    if leases is not None and leases.is_leased(handle.offset):
        return LeaseRefusal.REPLACED
    is_past = handle.offset < stands_at(state, group, place)
    return LeaseRefusal.SETTLED if is_past else LeaseRefusal.UNKNOWN


def by_lease(handles: Iterable[ReceiptHandle]) -> tuple[Settled, ...]:
    """Return what handles name, each message once, by queue and lease."""
    found: dict[tuple[str, int, int], set[int]] = {}
    for each in handles:
        found.setdefault((each.topic, each.queue, each.lease), set()).add(each.offset)
    return tuple(Settled(*key, ranges_of_offsets(sorted(offsets))) for key, offsets in found.items())


def change_time(
    state: State, group: str, handles: Sequence[ReceiptHandle], invisible_ms: int, now_ms: int
) -> LeasesTaken | None:
    """Decide that the messages of good handles stay hidden for another time from now on."""
    at_ms, table = max(now_ms, state.leases.at_ms), state.leases
    numbers: dict[int, int] = {}
    moved: dict[Place, list[Lease]] = {}
    for topic, queue, number, ranges in map(msgspec.structs.astuple, by_lease(handles)):
        leases = table.of_queue(group, (topic, queue))
        assert leases is not None
        # All messages of a lease have had the same number of attempts.
        run = leases.run_at(number, ranges[0][0])
        assert run is not None
        new = numbers.setdefault(run.attempt, table.next_number + len(numbers))
        moved.setdefault((topic, queue), []).append(Lease(new, run.attempt, number, ranges))
    if not moved:
        return None
    queues = tuple(
        QueueTaken(*place, stands_at(state, group, place), tuple(leases)) for place, leases in moved.items()
    )
    return LeasesTaken(group, at_ms, end_of_lease(at_ms, invisible_ms), queues)
