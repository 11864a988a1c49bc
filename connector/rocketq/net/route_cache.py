"""The routes a client knows, and the NameServers it learns them from.

One NameServer is picked at random and kept while it answers; when it does not,
the next is asked. A route is asked for again when it is older than 30 s or was
declared stale by whoever failed with it. There is no thread: a caller that
finds a route old renews it, while others go on with the old one. All who ask
for a stale route wait for the caller that renews it.

A route stays in the cache. A stale route is used only if no NameServer answers, or
none knows the topic, since one that has just restarted knows no topic yet (RocketMQ:
MQClientInstance). Only `forget` drops a route, when the topic's own brokers say that
it does not exist.

Route versions of two NameServers do not compare, so a waiting call remembers which
NameServer gave its version.
"""

from __future__ import annotations

import difflib
import logging
import os
import random
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from rocketq.clock import Clock, SystemClock
from rocketq.errors import (
    InvalidConfiguration,
    NameServersUnreachable,
    RemoteError,
    RouteNotFound,
)
from rocketq.net.nameserver_api import NameServerApi
from rocketq.net.transport import Transport
from rocketq.protocol.documents.nameserver import BrokerIdentity, ClusterView, TopicList, TopicRoute
from rocketq.protocol.rules.reserved_names import check_name

log = logging.getLogger("rocketq.net.route_cache")

DEFAULT_PORT: Final = 9876
DEFAULT_NAMESERVER: Final = f"http://127.0.0.1:{DEFAULT_PORT}"
REFRESH_MS: Final = 30_000
#: How long a NameServer may take to renew a route while the cached one could serve.
RENEWAL_TIMEOUT_MS: Final = 1_000
#: If no NameServer answered, use cached routes for this long, then ask again.
UNREACHABLE_PAUSE_MS: Final = 2_000

T = TypeVar("T")


def nameserver_addresses(given: str | Sequence[str]) -> tuple[str, ...]:
    """Return base URLs from a list or from text with commas or semicolons.

    The scheme may be left out, and so may the port of http: it is that of NameServers.
    """
    parts = given.replace(";", ",").split(",") if isinstance(given, str) else list(given)
    stripped = [part.strip().rstrip("/") for part in parts]
    addresses = [_with_port(part if "://" in part else f"http://{part}") for part in stripped if part]
    if not addresses:
        raise InvalidConfiguration(
            "nameservers", given, "it names no address", hint=f"Give one like {DEFAULT_NAMESERVER}."
        )
    return tuple(dict.fromkeys(addresses))


def _with_port(address: str) -> str:
    scheme, _, rest = address.partition("://")
    # Behind the last bracket: the colons before it are those of an IPv6 address.
    is_bare = "/" not in rest and ":" not in rest.rpartition("]")[2]
    return f"{address}:{DEFAULT_PORT}" if scheme == "http" and rest and is_bare else address


@dataclass(frozen=True, slots=True)
class _Cached:
    """A route, the NameServer that gave it and its version, and when it was last confirmed."""

    route: TopicRoute
    source: str
    confirmed_ms: int
    stale: bool = False


class RouteCache:
    """Routes of topics, renewed on demand. Thread-safe."""

    def __init__(
        self,
        nameservers: str | Sequence[str],
        transport: Transport,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        order = list(nameserver_addresses(nameservers))
        (rng or random.Random()).shuffle(order)
        self.nameservers = tuple(order)
        self._transport = transport
        self._clock = clock or SystemClock()
        self._cached: dict[str, _Cached] = {}
        self._current = 0
        self._pause_until_ms: int | None = None
        self._renew_locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()
        _of_this_process.add(self)

    # --- routes ------------------------------------------------------------------

    def route(self, topic: str) -> TopicRoute:
        """Return the topic's route, asked for again when it is old or stale.

        Raises RouteNotFound, which names the nearest known topic, and
        NameServersUnreachable when there is no cached route to use instead.
        """
        cached = self._cached.get(topic)
        if cached is not None and self._is_fresh(cached):
            return cached.route
        lock = self._renew_lock(topic)
        if not lock.acquire(blocking=cached is None or cached.stale):
            # Somebody is renewing it right now; what is cached serves meanwhile.
            assert cached is not None
            return cached.route
        try:
            current = self._cached.get(topic)
            if current is not None and current is not cached and self._is_fresh(current):
                return current.route
            return self._renewed(topic, current)
        finally:
            lock.release()

    def cached(self, topic: str) -> TopicRoute | None:
        """Return the route that is known, however old, without any call."""
        cached = self._cached.get(topic)
        return cached.route if cached is not None else None

    def is_fresh(self, topic: str) -> bool:
        """Whether `route` would return the topic's route without any call."""
        cached = self._cached.get(topic)
        return cached is not None and self._is_fresh(cached)

    def invalidate(self, topic: str) -> None:
        """Declare the route stale: it failed somebody. The next `route` asks again."""
        with self._lock:
            cached = self._cached.get(topic)
            if cached is not None:
                self._cached[topic] = _Cached(cached.route, cached.source, cached.confirmed_ms, stale=True)

    def forget(self, topic: str) -> None:
        """Drop the route: the brokers it names say there is no such topic."""
        with self._lock:
            self._cached.pop(topic, None)

    def wait_for_route(self, topic: str, wait_ms: int, *, brokers: Collection[str] = ()) -> TopicRoute:
        """Return the route once the topic has one that names all of `brokers`, at most `wait_ms` later.

        Raises RouteNotFound when there is still none; a route that lacks some of `brokers` is returned.
        """
        deadline_ms = self._clock.monotonic_ms() + wait_ms
        since, source = 0, ""
        while True:
            left_ms = max(0, deadline_ms - self._clock.monotonic_ms())
            route, source = self._asked(topic, since, source, left_ms)
            if route is not None and set(brokers) <= {q.broker for q in route.queues}:
                return route
            if left_ms == 0:
                if route is None:
                    raise RouteNotFound(topic, self._nearest(topic))
                return route
            since = 0 if route is None else route.version

    def wait_for_change(self, topic: str, known: TopicRoute, wait_ms: int) -> TopicRoute:
        """Return the route once it differs from `known`, its version aside, or what it is after `wait_ms`.

        Raises NameServersUnreachable; RouteNotFound if there never was a route here.
        """
        deadline_ms = self._clock.monotonic_ms() + wait_ms
        cached = self._cached.get(topic)
        since, source = known.version, ""
        if cached is not None and cached.route == known:
            source = cached.source
        while True:
            left_ms = max(0, deadline_ms - self._clock.monotonic_ms())
            route, source = self._asked(topic, since, source, left_ms)
            if route is not None and _content(route) != _content(known):
                return route
            if left_ms == 0:
                return self._found(topic, route)
            since = 0 if route is None else route.version

    def _found(self, topic: str, route: TopicRoute | None) -> TopicRoute:
        found = route or self.cached(topic)
        if found is None:
            raise RouteNotFound(topic, self._nearest(topic))
        return found

    # --- the cluster -------------------------------------------------------------

    def topics(self) -> TopicList:
        """Return all topics as one NameServer lists them now."""
        return self._ask(lambda server: server.topics())[0]

    def cluster(self) -> ClusterView:
        """Return who is alive, as one NameServer sees it now."""
        return self._ask(lambda server: server.cluster())[0]

    def live_addresses(self) -> dict[str, str]:
        """Return where each broker group is that any NameServer knows to be alive; asks all of them now.

        Of several replicas it is the master, else the one with the lowest id. Use it for a broker
        that a route lacks: one NameServer may not have heard of it yet. Empty when no NameServer answers.
        """
        found: dict[str, BrokerIdentity] = {}
        for server in self.nameservers:
            try:
                view = NameServerApi(self._transport, server, timeout_ms=RENEWAL_TIMEOUT_MS).cluster()
            except (NameServersUnreachable, RemoteError) as error:
                log.info("NameServer %s does not say who is alive: %s", server, error.message)
                continue
            for live in view.brokers:
                known = found.setdefault(live.identity.broker, live.identity)
                if live.identity.broker_id < known.broker_id:
                    found[live.identity.broker] = live.identity
        return {name: identity.address for name, identity in found.items()}

    # --- inside ------------------------------------------------------------------

    def _is_fresh(self, cached: _Cached) -> bool:
        now_ms = self._clock.monotonic_ms()
        if self._pause_until_ms is not None and now_ms < self._pause_until_ms:
            return True
        return not cached.stale and now_ms - cached.confirmed_ms < REFRESH_MS

    def _renewed(self, topic: str, cached: _Cached | None) -> TopicRoute:
        try:
            timeout_ms = None if cached is None else RENEWAL_TIMEOUT_MS
            route, answered = self._asked(topic, None, "", 0, timeout_ms)
            if route is None:
                route = self._known_elsewhere(topic, answered, timeout_ms)
        except NameServersUnreachable as error:
            if cached is None:
                raise
            log.warning("Using the cached route of %s: %s", topic, error.message)
            return cached.route
        if route is not None:
            return route
        if cached is None:
            raise RouteNotFound(topic, self._nearest(topic))
        log.warning("The NameServer knows no route of %s any more; using the cached one.", topic)
        self._keep(topic, cached.route, cached.source)
        return cached.route

    def _known_elsewhere(self, topic: str, answered: str, timeout_ms: int | None) -> TopicRoute | None:
        """Ask the NameServers other than `answered`: one that has just started knows no topic yet."""
        for address in self.nameservers:
            if address == answered:
                continue
            try:
                route = NameServerApi(self._transport, address, timeout_ms=timeout_ms).route(topic)
            except (RouteNotFound, NameServersUnreachable, RemoteError):
                continue
            self._keep(topic, route, address)
            return route
        return None

    def _asked(
        self, topic: str, since: int | None, source: str, wait_ms: int, timeout_ms: int | None = None
    ) -> tuple[TopicRoute | None, str]:
        """Ask for a route; `since` is sent only to `source`, which gave it; 0 is sent to any NameServer."""
        check_name("topic", topic)

        def ask(server: NameServerApi) -> TopicRoute | None:
            held = since if since == 0 or server.address == source else None
            try:
                return server.route(topic, since=held, wait_ms=wait_ms if held is not None else 0)
            except RouteNotFound:
                return None

        route, answered = self._ask(ask, timeout_ms)
        if route is not None:
            self._keep(topic, route, answered)
        return route, answered

    def _keep(self, topic: str, route: TopicRoute, source: str) -> None:
        with self._lock:
            self._cached[topic] = _Cached(route, source, self._clock.monotonic_ms())

    def _ask(self, question: Callable[[NameServerApi], T], timeout_ms: int | None = None) -> tuple[T, str]:
        """Put a question to the current NameServer, else to the others; return the answer and who gave it."""
        tried: dict[str, str] = {}
        first = self._current
        for step in range(len(self.nameservers)):
            index = (first + step) % len(self.nameservers)
            address = self.nameservers[index]
            try:
                answer = question(NameServerApi(self._transport, address, timeout_ms=timeout_ms))
            except NameServersUnreachable as error:
                tried |= error.facts["tried"]
                continue
            except RemoteError as error:
                if not error.retryable:
                    raise
                tried[address] = error.message
                continue
            self._current, self._pause_until_ms = index, None
            return answer, address
        self._pause_until_ms = self._clock.monotonic_ms() + UNREACHABLE_PAUSE_MS
        raise NameServersUnreachable(tried)

    def _nearest(self, topic: str) -> str:
        try:
            known = self.topics().topics
        except NameServersUnreachable:
            # Only the suggestion is missing; the error is still raised.
            return ""
        return next(iter(difflib.get_close_matches(topic, known, n=1)), "")

    def _renew_lock(self, topic: str) -> threading.Lock:
        with self._lock:
            return self._renew_locks.setdefault(topic, threading.Lock())

    def _after_fork(self) -> None:
        # Another thread of the parent may have held a lock at the moment of the fork.
        self._lock = threading.Lock()
        self._renew_locks = {}


def _content(route: TopicRoute) -> tuple[object, ...]:
    return route.queues, route.brokers, route.holders


_of_this_process: weakref.WeakSet[RouteCache] = weakref.WeakSet()


def _renew_all_locks() -> None:
    for cache in list(_of_this_process):
        cache._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all_locks)
