"""Who coordinates a sink: found among the brokers, or elected once and for all.

Every broker of the cluster is asked. If one knows the sink, the coordinator it names is it,
always: what was decided is known there and nowhere else, so a coordinator that is away is
waited for and never replaced. If none knows the sink, every broker must have said so; then the
sink's hash picks one of them, which is told last, after all others. Two writers that elect
at the same moment pick the same.

A broker that joins later is told by whoever looks the sink up next, and by staged sends.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from rocketq.admin.live_masters import LiveMasters
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


def elected(sink: str, brokers: Sequence[str]) -> str:
    """Return the broker that every writer would pick for a new sink; `brokers` is not empty."""
    ranked = sorted(brokers)
    return ranked[hash_value(sink.encode()) % len(ranked)]


def settled(
    sink: str, claims: Mapping[str, str], ignorant: Sequence[str], silent: Mapping[str, str]
) -> str | None:
    """Return the coordinator that the brokers name; None if all are there and none knows the sink.

    `claims` is broker to the coordinator it names, `ignorant` who knows no such sink, `silent` who
    did not answer, and why. Raises CoordinatorConflict, CoordinatorUnknown.
    """
    named = set(claims.values())
    if len(named) > 1:
        raise CoordinatorConflict(sink, dict(claims))
    if named:
        return named.pop()
    if silent or not ignorant:
        raise CoordinatorUnknown(sink, dict(silent))
    return None


class Coordinators:
    """Finds coordinators in one cluster. Holds nothing but what is shared."""

    def __init__(self, transport: Transport, routes: RouteCache) -> None:
        self._masters = LiveMasters(transport, routes)

    def brokers(self) -> list[BrokerApi]:
        """Return the live masters, by name."""
        return self._masters.apis()

    def find(self, sink: str, *, elect: bool = False) -> BrokerApi:
        """Return the sink's coordinator; a new sink is given one with `elect`, else it is SinkNotFound.

        Raises CoordinatorConflict, CoordinatorUnknown, CoordinatorUnreachable, BrokerUnreachable.
        """
        brokers = {api.broker: api for api in self.brokers()}
        claims, ignorant, silent = self._asked(sink, list(brokers.values()))
        coordinator = settled(sink, claims, ignorant, silent)
        if coordinator is None:
            if not elect:
                raise SinkNotFound(sink, ", ".join(sorted(ignorant)))
            return self._elect(sink, brokers)
        if coordinator not in brokers:
            raise CoordinatorUnreachable(sink, coordinator, "no NameServer knows where it is")
        for broker in ignorant:
            self._tell_if_possible(sink, coordinator, brokers[broker])
        return brokers[coordinator]

    def _asked(
        self, sink: str, brokers: Sequence[BrokerApi]
    ) -> tuple[dict[str, str], list[str], dict[str, str]]:
        claims: dict[str, str] = {}
        ignorant: list[str] = []
        silent: dict[str, str] = {}

        def ask(api: BrokerApi) -> None:
            try:
                claims[api.broker] = api.sink(sink).coordinator
            except SinkNotFound:
                ignorant.append(api.broker)
            except BrokerUnreachable as error:
                silent[api.broker] = f"{error.facts['address']}: {error.facts['why']}"
            except RocketqError as error:
                if not error.retryable:
                    raise
                silent[api.broker] = error.message

        with ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="rocketq-sinks") as threads:
            for _ in threads.map(ask, brokers):
                continue
        return claims, ignorant, silent

    def _elect(self, sink: str, brokers: Mapping[str, BrokerApi]) -> BrokerApi:
        chosen = elected(sink, list(brokers))
        claims: dict[str, str] = {}
        # The coordinator last: it can decide nothing before every other broker knows that it decides.
        # If this ends halfway, the next to ask finds its name on those that were told.
        for api in [*(api for name, api in brokers.items() if name != chosen), brokers[chosen]]:
            claims[api.broker] = api.register_sink(sink, chosen).coordinator
            if claims[api.broker] != chosen:
                raise CoordinatorConflict(sink, claims)
        return brokers[chosen]

    def _tell_if_possible(self, sink: str, coordinator: str, broker: BrokerApi) -> None:
        try:
            known = broker.register_sink(sink, coordinator).coordinator
        except RocketqError as error:
            if not error.retryable:
                raise
            log.warning("Broker %s could not be told who coordinates sink %s: %s", broker.broker, sink, error)
            return
        if known != coordinator:
            raise CoordinatorConflict(sink, {coordinator: coordinator, broker.broker: known})
