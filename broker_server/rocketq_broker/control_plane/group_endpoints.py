"""The routes of consumer groups: for members that own queues, others who commit, and operators.

Heartbeats and watches are in `member_calls`. `groups.membership` knows who is a member; the log writer
decides claims, commits and settings (`store.state.group_decisions`). Reads of the disk run on a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from fastapi import FastAPI, Request, Response

from rocketq.errors import GroupNotFound
from rocketq.http_server.body_types import gives, takes
from rocketq.http_server.health import json_response
from rocketq.http_server.permissions import Permission, Resource, declare
from rocketq.protocol.documents.broker import CommitOffsetsRequest, GroupOffsets
from rocketq.protocol.documents.groups import (
    ClaimAnswer,
    ClaimRequest,
    CloneRequest,
    GroupDescription,
    GroupListing,
    GroupSummary,
    MemberCommit,
    OffsetMoves,
    ProducerHeartbeat,
    ProducerMembers,
    ReleaseRequest,
    ResetRequest,
    SetGroupRequest,
)
from rocketq.protocol.rules.reserved_names import check_name, check_user_group
from rocketq_broker.broker import Broker
from rocketq_broker.config import MIB
from rocketq_broker.control_plane.topic_endpoints import address_of, json_body
from rocketq_broker.groups.progress import group_queues, reset_offsets
from rocketq_broker.store.state.group_decisions import Move

#: A claim or commit of a member names many queues.
_MEMBER_BODY_BYTES_MAX = 4 * MIB

T = TypeVar("T")


def install_claims(app: FastAPI, broker: Broker) -> None:
    """Add the routes of queues that members own to `app`."""

    @app.post("/v1/groups/{group}/claims")
    @gives(ClaimAnswer)
    @takes(ClaimRequest)
    @declare(Permission.CONSUME, Resource.GROUP)
    async def claim(group: str, request: Request) -> Response:
        """Give a member the queues that nobody owns."""
        wanted = await json_body(request, ClaimRequest, _MEMBER_BODY_BYTES_MAX)
        return json_response(await broker.members.claim(group, wanted))

    @app.post("/v1/groups/{group}/releases")
    @takes(ReleaseRequest)
    @declare(Permission.CONSUME, Resource.GROUP)
    async def release(group: str, request: Request) -> Response:
        """Take queues from a member that releases them."""
        await broker.members.release(group, await json_body(request, ReleaseRequest, _MEMBER_BODY_BYTES_MAX))
        return json_response({})

    @app.post("/v1/groups/{group}/commits")
    @gives(GroupOffsets)
    @takes(MemberCommit)
    @declare(Permission.CONSUME, Resource.GROUP)
    async def commit(group: str, request: Request) -> Response:
        """Store a member's progress in queues that it owns."""
        wanted = await json_body(request, MemberCommit, _MEMBER_BODY_BYTES_MAX)
        return json_response(await broker.members.commit(group, wanted))


def install_progress(app: FastAPI, broker: Broker) -> None:
    """Add the routes of groups' progress to `app`."""
    groups = broker.store.consumer_groups

    @app.get("/v1/groups/{group}/offsets")
    @gives(GroupOffsets)
    @declare(Permission.CONSUME, Resource.GROUP)
    async def group_offsets(group: str, topic: str | None = None) -> Response:
        """A group's progress on this broker; a queue it never committed is absent."""
        check_name("group", group)
        return json_response(broker.store.group_offsets(group, topic))

    @app.put("/v1/groups/{group}/offsets")
    @gives(GroupOffsets)
    @takes(CommitOffsetsRequest)
    @declare(Permission.CONSUME, Resource.GROUP)
    async def commit_offsets(group: str, request: Request) -> Response:
        """Store a group's progress, not as a member; it only advances, unless `reset`."""
        wanted = await json_body(request, CommitOffsetsRequest)
        check_user_group(group)
        broker.members.check_may_create(group)
        answer = await broker.completions.outcome(partial(groups.commit_offsets, group, wanted))
        if wanted.force:
            broker.members.queues_taken(group)
        return json_response(answer)

    @app.post("/v1/groups/{group}/reset")
    @gives(OffsetMoves)
    @takes(ResetRequest)
    @declare(Permission.ADMIN, Resource.GROUP)
    async def reset(group: str, request: Request) -> Response:
        """Put a group's progress in a topic elsewhere."""
        wanted = await json_body(request, ResetRequest)
        check_user_group(group)
        offsets = await _on_thread(broker, partial(reset_offsets, broker.store, wanted))
        move = Move(group, offsets, broker.members.client_ids(group), wanted.dry_run, wanted.force)
        answer = await broker.completions.outcome(partial(groups.reset, move, wanted.create))
        if not wanted.dry_run:
            broker.members.queues_taken(group)
        return json_response(answer)

    @app.post("/v1/groups/{group}/clone")
    @gives(OffsetMoves)
    @takes(CloneRequest)
    @declare(Permission.ADMIN, Resource.GROUP)
    async def clone(group: str, request: Request) -> Response:
        """Give a group the progress of another."""
        wanted = await json_body(request, CloneRequest)
        check_user_group(group)
        move = Move(group, (), broker.members.client_ids(group), wanted.dry_run, wanted.force)
        write = partial(groups.clone, move, wanted)
        answer = await broker.completions.outcome(write)
        if not wanted.dry_run:
            broker.members.queues_taken(group)
        return json_response(answer)


def install_groups(app: FastAPI, broker: Broker) -> None:
    """Add the routes of groups as a whole to `app`."""
    groups = broker.store.consumer_groups

    @app.get("/v1/groups")
    @gives(GroupListing)
    @declare(Permission.METRICS, Resource.CLUSTER, Permission.ADMIN)
    async def list_groups() -> Response:
        """All groups of this broker."""
        return json_response(GroupListing(broker.config.name, tuple(_summaries(broker))))

    @app.get("/v1/groups/{group}")
    @gives(GroupDescription)
    @declare(Permission.CONSUME, Resource.GROUP, Permission.METRICS, Permission.ADMIN)
    async def describe_group(group: str) -> Response:
        """A group with its settings, members and progress."""
        check_name("group", group)
        return json_response(await _described(broker, group))

    @app.put("/v1/groups/{group}")
    @gives(GroupDescription)
    @takes(SetGroupRequest)
    @declare(Permission.ADMIN, Resource.GROUP)
    async def set_group(group: str, request: Request) -> Response:
        """Create a group, or change its settings."""
        wanted = await json_body(request, SetGroupRequest)
        entry = await broker.completions.outcome(partial(groups.set, group, wanted))
        if not entry.settings.enabled:
            await broker.members.end_group(group)
        broker.members.look_again(group)
        return json_response(await _described(broker, group))

    @app.delete("/v1/groups/{group}")
    @declare(Permission.ADMIN, Resource.GROUP)
    async def delete_group(group: str, force: bool = False) -> Response:
        """Forget a group with its settings, its progress and what waits in its retry topic."""
        check_name("group", group)
        retried = groups.retry_topic(group)
        write = partial(groups.delete, group, broker.members.client_ids(group), force)
        try:
            await broker.completions.outcome(write)
        except GroupNotFound:
            # A call before this one may have got no further.
            if retried is None:
                raise
        await broker.members.end_group(group)
        if retried is not None:
            await broker.completions.outcome(partial(broker.store.delete_topic, retried))
            broker.forget_topic(retried)
        broker.members.look_again(group)
        return json_response({})


def install_producers(app: FastAPI, broker: Broker) -> None:
    """Add the routes of producers to `app`."""
    producers = broker.producers

    @app.put("/v1/producers/{group}/members/{client_id}")
    @takes(ProducerHeartbeat)
    @declare(Permission.PRODUCE, Resource.GROUP)
    async def producer_heartbeat(group: str, client_id: str, request: Request) -> Response:
        """Join a producer group, or stay in it."""
        beat = await json_body(request, ProducerHeartbeat)
        producers.heartbeat(group, client_id, beat, address_of(request.scope))
        return json_response({})

    @app.delete("/v1/producers/{group}/members/{client_id}")
    @declare(Permission.PRODUCE, Resource.GROUP)
    async def producer_leaves(group: str, client_id: str) -> Response:
        """Leave a producer group."""
        producers.leave(group, client_id)
        return json_response({})

    @app.get("/v1/producers/{group}/members")
    @gives(ProducerMembers)
    @declare(Permission.PRODUCE, Resource.GROUP, Permission.METRICS, Permission.ADMIN)
    async def list_producers(group: str) -> Response:
        """The producers of a group."""
        return json_response(producers.members(group))


def _summaries(broker: Broker) -> list[GroupSummary]:
    found = []
    for group in broker.store.groups():
        entry = broker.store.consumer_groups.entry(group)
        topics = sorted({each.topic for each in broker.store.group_offsets(group).offsets})
        found.append(
            GroupSummary(group, entry.kind, entry.settings, broker.members.client_ids(group), tuple(topics))
        )
    return found


async def _described(broker: Broker, group: str) -> GroupDescription:
    entry = broker.store.consumer_groups.entry(group)
    queues = await _on_thread(broker, partial(group_queues, broker.store, group, broker.clock.now_us()))
    differences = broker.members.agreement(group).differences
    statuses = broker.members.statuses(group)
    letters = broker.dead_letters.marks(group)
    return GroupDescription(
        broker.config.name, group, entry.kind, entry.settings, statuses, differences, queues,
        letters.max - letters.min,
    )  # fmt: skip


async def _on_thread(broker: Broker, read: Callable[[], T]) -> T:
    """Read the disk on a thread that may wait for it."""
    return await asyncio.get_running_loop().run_in_executor(broker.readers, read)
