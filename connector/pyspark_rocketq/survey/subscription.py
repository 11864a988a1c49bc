"""Which queues a subscription means at the moment, and on which brokers they are.

The NameServers say which broker serves which topic, and which brokers hold it by the topic's record;
the brokers themselves say how many queues there are and what they hold. So a new queue is seen with
the next answer, a new broker or topic with the next route, and a broker that is away is still known of
when its registration has ended.

A broker that should have a topic and is not in its route is looked for among all that are alive:

    alive, and it has the topic       it is asked as the others are
    alive, and it denies the topic    the topic is gone there: deleted, or the broker lost its data
    not alive                         it is away, and may come back with what it holds; unless all brokers
                                      of the topic say that it was taken off the record: gone
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, TypeVar

from pyspark_rocketq.connections import Connection, TopicOnBroker
from pyspark_rocketq.options.options import Assigned, Subscribed, SubscribedPattern, Subscription
from rocketq.errors import (
    BrokerUnreachable,
    InvalidConfiguration,
    RocketqError,
    RouteNotFound,
    TopicNotFound,
)
from rocketq.model import MessageQueue, Perm, QueueOffsets
from rocketq.net.broker_api import BrokerApi, replica_of
from rocketq.protocol.documents.broker import TopicOffsets
from rocketq.protocol.documents.nameserver import TopicRoute
from rocketq.protocol.rules.reserved_names import is_reserved_topic

#: Calls to brokers that are made at the same time.
PARALLEL_CALLS: Final = 16

#: The routes of so many topics are asked for each time; those of more are as old as the cache lets them.
FRESH_TOPICS_MAX: Final = 32

T = TypeVar("T")
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Place:
    """A topic on one broker, and which of its queues are selected."""

    topic: str
    broker: BrokerApi
    read_queues: int
    #: Assigned queue ids, or None for all below `read_queues`.
    chosen: frozenset[int] | None = None
    #: Whether only a slave of the group is alive: it may know of fewer messages than there are.
    is_slave: bool = False

    @property
    def key(self) -> TopicOnBroker:
        return (self.topic, self.broker.broker)

    def offsets(self, after_total: int | None = None, wait_ms: int = 0) -> TopicOffsets:
        """Ask the broker what it holds; one that was master when the place was found must be so still."""
        return self.broker.offsets(
            self.topic, after_total=after_total, wait_ms=wait_ms, master_only=not self.is_slave
        )

    def selected(self, offsets: TopicOffsets) -> dict[MessageQueue, QueueOffsets]:
        """Return the ranges of the selected queues, also of those beyond `read_queues`."""
        return {
            MessageQueue(self.topic, self.broker.broker, queue): found
            for queue, found in enumerate(offsets.queues)
            if self.chosen is None or queue in self.chosen
        }


Places = Mapping[TopicOnBroker, Place]


#: Why a topic is gone from a broker that is alive, or a broker from a topic; and why one is away.
DENIED: Final = "the broker has no such topic: it was deleted there, or the broker came back without its data"
TAKEN_OFF: Final = "the broker was taken off the topic's record"
UNREGISTERED: Final = "no NameServer knows it to be alive"


@dataclass(frozen=True, slots=True)
class Topology:
    """Where the topics of a subscription are at the moment: each broker of each topic is in one of three."""

    places: Places = field(default_factory=dict, hash=False)
    #: Brokers that hold a topic and cannot be asked, and why.
    away: Mapping[TopicOnBroker, str] = field(default_factory=dict, hash=False)
    #: Brokers that should hold a topic and no longer do, and why.
    gone: Mapping[TopicOnBroker, str] = field(default_factory=dict, hash=False)
    #: Topics whose record does not say who holds them: nobody can tell that a broker of them is away.
    unrecorded: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Survey:
    """What the brokers said: readable ranges, incarnations, and who has no such topic (any more), and why.

    `closed` are the ranges of queues that are stored but not readable: the topic has fewer read queues now.
    """

    ranges: Mapping[MessageQueue, QueueOffsets] = field(hash=False)
    incarnations: Mapping[TopicOnBroker, str] = field(hash=False)
    gone: Mapping[TopicOnBroker, str] = field(hash=False, default_factory=dict)
    closed: Mapping[MessageQueue, QueueOffsets] = field(hash=False, default_factory=dict)


def survey_of(
    places: Places, answers: Mapping[TopicOnBroker, TopicOffsets], gone: Mapping[TopicOnBroker, str]
) -> Survey:
    """Combine the answers of some or all places."""
    ranges: dict[MessageQueue, QueueOffsets] = {}
    closed: dict[MessageQueue, QueueOffsets] = {}
    for key, answer in answers.items():
        for queue, held in places[key].selected(answer).items():
            (ranges if queue.queue < places[key].read_queues else closed)[queue] = held
    return Survey(ranges, {key: answers[key].incarnation for key in answers}, gone, closed)


def find_topology(
    connection: Connection, subscription: Subscription, named: Collection[TopicOnBroker] = ()
) -> Topology:
    """Return every broker of every topic that the subscription means.

    `named` are those that a checkpoint names: they belong to it also where no route and no record does.
    A subscribed topic of which nobody knows is left out (`broker_survey.require_found`).
    Raises NameServersUnreachable if no route is known from before either.
    """
    routes = _routes(connection, _topics(connection, subscription, named))
    places: dict[TopicOnBroker, Place] = {}
    missing: dict[TopicOnBroker, frozenset[int] | None] = {}
    for topic, route in routes.items():
        for broker in sorted(_brokers(topic, route, named)):
            chosen = _chosen_queues(subscription, topic, broker)
            if chosen is not None and not chosen:
                continue
            data = route.queue_data(broker) if route is not None else None
            if route is None or data is None:
                missing[topic, broker] = chosen
            elif data.perm & Perm.READ:
                found = _replica(route, broker, connection)
                if found is None:
                    missing[topic, broker] = chosen
                else:
                    places[topic, broker] = Place(
                        topic, found, data.read_queues, chosen, is_slave=not _has_master(route, broker)
                    )
    unrecorded = frozenset(
        topic for topic, route in routes.items() if route is not None and not route.holders
    )
    known = Topology(places, unrecorded=unrecorded)
    return _with_missing(connection, known, routes, missing, named) if missing else known


def _with_missing(
    connection: Connection,
    known: Topology,
    routes: Mapping[str, TopicRoute | None],
    missing: Mapping[TopicOnBroker, frozenset[int] | None],
    named: Collection[TopicOnBroker],
) -> Topology:
    """Add the brokers that no route has, as they are found or not."""
    addresses = connection.routes.live_addresses()

    def seeker(key: TopicOnBroker) -> Callable[[], Place | _Absent | None]:
        topic, broker = key
        if broker in addresses:
            api = connection.broker(broker, addresses[broker])
            return lambda: _ask_off_route(topic, api, missing[key])
        route = routes[topic]
        if key in named and route is not None and route.holders and broker not in route.holders:
            beside = [place for place in known.places.values() if place.topic == topic]
            return lambda: _Absent(TAKEN_OFF, True) if _deny(beside, broker) else _Absent(UNREGISTERED)
        return lambda: _Absent(UNREGISTERED)

    places = dict(known.places)
    away: dict[TopicOnBroker, str] = {}
    gone: dict[TopicOnBroker, str] = {}
    for key, found in in_parallel({key: seeker(key) for key in missing}).items():
        if isinstance(found, Place):
            places[key] = found
        elif found is not None:
            (gone if found.for_good else away)[key] = found.why
    return Topology(places, away, gone, known.unrecorded)


@dataclass(frozen=True, slots=True)
class _Absent:
    """Why a topic cannot be read from a broker, and whether that is for good."""

    why: str
    for_good: bool = False


def _ask_off_route(topic: str, broker: BrokerApi, chosen: frozenset[int] | None) -> Place | _Absent | None:
    """Ask a broker for a topic that the route does not give it; None if nobody may read it there."""
    try:
        config = broker.topic(topic).config
    except TopicNotFound:
        return _Absent(DENIED, for_good=True)
    except RocketqError as error:
        if not error.retryable:
            raise
        return _Absent(error.message)
    return Place(topic, broker, config.read_queues, chosen) if config.perm & Perm.READ else None


def _deny(places: Collection[Place], broker: str) -> bool:
    """Whether all brokers that have a topic say themselves that its record does not name this one."""
    try:
        records = [place.broker.topic(place.topic).config.brokers for place in places]
    except RocketqError:
        # Not known for now: it is asked again with the next look.
        return False
    return bool(records) and all(record and broker not in record for record in records)


def _topics(
    connection: Connection, subscription: Subscription, named: Collection[TopicOnBroker]
) -> list[str]:
    """Return the selected topics; of a pattern also those that only the checkpoint still names."""
    if isinstance(subscription, SubscribedPattern):
        listed = {*connection.routes.topics().topics, *(topic for topic, _ in named)}
        matching = (topic for topic in listed if re.fullmatch(subscription.pattern, topic))
        # A pattern never means the topics that brokers keep for themselves.
        return sorted(topic for topic in matching if not is_reserved_topic(topic))
    return sorted(subscription.topics if isinstance(subscription, Subscribed) else subscription.queues)


def _routes(connection: Connection, topics: Collection[str]) -> dict[str, TopicRoute | None]:
    """Ask for the routes of all topics; None for one that has none."""
    routes = connection.routes
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

    return in_parallel({topic: asker(topic) for topic in topics})


def _brokers(topic: str, route: TopicRoute | None, named: Iterable[TopicOnBroker]) -> set[str]:
    """Return who should have the topic: by its route, by its record, by the checkpoint."""
    of_route = () if route is None else (*(data.broker for data in route.queues), *route.holders)
    return {*of_route, *(broker for one, broker in named if one == topic)}


def _chosen_queues(subscription: Subscription, topic: str, broker: str) -> frozenset[int] | None:
    """Return which queues of a broker are selected: None for all, an empty set for none."""
    if not isinstance(subscription, Assigned):
        return None
    by_broker = subscription.queues[topic]
    return by_broker.get(broker, by_broker.get(None)) or frozenset()


def _replica(route: TopicRoute, broker: str, connection: Connection) -> BrokerApi | None:
    try:
        return replica_of(route, broker, connection.transport)
    except BrokerUnreachable:
        return None


def _has_master(route: TopicRoute, broker: str) -> bool:
    data = route.broker(broker)
    return data is not None and data.master is not None


def require_assigned(subscription: Subscription, topology: Topology) -> None:
    """Raise InvalidConfiguration for an assigned queue that does not exist."""
    if not isinstance(subscription, Assigned):
        return
    places = topology.places.values()
    for topic, by_broker in subscription.queues.items():
        for broker, queues in by_broker.items():
            if broker is not None and (topic, broker) in topology.away:
                continue
            on = {place.broker.broker: place.read_queues for place in places if place.topic == topic}
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
