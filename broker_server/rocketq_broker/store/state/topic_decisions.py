"""Decides what a request about topics becomes: a change, nothing, or an error.

The functions are pure. The log writer calls them with the state at the moment when the change gets its place
in the log, so the log's order decides between two requests at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from rocketq.errors import (
    Conflict,
    InvalidRequest,
    TopicNotFound,
)
from rocketq.errors.topic_errors import UnreadMessages
from rocketq.model import (
    QUEUE_COUNT_MAX,
    TOPIC_BROKERS_MAX,
    Perm,
    TopicConfig,
)
from rocketq.protocol.documents.broker import (
    AlterTopicRequest,
    CreateTopicRequest,
)
from rocketq.protocol.rules.reserved_names import check_name
from rocketq_broker.store.log.consume_queues import Queues
from rocketq_broker.store.machines.topic_table import TopicAltered, TopicCreated, TopicDeleted, TopicEntry
from rocketq_broker.store.state.state import State


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
    broker: str,
    incarnation: str,
    now_ms: int,
) -> TopicCreated | TopicAltered | None:
    """Decide a creation; what exists may be left as it is, or gets more brokers on its record.

    Raises Conflict or Invalid….
    """
    _check_brokers(request.brokers, broker)
    if name in state.topics:
        if not request.if_absent:
            raise Conflict(f"topic {name!r}", "it exists already", "Alter it, or pass if_absent.")
        old = state.topics[name].config
        config = replace(old, brokers=_united(old.brokers, request.brokers))
        return None if config == old else TopicAltered(config, now_ms)
    config = TopicConfig(
        name, request.read_queues, request.write_queues, request.perm, incarnation,
        request.message_bytes_max, request.retention_ms, request.retention_bytes,
        _united(request.brokers),
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


#: The fields of a topic that a request to alter it may give.
_ALTERABLE: Final = (
    "read_queues", "write_queues", "perm", "message_bytes_max", "retention_ms", "retention_bytes",
)  # fmt: skip


def alter_topic(
    state: State,
    queues: Queues,
    name: str,
    request: AlterTopicRequest,
    limits: TopicLimits,
    broker: str,
    now_ms: int,
) -> TopicAltered | None:
    """Decide an alteration; None if nothing would change. Raises UnreadMessages, Conflict, Invalid…."""
    if name not in state.topics:
        raise TopicNotFound(name, broker)
    if broker in request.remove_brokers:
        raise InvalidRequest(
            "remove_brokers", f"broker {broker} has the topic", hint="Delete the topic there instead."
        )
    entry = state.topics[name]
    given = {field: value for field in _ALTERABLE if (value := getattr(request, field)) is not None}
    kept = tuple(each for each in entry.config.brokers if each not in request.remove_brokers)
    config = replace(entry.config, **given, brokers=kept)
    _check_config(config)
    _check_queues(state, name, config.queues, limits)
    if not request.force:
        _check_unread(entry, queues, config.read_queues, broker)
    return None if config == entry.config else TopicAltered(config, now_ms)


def _check_unread(entry: TopicEntry, queues: Queues, read_queues: int, broker: str) -> None:
    """Refuse to take queues from the readers while they hold messages."""
    unread: dict[str, int] = {}
    for queue in range(read_queues, entry.config.read_queues):
        held = queues.range((entry.number, queue))
        if held.end > held.min:
            unread[f"{broker}/{queue}"] = held.end - held.min
    if unread:
        raise UnreadMessages(entry.config.name, f"to {read_queues} read queues", unread)


def delete_topic(state: State, name: str, broker: str, now_ms: int) -> TopicDeleted:
    """Decide a deletion."""
    if name not in state.topics:
        raise TopicNotFound(name, broker)
    return TopicDeleted(name, now_ms)


def _check_config(config: TopicConfig) -> None:
    check_name("topic", config.name)
    for name in ("read_queues", "write_queues"):
        if not 1 <= getattr(config, name) <= QUEUE_COUNT_MAX:
            raise InvalidRequest(name, f"{getattr(config, name)} is not from 1 to {QUEUE_COUNT_MAX}")
    if config.perm not in (Perm.NONE, Perm.WRITE, Perm.READ, Perm.READ_WRITE):
        raise InvalidRequest("perm", f"{config.perm} is not 0, 2 (write), 4 (read) or 6 (both)")
    for name in ("message_bytes_max", "retention_ms", "retention_bytes"):
        if (value := getattr(config, name)) is not None and value < 1:
            raise InvalidRequest(name, f"{value} is not positive")


def _united(*records: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({name for record in records for name in record}))


def _check_brokers(brokers: tuple[str, ...], broker: str) -> None:
    """Refuse a record that no topic on this broker can have."""
    for name in brokers:
        check_name("broker", name)
    if brokers and broker not in brokers:
        raise InvalidRequest(
            "brokers", f"{', '.join(brokers)[:200]} does not name this broker, {broker}",
            hint="Name every broker that is to hold the topic, also the one that is asked.",
        )  # fmt: skip
    if len(brokers) > TOPIC_BROKERS_MAX:
        raise InvalidRequest("brokers", f"there are {len(brokers)}; the limit is {TOPIC_BROKERS_MAX}")


def _check_queues(state: State, name: str, wanted: int, limits: TopicLimits) -> None:
    others = sum(entry.queues for other, entry in state.topics.items() if other != name)
    if others + wanted > limits.queues_max:
        raise Conflict(
            f"topic {name!r}",
            f"with {wanted} queues the broker would have {others + wanted}, over its limit of "
            f"{limits.queues_max}",
            "Use fewer queues, or raise queues_max.",
        )
