"""Threads that follow the routes of topics: a pull consumer reads every queue there is, or those it chose.

One thread for each topic waits for its route to change, and begins with new queues and brokers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from rocketq.config import PullConsumerConfig
from rocketq.consuming.fetching.fetch_threads import Fetching
from rocketq.consuming.fetching.start_offsets import begin_offsets
from rocketq.errors import Closed, InvalidConfiguration, OffsetOutOfRange, RocketqError
from rocketq.model import MessageQueue
from rocketq.net.broker_api import replica_of
from rocketq.net.route_cache import RouteCache
from rocketq.net.transport import Transport
from rocketq.protocol.documents.nameserver import TopicRoute

log = logging.getLogger("rocketq.consuming.pull_consumer")


class ReadQueues:
    """Has a consumer fetch all queues of its topics, also those that appear later; or the queues it chose."""

    def __init__(
        self,
        transport: Transport,
        routes: RouteCache,
        topics: Sequence[str],
        group: str | None,
        config: PullConsumerConfig,
        fetching: Fetching,
        chosen: Collection[MessageQueue] | None = None,
    ) -> None:
        self._transport, self._routes, self._topics = transport, routes, topics
        self._group, self._config, self._fetching = group, config, fetching
        #: None: all queues. Guarded by `_choosing`, as is beginning with queues.
        self._chosen = None if chosen is None else frozenset(chosen)
        self._choosing = threading.Lock()
        #: Queues of the first routes. `start` speaks of them; later ones are read from their first message.
        self._initial: frozenset[MessageQueue] = frozenset()

    def start(self) -> None:
        """Find where to begin and start the threads; raise if no queue can be begun with."""
        routes = self._routes_with(self._chosen)
        self._initial = frozenset(q for route in routes.values() for q in route.read_queues())
        failed = [error for route in routes.values() for error in self._begin_queues(route)]
        if failed and not any(True for _ in self._fetching.prefetch.states()):
            raise failed[0]
        for topic in self._topics:
            self._fetching.start_thread(("router", topic), partial(self._follow_route, topic))

    def choose(self, chosen: Collection[MessageQueue] | None) -> None:
        """Read these queues from now on, None for all, each that was read before from where it stands.

        Raises InvalidConfiguration for a queue that no topic has; then nothing has changed.
        """
        wanted = None if chosen is None else frozenset(chosen)
        routes = self._routes_with(wanted)
        with self._choosing:
            self._chosen = wanted
            with self._fetching.changed:
                read = {state.queue for state in self._fetching.prefetch.states()}
                for queue in read - wanted if wanted is not None else ():
                    self._fetching.prefetch.remove(queue)
                self._fetching.changed.notify_all()
        for route in routes.values():
            # What cannot be begun with yet is begun with later, by the thread of the topic.
            self._begin_queues(route)

    def _routes_with(self, chosen: frozenset[MessageQueue] | None) -> dict[str, TopicRoute]:
        """Return the routes of the topics; raise InvalidConfiguration if a chosen queue is in none."""
        routes = {topic: self._routes.route(topic) for topic in self._topics}
        absent = _absent(chosen, routes)
        for topic in sorted({queue.topic for queue in absent}):
            # The queue may be newer than the route that is known here.
            self._routes.invalidate(topic)
            routes[topic] = self._routes.route(topic)
        for queue in _absent(chosen, routes):
            why = "it is no queue that this consumer can read: no route of its topics has it now"
            hint = f"rocketq topic describe {queue.topic} shows the queues of a topic."
            raise InvalidConfiguration("queues", str(queue), why, hint=hint)
        return routes

    def _missing(self, route: TopicRoute) -> list[MessageQueue]:
        """Return the queues of a route that are to be read, and are not read yet."""
        return [
            queue
            for queue in route.read_queues()
            if queue not in self._fetching.prefetch and (self._chosen is None or queue in self._chosen)
        ]

    def _follow_route(self, topic: str) -> None:
        route = self._routes.route(topic)
        while not self._fetching.is_stopping:
            missing = self._missing(route)
            if missing and self._begin_queues(route):
                self._fetching.wait(self._config.retry_ms)
            hold_ms = self._config.retry_ms if missing else self._config.hold_ms
            route = self._routes.wait_for_change(topic, route, hold_ms)
            self._fetching.is_well(("router", topic))

    def _begin_queues(self, route: TopicRoute) -> list[RocketqError]:
        """Begin with the queues of a route that are new here; return what stood in the way."""
        failed: list[RocketqError] = []
        with self._choosing:
            by_broker: dict[str, list[MessageQueue]] = {}
            for queue in self._missing(route):
                by_broker.setdefault(queue.broker, []).append(queue)
            for broker, queues in by_broker.items():
                try:
                    self._begin_on_broker(route, broker, queues)
                except (Closed, OffsetOutOfRange):
                    raise
                except RocketqError as error:
                    log.warning("Cannot begin with %s on %s yet: %s", route.topic, broker, error)
                    failed.append(error)
        return failed

    def _begin_on_broker(self, route: TopicRoute, broker: str, queues: Sequence[MessageQueue]) -> None:
        api = replica_of(route, broker, self._transport, self._routes.invalidate)
        for is_new in (False, True):
            chosen = [q for q in queues if (q not in self._initial) is is_new]
            if chosen:
                found = begin_offsets(api, route.topic, chosen, self._config, self._group, is_new=is_new)
                self._fetching.begin(found)


def _absent(chosen: frozenset[MessageQueue] | None, routes: Mapping[str, TopicRoute]) -> list[MessageQueue]:
    """Return the chosen queues that no route has, sorted."""
    return sorted((chosen or frozenset()).difference(*(route.read_queues() for route in routes.values())))
