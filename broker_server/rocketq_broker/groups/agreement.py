"""What counts in a group whose members say different things of themselves. Pure.

RocketMQ: the last heartbeat replaces the subscriptions of the whole group, and all members share the queues
of every topic. A message that the owner of its queue does not want is then lost for those that want it. Here

  * a setting of the group counts; where it is not set, what the oldest member says. A member with another
    message model, or that consumes in order where the group does not, or the other way, shares no queue;
  * the filter of a topic that counts is that of its oldest subscriber. Members with another filter of the
    topic share none of its queues. They take over when the last member with the old filter has left: in a
    rolling update each queue is read through the old filter up to some offset, and through the new one from
    there on;
  * members that do not subscribe to a topic share none of its queues; the others do.

The age of a member is what it says of its start, so all brokers decide the same. Filters are compared by
meaning: `a || b` is `b||a`. Each difference has a name, and is told to all members.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rocketq.errors import InvalidRequest
from rocketq.model import MessageModel
from rocketq.protocol.documents.groups import (
    SUBSCRIPTIONS_MAX,
    Difference,
    DifferenceKind,
    GroupSettings,
    Heartbeat,
    StartRule,
    Subscription,
    TopicMembers,
)
from rocketq.protocol.filters.sql_parser import parse_sql
from rocketq.protocol.filters.tags import EVERYTHING, parse_tags
from rocketq.protocol.rules.reserved_names import check_name, is_retry_topic
from rocketq_broker.groups.sessions import Session

Members = Sequence[Session[Heartbeat]]


@dataclass(frozen=True, slots=True)
class Agreement:
    """What counts in a group, who differs from it, and who shares the queues of each topic."""

    model: MessageModel
    start: StartRule
    ordered: bool
    differences: tuple[Difference, ...]
    topics: tuple[TopicMembers, ...]

    def shares(self, topic: str, client_id: str) -> bool:
        """Whether a member may own queues of a topic."""
        return any(each.topic == topic and client_id in each.client_ids for each in self.topics)


@dataclass(frozen=True, slots=True)
class _Rule:
    """One value that counts for all members, and whose it is: a client id, "" for the group's settings."""

    value: Any
    whose: str

    def difference(self, kind: DifferenceKind, client_id: str, value: Any) -> Difference:
        return Difference(client_id, kind, "", _shown(value), _shown(self.value), self.whose)


def agree(settings: GroupSettings, members: Members, retry_topic: str | None = None) -> Agreement:
    """Return what counts for these members.

    `retry_topic` is that of the group, once it has one: its members share it without subscribing to it. A
    member that wants less than others would get messages that it did not ask for. So those share it that
    want all topics of the group; all members do if there is none of them.
    """
    heard = sorted(
        ((each.beat.started_at_us, each.client_id, each.beat) for each in members if each.beat is not None),
        key=lambda each: each[:2],
    )
    beats = {client_id: beat for _, client_id, beat in heard}
    model = _rule(settings.model, beats, "model", MessageModel.CLUSTERING)
    start = _rule(settings.start, beats, "start", StartRule())
    ordered = _rule(settings.ordered, beats, "ordered", False)
    found: list[Difference] = []
    sharing: dict[str, Heartbeat] = {}
    for client_id, beat in beats.items():
        if beat.model != model.value:
            found.append(model.difference(DifferenceKind.MODEL, client_id, beat.model))
        if beat.ordered != ordered.value:
            found.append(ordered.difference(DifferenceKind.ORDERED, client_id, beat.ordered))
        if beat.start != start.value:
            found.append(start.difference(DifferenceKind.START, client_id, beat.start))
        if beat.model == model.value and beat.ordered == ordered.value:
            sharing[client_id] = beat
    topics, of_topics = _share(sharing)
    if retry_topic is not None and sharing:
        whole = set(sharing).intersection(*topics.values())
        topics[retry_topic] = whole or set(sharing)
    for each in members:
        for topic in each.topics:
            topics.setdefault(topic, set()).add(each.client_id)
    listed = tuple(TopicMembers(topic, tuple(sorted(ids))) for topic, ids in sorted(topics.items()))
    differences = tuple(sorted([*found, *of_topics], key=lambda d: (d.client_id, d.kind, d.topic)))
    return Agreement(model.value, start.value, ordered.value, differences, listed)


def _rule(setting: Any, beats: dict[str, Heartbeat], name: str, default: Any) -> _Rule:
    if setting is not None or not beats:
        return _Rule(default if setting is None else setting, "")
    client_id, beat = next(iter(beats.items()))
    return _Rule(getattr(beat, name), client_id)


def _share(beats: dict[str, Heartbeat]) -> tuple[dict[str, set[str]], list[Difference]]:
    """Return who shares each topic, and the differences in filters and topics; the oldest member is first."""
    subscribed = {
        client_id: {each.topic: each for each in beat.subscriptions} for client_id, beat in beats.items()
    }
    #: For each topic its oldest subscriber and the filter that counts.
    counting: dict[str, tuple[str, Subscription]] = {}
    for client_id, theirs in subscribed.items():
        for topic, one in theirs.items():
            counting.setdefault(topic, (client_id, one))
    topics: dict[str, set[str]] = {topic: set() for topic in counting}
    found: list[Difference] = []
    for client_id, theirs in subscribed.items():
        for topic, (oldest, counts) in counting.items():
            mine = theirs.get(topic)
            if mine is None:
                kind, value = DifferenceKind.TOPIC, ""
            elif meaning(mine) != meaning(counts):
                kind, value = DifferenceKind.FILTER, expression(mine)
            else:
                topics[topic].add(client_id)
                continue
            found.append(Difference(client_id, kind, topic, value, expression(counts), oldest))
    return topics, found


def expression(subscription: Subscription) -> str:
    """Return a subscription's filter as it was written; `*` if it has none."""
    return subscription.sql or subscription.tag or EVERYTHING


def meaning(subscription: Subscription) -> object:
    """Return a value that two subscriptions have in common if their filters mean the same."""
    return _meaning(subscription.tag, subscription.sql)


@lru_cache(maxsize=1_024)
def _meaning(tag: str | None, sql: str | None) -> object:
    return parse_sql(sql) if sql is not None else frozenset(parse_tags(tag or EVERYTHING))


def _shown(value: Any) -> str:
    if isinstance(value, StartRule):
        return value.where.value if value.at_us is None else f"{value.where.value} {value.at_us}"
    return str(value).lower()


def check_subscriptions(subscriptions: Iterable[Subscription]) -> None:
    """Raise InvalidRequest, InvalidName or InvalidFilter for subscriptions that no member can have.

    A retry topic is none to subscribe to: the members of its group read it without that, and nobody else may.
    """
    seen: set[str] = set()
    for each in subscriptions:
        check_name("topic", each.topic)
        if is_retry_topic(each.topic):
            raise InvalidRequest(
                "subscriptions", f"topic {each.topic} is a retry topic",
                hint="Leave it out: the members of a group read its retry topic in any case.",
            )  # fmt: skip
        if each.topic in seen:
            raise InvalidRequest("subscriptions", f"topic {each.topic} is given twice")
        if each.tag is not None and each.sql is not None:
            raise InvalidRequest("subscriptions", f"topic {each.topic} has both tag and sql")
        seen.add(each.topic)
        meaning(each)
    if not 1 <= len(seen) <= SUBSCRIPTIONS_MAX:
        raise InvalidRequest("subscriptions", f"there are {len(seen)}, not from 1 to {SUBSCRIPTIONS_MAX}")
