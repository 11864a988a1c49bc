"""Short words for what tests do to a store's leases, as a broker does it but without reading messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from rocketq.protocol.documents.broker import CommitOffsetsRequest, GroupOffset
from rocketq.protocol.documents.leases import ReceiptHandle
from rocketq_broker.store.lease_operations import HandleOutcomes
from rocketq_broker.store.leases.decisions import OutRun, Receive, Wish
from rocketq_broker.store.machines.lease_changes import LeasesTaken
from rocketq_broker.store.machines.queue_leases import offsets_of, ranges_of_offsets
from tests.support.store_driver import Driver, answer

TOPIC = "t"
NEVER = 1_000_000


class Given(NamedTuple):
    """A leased message, as its receiver sees it."""

    handle: ReceiptHandle
    attempt: int


def begin(driver: Driver, group: str, queues: int, topic: str = TOPIC) -> None:
    """Have a group begin at the first message of each queue."""
    known = driver.progress(group)
    offsets = tuple(GroupOffset(topic, q, 0) for q in range(queues) if (topic, q) not in known)
    if offsets:
        request = CommitOffsetsRequest(offsets)
        answer(partial(driver.store.consumer_groups.commit_offsets, group, request))


def wish(
    driver: Driver, group: str, queue: int, messages: int = NEVER, attempts_max: int = NEVER
) -> Wish | None:
    """Return what a receive wishes of a queue: what ran out first, then what is new."""
    standing = driver.store.leases.standing(group, (TOPIC, queue), NEVER)
    if standing is None:
        return None
    again: list[OutRun] = []
    for run in standing.out:
        offsets = list(offsets_of(run.ranges))[:messages]
        if offsets and run.attempt < attempts_max:
            again.append(OutRun(run.number, run.attempt, ranges_of_offsets(offsets)))
            messages -= len(offsets)
    end = min(standing.end, standing.since + min(messages, standing.room))
    new = ((standing.since, end - standing.since),) if end > standing.since else ()
    return Wish(
        (TOPIC, queue), standing.topic_number, standing.since, max(end, standing.since), new, tuple(again)
    )


def take(
    driver: Driver, group: str, wishes: Iterable[Wish | None], invisible_ms: int, **more: Mapping[str, str]
) -> LeasesTaken | None:
    receive = Receive(
        group,
        invisible_ms,
        driver.store.leases.leases_max,
        tuple(each for each in wishes if each is not None),
        **more,
    )
    taken: LeasesTaken | None = answer(partial(driver.store.leases.take, receive))
    return taken


def given(broker: str, taken: LeasesTaken | None) -> list[Given]:
    """Return the messages of a change that leases them."""
    return [
        Given(ReceiptHandle(broker, each.topic, each.queue, offset, lease.number), lease.attempt)
        for each in (() if taken is None else taken.queues)
        for lease in each.leases
        for offset in offsets_of(lease.ranges)
    ]


def receive(
    driver: Driver, group: str, queues: Sequence[int], invisible_ms: int, messages: int = NEVER
) -> list[Given]:
    """Lease what there is of some queues."""
    wishes = []
    for queue in queues:
        found = wish(driver, group, queue, messages)
        if found is not None:
            messages -= sum(n for run in (found.new, *(each.ranges for each in found.again)) for _, n in run)
            wishes.append(found)
    return given(driver.store.broker, take(driver, group, wishes, invisible_ms))


def acknowledge(driver: Driver, group: str, handles: Sequence[ReceiptHandle]) -> HandleOutcomes:
    found: HandleOutcomes = answer(partial(driver.store.leases.acknowledge, group, handles))
    return found


def change_time(
    driver: Driver, group: str, handles: Sequence[ReceiptHandle], invisible_ms: int
) -> HandleOutcomes:
    found: HandleOutcomes = answer(partial(driver.store.leases.change_time, group, handles, invisible_ms))
    return found
