"""Which queues a subscription means at the moment, and on which brokers they are.

The NameServers say which broker serves which topic; the brokers themselves say how many
queues there are and what they hold, so a new queue is seen with the next answer and a new
broker or topic with the next route.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, TypeVar

from pyspark_rocketq.connections import Connection
from pyspark_rocketq.offset import TopicOnBroker
from pyspark_rocketq.options import Assigned, Subscribed, SubscribedPattern, Subscription
from rocketq.broker_api import BrokerApi, replica_of
from rocketq.errors import BrokerUnreachable, InvalidConfiguration, RouteNotFound
from rocketq.patience import persist
from rocketq.protocol.calls import TopicOffsets
from rocketq.protocol.model import MessageQueue, Perm, QueueOffsets
from rocketq.protocol.reserved_names import is_reserved_topic
from rocketq.protocol.route import QueueData, TopicRoute

#: Calls to brokers that are made at the same time.
PARALLEL_CALLS: Final = 16

#: The routes of so many topics are asked for each time; those of more are as old as the cache lets them.
FRESH_TOPICS_MAX: Final = 32

T = TypeVar("T")
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Place:
    """A topic on one broker, and which of its queues are meant."""

    topic: str
    broker: BrokerApi
    read_queues: int
    #: Assigned queue ids, or None for all below `read_queues`.
    chosen: frozenset[int] | None = None

    @property
    def key(self) -> TopicOnBroker:
        return (self.topic, self.broker.broker)

    def meant(self, offsets: TopicOffsets) -> dict[MessageQueue, QueueOffsets]:
        """Return the ranges of the queues that are meant."""
        return {
            MessageQueue(self.topic, self.broker.broker, queue): found
            for queue, found in enumerate(offsets.queues)
            if queue < self.read_queues and (self.chosen is None or queue in self.chosen)
        }


Places = Mapping[TopicOnBroker, Place]


@dataclass(frozen=True, slots=True)
class Survey:
    """What the brokers said: readable ranges, incarnations, and who has no such topic (any more)."""

    ranges: Mapping[MessageQueue, QueueOffsets] = field(hash=False)
    incarnations: Mapping[TopicOnBroker, str] = field(hash=False)
    gone: frozenset[TopicOnBroker] = frozenset()


def survey_of(
    places: Places, answers: Mapping[TopicOnBroker, TopicOffsets], gone: Iterable[TopicOnBroker] = ()
) -> Survey:
    """Combine the answers of some or all places."""
    ranges: dict[MessageQueue, QueueOffsets] = {}
    for key, answer in answers.items():
        if key in places:
            ranges |= places[key].meant(answer)
    return Survey(
        ranges, {key: answers[key].incarnation for key in answers if key in places}, frozenset(gone)
    )


def find_places(connection: Connection, subscription: Subscription) -> dict[TopicOnBroker, Place]:
    """Return every topic on every broker that the subscription means.

    A subscribed topic without a route is left out: `require_found` tells whether that is an error.
    Raises NameServersUnreachable if nothing is known either.
    """
    routes = connection.routes
    if isinstance(subscription, SubscribedPattern):
        listed = routes.topics().topics
        # A pattern never means the topics that brokers keep for themselves.
        topics = [t for t in listed if re.fullmatch(subscription.pattern, t) and not is_reserved_topic(t)]
    else:
        topics = list(subscription.topics if isinstance(subscription, Subscribed) else subscription.queues)
    if len(topics) <= FRESH_TOPICS_MAX:
        for topic in topics:
            routes.invalidate(topic)

    def asker(topic: str) -> Callable[[], TopicRoute | None]:
        def ask() -> TopicRoute | None:
            try:
                return routes.route(topic)
            except RouteNotFound:
                return None

        return ask

    found = in_parallel({topic: asker(topic) for topic in sorted(topics)})
    return {
        place.key: place
        for route in found.values()
        if route is not None
        for place in _of_route(connection, subscription, route)
    }


def _of_route(connection: Connection, subscription: Subscription, route: TopicRoute) -> Iterable[Place]:
    for data in sorted(route.queues, key=lambda q: q.broker):
        if not data.perm & Perm.READ:
            continue
        chosen: frozenset[int] | None = None
        if isinstance(subscription, Assigned):
            by_broker = subscription.queues[route.topic]
            chosen = by_broker.get(data.broker, by_broker.get(None))
            if chosen is None:
                continue
        try:
            broker = replica_of(route, data.broker, connection.transport)
        except BrokerUnreachable:
            # The route keeps a broker whose replicas are all away; its queues stand still.
            continue
        yield Place(route.topic, broker, _read_queues(data), chosen)


def _read_queues(data: QueueData) -> int:
    return data.read_queues


def require_found(connection: Connection, subscription: Subscription, places: Places) -> None:
    """Raise for what the subscription names and the cluster does not have; a pattern may match nothing."""
    if isinstance(subscription, SubscribedPattern):
        return
    found = {topic for topic, _ in places}
    named = subscription.topics if isinstance(subscription, Subscribed) else subscription.queues
    for topic in named:
        if topic not in found:
            # Raises RouteNotFound with the nearest topic, unless the topic has a route but no queue to read.
            connection.routes.route(topic)
            raise InvalidConfiguration(
                "assign" if isinstance(subscription, Assigned) else "subscribe",
                topic,
                "none of its brokers can be read from",
                hint="Look at the topic's perm and at the broker names: rocketq topic describe.",
            )


def require_assigned(subscription: Subscription, places: Places) -> None:
    """Raise InvalidConfiguration for an assigned queue that does not exist."""
    if not isinstance(subscription, Assigned):
        return
    for topic, by_broker in subscription.queues.items():
        for broker, queues in by_broker.items():
            on = {place.broker.broker: place.read_queues for place in places.values() if place.topic == topic}
            held = on.get(broker, 0) if broker is not None else max(on.values(), default=0)
            missing = sorted(queue for queue in queues if queue >= held)
            if missing:
                where = f"broker {broker}" if broker is not None else "any broker"
                raise InvalidConfiguration(
                    "assign",
                    f"{topic} {missing}",
                    f"there is no such queue on {where}",
                    hint=f"Queues of the topic by broker: {on}.",
                )


def in_parallel(calls: Mapping[K, Callable[[], T]]) -> dict[K, T]:
    """Make the calls at the same time; the first that fails is raised after all have ended."""
    if len(calls) == 1:
        return {key: call() for key, call in calls.items()}
    with ThreadPoolExecutor(min(PARALLEL_CALLS, max(1, len(calls))), "rocketq-ask") as pool:
        futures = {key: pool.submit(call) for key, call in calls.items()}
    return {key: future.result() for key, future in futures.items()}


def survey_all(places: Places) -> Survey:
    """Ask every broker, and wait for those that restart; raises when one stays away.

    For moments that must not miss a broker: where a query begins, what a batch or an
    AvailableNow run reads.
    """

    def asker(place: Place) -> Callable[[], TopicOffsets]:
        return lambda: persist(
            lambda: place.broker.offsets(place.topic), f"Offsets of {place.topic} on {place.broker.broker}"
        )

    return survey_of(places, in_parallel({key: asker(place) for key, place in places.items()}))
