"""What a request to change the state becomes: a change, nothing, or a refusal.

Pure functions of the state at the moment the change is given its place in the
log, so that two requests that race are decided in the log's order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rocketq.errors import (
    Conflict,
    InvalidName,
    InvalidRequest,
    OffsetOutOfRange,
    QueueNotFound,
    TopicNotFound,
)
from rocketq.protocol.calls import (
    AlterTopicRequest,
    CommitOffsetsRequest,
    CreateTopicRequest,
    GroupOffset,
    GroupOffsets,
)
from rocketq.protocol.model import QUEUE_COUNT_MAX, Perm, TopicConfig, is_legal_name
from rocketq_broker.store.group_table import OffsetsCommitted
from rocketq_broker.store.queues import Queues
from rocketq_broker.store.state import State
from rocketq_broker.store.topic_table import TopicAltered, TopicCreated, TopicDeleted


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """How many topics, and queues over all topics, one broker takes."""

    topics_max: int
    queues_max: int


def create_topic(
    state: State,
    name: str,
    request: CreateTopicRequest,
    limits: TopicLimits,
    incarnation: str,
    now_ms: int,
) -> TopicCreated | None:
    """Decide a creation; None if the topic may already be there. Raises Conflict or Invalid…."""
    if name in state.topics:
        if request.if_absent:
            return None
        raise Conflict(f"topic {name!r}", "it exists already", "Alter it, or pass if_absent.")
    config = TopicConfig(
        name, request.read_queues, request.write_queues, request.perm, incarnation,
        request.message_bytes_max, request.retention_ms, request.retention_bytes,
    )  # fmt: skip
    _check_config(config)
    if len(state.topics) >= limits.topics_max:
        raise Conflict(
            f"topic {name!r}",
            f"the broker has its limit of {limits.topics_max} topics",
            "Delete topics that are no longer used, or raise topics_max.",
        )
    _check_queues(state, name, config.queues, limits)
    return TopicCreated(config, state.topics.next_number, now_ms)


def alter_topic(
    state: State, name: str, request: AlterTopicRequest, limits: TopicLimits, broker: str, now_ms: int
) -> TopicAltered | None:
    """Decide an alteration; None if nothing would change."""
    if name not in state.topics:
        raise TopicNotFound(name, broker)
    old = state.topics[name].config
    given = {
        field: value
        for field in AlterTopicRequest.__dataclass_fields__
        if (value := getattr(request, field)) is not None
    }
    config = replace(old, **given)
    _check_config(config)
    _check_queues(state, name, config.queues, limits)
    return None if config == old else TopicAltered(config, now_ms)


def delete_topic(state: State, name: str, broker: str, now_ms: int) -> TopicDeleted:
    """Decide a deletion."""
    if name not in state.topics:
        raise TopicNotFound(name, broker)
    return TopicDeleted(name, now_ms)


def commit_offsets(
    state: State, queues: Queues, group: str, request: CommitOffsetsRequest, broker: str
) -> OffsetsCommitted | None:
    """Decide a commit; offsets that would go back are left out unless `reset` asks for it.

    RocketMQ: RemoteBrokerOffsetStore.updateOffset with increaseOnly.
    """
    if not is_legal_name(group):
        raise InvalidName("group", group)
    table = state.groups.offsets(group)
    for each in request.offsets:
        entry = state.topics.get(each.topic)
        if entry is None:
            raise TopicNotFound(each.topic, broker)
        if not 0 <= each.queue < entry.queues:
            raise QueueNotFound(each.topic, each.queue, entry.queues)
        held = queues.range((entry.number, each.queue))
        if not 0 <= each.offset <= held.end:
            raise OffsetOutOfRange(each.topic, broker, each.queue, each.offset, held.min, held.end)
    moved = tuple(
        each
        for each in request.offsets
        if (each.offset != table.get((each.topic, each.queue)))
        and (request.reset or each.offset > table.get((each.topic, each.queue), -1))
    )
    return OffsetsCommitted(group, moved) if moved else None


def committed(state: State, group: str, request: CommitOffsetsRequest, broker: str) -> GroupOffsets:
    """Return where a group stands in the queues that a request named."""
    table = state.groups.offsets(group)
    places = sorted({(each.topic, each.queue) for each in request.offsets})
    return GroupOffsets(
        broker, group, tuple(GroupOffset(*place, table[place]) for place in places if place in table)
    )


def _check_config(config: TopicConfig) -> None:
    if not is_legal_name(config.name):
        raise InvalidName("topic", config.name)
    for name in ("read_queues", "write_queues"):
        if not 1 <= getattr(config, name) <= QUEUE_COUNT_MAX:
            raise InvalidRequest(name, f"{getattr(config, name)} is not from 1 to {QUEUE_COUNT_MAX}")
    if config.perm not in (Perm.NONE, Perm.WRITE, Perm.READ, Perm.READ_WRITE):
        raise InvalidRequest("perm", f"{config.perm} is not 0, 2 (write), 4 (read) or 6 (both)")
    for name in ("message_bytes_max", "retention_ms", "retention_bytes"):
        if (value := getattr(config, name)) is not None and value < 1:
            raise InvalidRequest(name, f"{value} is not positive")


def _check_queues(state: State, name: str, wanted: int, limits: TopicLimits) -> None:
    others = sum(entry.queues for other, entry in state.topics.items() if other != name)
    if others + wanted > limits.queues_max:
        raise Conflict(
            f"topic {name!r}",
            f"with {wanted} queues the broker would have {others + wanted}, over its limit of "
            f"{limits.queues_max}",
            "Use fewer queues, or raise queues_max.",
        )
