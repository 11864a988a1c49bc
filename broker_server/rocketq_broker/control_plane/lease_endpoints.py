"""The routes of messages that are leased one by one: receive, acknowledge, change the invisible time.

`data_plane.reads.receive` looks for messages and holds calls; the log writer decides what is leased and
settled (`store.leases.decisions`).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from fastapi import FastAPI, Request, Response

from rocketq.errors import InvalidRequest
from rocketq.errors.lease_errors import LeaseExpired
from rocketq.http_server.body_types import gives, takes
from rocketq.http_server.health import json_response
from rocketq.http_server.permissions import Permission, Resource, declare
from rocketq.protocol.documents.broker import JSON, WAIT_MS_MAX
from rocketq.protocol.documents.leases import (
    HANDLES_MAX,
    INVISIBLE_MS_MAX,
    RECEIVE_MESSAGES_MAX,
    AckAnswer,
    AckRequest,
    ChangedLease,
    InvisibleTimeAnswer,
    InvisibleTimeRequest,
    LeaseListing,
    LeaseRefusal,
    QueueOfLeases,
    ReceiptHandle,
    ReceiveAnswer,
    ReceiveRequest,
    RefusedHandle,
    read_handle,
)
from rocketq.protocol.rules.reserved_names import check_name, check_user_group
from rocketq_broker.broker import Broker
from rocketq_broker.control_plane.topic_endpoints import json_body
from rocketq_broker.data_plane.reads.receive import ReceiveProcessor
from rocketq_broker.store.lease_operations import HandleOutcomes
from rocketq_broker.store.state.group_decisions import check_start


def install_leases(app: FastAPI, broker: Broker, receives: ReceiveProcessor) -> None:
    """Add the routes of receivers to `app`."""
    leases = broker.store.leases

    @app.post("/v1/groups/{group}/receives")
    @gives(ReceiveAnswer)
    @takes(ReceiveRequest)
    @declare(Permission.CONSUME, Resource.GROUP)
    async def receive(group: str, request: Request) -> Response:
        """Lease messages of a topic; the call is held while there are none."""
        wanted = await json_body(request, ReceiveRequest)
        _check_receive(group, wanted)
        await _have_group(broker, group)
        return Response(await receives.receive(group, wanted, request.receive), media_type=JSON)

    @app.post("/v1/groups/{group}/acks")
    @gives(AckAnswer)
    @takes(AckRequest)
    @declare(Permission.CONSUME, Resource.GROUP)
    async def acknowledge(group: str, request: Request) -> Response:
        """Settle leased messages: they do not come again."""
        wanted = await json_body(request, AckRequest)
        handles = _handles(broker, group, wanted.receipt_handles)
        found: HandleOutcomes = await broker.completions.outcome(partial(leases.acknowledge, group, handles))
        receives.settled(group, {each.topic for each in found.good})
        settled = sum(why is LeaseRefusal.SETTLED for _, why in found.refused)
        refused = _refused(each for each in found.refused if each[1] is not LeaseRefusal.SETTLED)
        if refused and not found.good and not settled:
            raise _expired(broker, group, refused)
        return json_response(AckAnswer(broker.config.name, group, len(found.good), settled, refused))

    @app.post("/v1/groups/{group}/invisible-times")
    @gives(InvisibleTimeAnswer)
    @takes(InvisibleTimeRequest)
    @declare(Permission.CONSUME, Resource.GROUP)
    async def change_invisible_time(group: str, request: Request) -> Response:
        """Hide leased messages for another time from now on; 0 makes them visible again."""
        wanted = await json_body(request, InvisibleTimeRequest)
        _check_number("invisible_ms", wanted.invisible_ms, 0, INVISIBLE_MS_MAX)
        handles = _handles(broker, group, wanted.receipt_handles)
        found: HandleOutcomes = await broker.completions.outcome(
            partial(leases.change_time, group, handles, wanted.invisible_ms)
        )
        refused = _refused(found.refused)
        if refused and not found.good:
            raise _expired(broker, group, refused)
        if found.taken is not None:
            receives.leases_changed(group, found.taken)
        return json_response(InvisibleTimeAnswer(broker.config.name, group, _changed(found), refused))

    @app.get("/v1/groups/{group}/leases")
    @gives(LeaseListing)
    @declare(Permission.CONSUME, Resource.GROUP, Permission.METRICS, Permission.ADMIN)
    async def list_leases(group: str) -> Response:
        """How many messages of each queue are leased in a group."""
        check_name("group", group)
        return json_response(_listing(broker, group))


def _listing(broker: Broker, group: str) -> LeaseListing:
    leases = broker.store.leases
    now_ms = leases.now_ms()
    queues = tuple(
        QueueOfLeases(
            topic, queue, each.count, each.begin, each.next, max(0, (each.due.first_ms or 0) - now_ms)
        )
        for (topic, queue), each in sorted(leases.table.of_group(group).items(), key=lambda e: e[0])
    )
    return LeaseListing(broker.config.name, group, queues)


async def _have_group(broker: Broker, group: str) -> None:
    """Create a group on first use; raise GroupNotFound where that is not allowed."""
    groups = broker.store.consumer_groups
    if group not in groups:
        broker.members.check_may_create(group)
        await broker.completions.outcome(partial(groups.create, group))


def _check_receive(group: str, wanted: ReceiveRequest) -> None:
    check_user_group(group)
    check_name("topic", wanted.topic)
    check_start(wanted.start)
    _check_number("max_messages", wanted.max_messages, 1, RECEIVE_MESSAGES_MAX)
    _check_number("invisible_ms", wanted.invisible_ms, 1, INVISIBLE_MS_MAX)
    _check_number("wait_ms", wanted.wait_ms, 0, WAIT_MS_MAX)


def _check_number(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidRequest(name, f"{value} is not from {low} to {high}")


def _handles(broker: Broker, group: str, given: tuple[str, ...]) -> list[ReceiptHandle]:
    """Read receipt handles; raise InvalidRequest for those that this broker cannot have given."""
    check_user_group(group)
    _check_number("the number of receipt_handles", len(given), 1, HANDLES_MAX)
    handles = [read_handle(each) for each in given]
    for each in handles:
        if each.broker != broker.config.name:
            raise InvalidRequest(
                "receipt_handles", f"{str(each)[:200]!r} was given by broker {each.broker}, not by "
                f"{broker.config.name}", hint="Send each handle to the broker that it begins with.",
            )  # fmt: skip
    return handles


def _refused(refused: Iterable[tuple[ReceiptHandle, LeaseRefusal]]) -> tuple[RefusedHandle, ...]:
    return tuple(RefusedHandle(str(handle), why) for handle, why in refused)


def _expired(broker: Broker, group: str, refused: tuple[RefusedHandle, ...]) -> LeaseExpired:
    facts = [{"receipt_handle": each.receipt_handle, "reason": each.reason.value} for each in refused]
    return LeaseExpired(group, broker.config.name, facts)


def _changed(found: HandleOutcomes) -> tuple[ChangedLease, ...]:
    """Return the new handle of each message whose time was changed."""
    if found.taken is None:
        return ()
    numbers = {
        (each.topic, each.queue, offset): lease.number
        for each in found.taken.queues
        for lease in each.leases
        for first, count in lease.ranges
        for offset in range(first, first + count)
    }
    return tuple(
        ChangedLease(str(each), str(each._replace(lease=numbers[each.topic, each.queue, each.offset])))
        for each in found.good
    )
