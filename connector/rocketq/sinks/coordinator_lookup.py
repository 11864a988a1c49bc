"""Finds the broker that coordinates a sink, or elects one for a new sink.

A coordinator is a broker group: what it has decided is in the group's log, so its present master decides.
The client asks the masters of all groups of the cluster. A group without one counts as not answering.
  * If a broker knows the sink, the broker that it names is the coordinator. Only the coordinator knows
    what was decided, so a coordinator that is away is waited for and never replaced.
  * If no broker knows the sink, and every broker has answered, the client elects one by the sink's hash
    and registers it with all other brokers first, with the elected one last. Two clients that elect at the
    same moment choose the same broker.

A broker that joins the cluster later learns the coordinator from the next client that looks the sink up,
and from staged sends.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from rocketq.admin.live_masters import NO_MASTER, LiveMasters
from rocketq.errors import BrokerUnreachable, RocketqError
from rocketq.errors.sink_errors import (
    CoordinatorConflict,
    CoordinatorUnknown,
    CoordinatorUnreachable,
    SinkNotFound,
)
from rocketq.net.broker_api import BrokerApi
from rocketq.net.route_cache import RouteCache
from rocketq.net.transport import Transport
from rocketq.protocol.hashing import hash_value

log = logging.getLogger("rocketq.sinks.sink")

#: Brokers asked at the same time.
ASKED_AT_ONCE: Final = 16


def elected_coordinator(sink: str, brokers: Sequence[str]) -> str:
    """Return the broker that every client elects for a new sink; `brokers` is not empty."""
    ranked = sorted(brokers)
    return ranked[hash_value(sink.encode()) % len(ranked)]


def named_coordinator(
    sink: str, claims: Mapping[str, str], unaware: Sequence[str], unanswered: Mapping[str, str]
) -> str | None:
    """Return the coordinator that the brokers name; None if all are there and none knows the sink.

    `claims` maps a broker to the coordinator that it names, `unaware` are the brokers that do not know the
    sink, `unanswered` maps a broker that did not answer to the reason.

    Raises CoordinatorConflict, CoordinatorUnknown.
    """
    named = set(claims.values())
    if len(named) > 1:
        raise CoordinatorConflict(sink, dict(claims))
    if named:
        return named.pop()
    if unanswered or not unaware:
        raise CoordinatorUnknown(sink, dict(unanswered))
    return None


class Coordinators:
    """Finds the coordinators of one cluster's sinks."""

    def __init__(self, transport: Transport, routes: RouteCache) -> None:
        self._masters = LiveMasters(transport, routes)

    def brokers(self) -> list[BrokerApi]:
        """Return the masters of all groups, by name; raise BrokerUnreachable if a group has only slaves."""
        return self._masters.of_every_group()

    def find(self, sink: str, *, elect: bool = False) -> BrokerApi:
        """Return the sink's coordinator; a new sink is given one with `elect`, else it is SinkNotFound.

        Raises CoordinatorConflict, CoordinatorUnknown, CoordinatorUnreachable, BrokerUnreachable.
        """
        masters, leaderless = self._masters.by_group()
        brokers = {api.broker: api for api in masters}
        claims, unaware, unanswered = self._ask_all(sink, masters)
        unanswered |= dict.fromkeys(leaderless, NO_MASTER)
        coordinator = named_coordinator(sink, claims, unaware, unanswered)
        if coordinator is None:
            if not elect:
                raise SinkNotFound(sink, ", ".join(sorted(unaware)))
            return self._elect(sink, brokers)
        if coordinator not in brokers:
            why = NO_MASTER if coordinator in leaderless else "no NameServer knows where it is"
            raise CoordinatorUnreachable(sink, coordinator, why)
        for broker in unaware:
            self._register_if_possible(sink, coordinator, brokers[broker])
        return brokers[coordinator]

    def _ask_all(
        self, sink: str, brokers: Sequence[BrokerApi]
    ) -> tuple[dict[str, str], list[str], dict[str, str]]:
        claims: dict[str, str] = {}
        unaware: list[str] = []
        unanswered: dict[str, str] = {}

        def ask(api: BrokerApi) -> None:
            try:
                claims[api.broker] = api.sink(sink).coordinator
            except SinkNotFound:
                unaware.append(api.broker)
            except BrokerUnreachable as error:
                unanswered[api.broker] = f"{error.facts['address']}: {error.facts['why']}"
            except RocketqError as error:
                if not error.retryable:
                    raise
                unanswered[api.broker] = error.message

        with ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="rocketq-sinks") as threads:
            for _ in threads.map(ask, brokers):
                continue
        return claims, unaware, unanswered

    def _elect(self, sink: str, brokers: Mapping[str, BrokerApi]) -> BrokerApi:
        chosen = elected_coordinator(sink, list(brokers))
        claims: dict[str, str] = {}
        # The coordinator is last: it can decide nothing before every other broker knows that it decides.
        # If the client stops halfway, the next client finds the elected name on the brokers that have it.
        for api in [*(api for name, api in brokers.items() if name != chosen), brokers[chosen]]:
            claims[api.broker] = api.register_sink(sink, chosen).coordinator
            if claims[api.broker] != chosen:
                raise CoordinatorConflict(sink, claims)
        return brokers[chosen]

    def _register_if_possible(self, sink: str, coordinator: str, broker: BrokerApi) -> None:
        try:
            known = broker.register_sink(sink, coordinator).coordinator
        except RocketqError as error:
            if not error.retryable:
                raise
            log.warning("Broker %s could not be told who coordinates sink %s: %s", broker.broker, sink, error)
            return
        if known != coordinator:
            raise CoordinatorConflict(sink, {coordinator: coordinator, broker.broker: known})
