"""How far a group is behind, in messages and in time, and where a reset puts it. Reads the disk.

The lag in time is the age of the next message to consume: now less its store time, by the broker's clock
(RocketMQ: ConsumerLagCalculator, `consumer_lag_latency`). What cannot be known is None, which is not 0: the
lag of a queue in which nothing was committed, the age of a message that is damaged.
"""

from __future__ import annotations

from collections.abc import Iterator

from rocketq.errors import CorruptFrame, InvalidRequest, QueueNotFound, TopicNotFound
from rocketq.model import QueueOffsets, TimeBoundary
from rocketq.protocol.documents.broker import GroupOffset
from rocketq.protocol.documents.groups import GroupQueue, ResetRequest, ResetTarget
from rocketq_broker.store.errors import CorruptQueue
from rocketq_broker.store.store import MessageStore


def group_queues(store: MessageStore, group: str, now_us: int) -> tuple[GroupQueue, ...]:
    """Return where a group stands in each queue in which it has progress or that a member owns.

    The queue of its retry topic is always told: its first reader begins with the first message.
    """
    retried = store.consumer_groups.retry_topic(group)
    claims = store.consumer_groups.claims(group)
    offsets = {(each.topic, each.queue): each.offset for each in store.group_offsets(group).offsets}
    found: list[GroupQueue] = []
    ranges: dict[str, tuple[QueueOffsets, ...]] = {}
    for topic, queue in sorted({*offsets, *claims, *([(retried, 0)] if retried is not None else [])}):
        held = _held(store, ranges, topic, queue)
        committed, claim = offsets.get((topic, queue)), claims.get((topic, queue))
        lag, lag_ms = None, None
        begin = 0 if topic == retried and committed is None else committed
        if begin is not None and held is not None:
            lag = max(0, held.max - max(begin, held.min))
            lag_ms = _lag_ms(store, topic, queue, max(begin, held.min), now_us) if lag else 0
        low, end = (None, None) if held is None else (held.min, held.max)
        owner, epoch = (None, None) if claim is None else claim
        found.append(GroupQueue(topic, queue, committed, low, end, lag, lag_ms, owner, epoch))
    return tuple(found)


def _held(
    store: MessageStore, ranges: dict[str, tuple[QueueOffsets, ...]], topic: str, queue: int
) -> QueueOffsets | None:
    if topic not in ranges:
        try:
            ranges[topic] = store.offsets(topic).queues
        except TopicNotFound:
            # Deleted between two looks at the store.
            ranges[topic] = ()
    return ranges[topic][queue] if queue < len(ranges[topic]) else None


def _lag_ms(store: MessageStore, topic: str, queue: int, next_offset: int, now_us: int) -> int | None:
    try:
        stored_at_us = store.stored_at(topic, queue, next_offset)
    except (CorruptFrame, CorruptQueue, TopicNotFound):
        # The description of a group is to be had while a part of the log is damaged: the age is not known.
        return None
    return None if stored_at_us is None else max(0, now_us - stored_at_us) // 1000


def reset_offsets(store: MessageStore, request: ResetRequest) -> tuple[GroupOffset, ...]:
    """Return the offsets that a reset stores. Raises InvalidRequest, TopicNotFound, QueueNotFound."""
    _check_reset(request)
    config = store.topic(request.topic)
    queues = range(config.read_queues) if request.queues is None else sorted(set(request.queues))
    for queue in queues:
        if not 0 <= queue < config.read_queues:
            raise QueueNotFound(request.topic, queue, config.read_queues)
    to = list(_targets(store, request))
    return tuple(GroupOffset(request.topic, queue, to[queue]) for queue in queues)


def _targets(store: MessageStore, request: ResetRequest) -> Iterator[int]:
    """Yield where a reset puts each queue that the topic ever had."""
    ranges = store.offsets(request.topic).queues
    match request.to:
        case ResetTarget.EARLIEST:
            yield from (each.min for each in ranges)
        case ResetTarget.LATEST:
            yield from (each.max for each in ranges)
        case ResetTarget.OFFSET:
            yield from (request.offset or 0 for _ in ranges)
        case ResetTarget.TIME:
            yield from store.offsets_at(request.topic, request.at_us or 0, TimeBoundary.LOWER).offsets


def _check_reset(request: ResetRequest) -> None:
    for name, target in (("offset", ResetTarget.OFFSET), ("at_us", ResetTarget.TIME)):
        if (getattr(request, name) is not None) != (request.to is target):
            raise InvalidRequest(name, f"belongs to to={target.value}, and to it alone")
    if request.queues is not None and not request.queues:
        raise InvalidRequest("queues", "the list is empty", hint="Leave it out to reset all queues.")
