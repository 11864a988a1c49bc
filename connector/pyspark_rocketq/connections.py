"""One set of connections for each process and list of NameServers.

Spark reuses its Python workers from batch to batch, so what a module holds survives: routes
stay known and sockets open. Transport and RouteCache make themselves new after a fork.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from rocketq.broker_api import BrokerApi
from rocketq.config import TransportConfig
from rocketq.errors import RocketqError
from rocketq.routes import RouteCache
from rocketq.transport import Transport

log = logging.getLogger("pyspark_rocketq")

#: A call that a query cannot do without is repeated this long: a broker restarts in less.
PERSIST_MS: Final = 60_000
#: Connections kept for each server: a query's held requests and those beside them.
POOL_SIZE: Final = 96
_PAUSE_FIRST_MS: Final = 50
_PAUSE_MAX_MS: Final = 2_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Connection:
    """What reaches a cluster: pooled sockets and cached routes."""

    transport: Transport
    routes: RouteCache

    def broker(self, name: str, address: str) -> BrokerApi:
        return BrokerApi(self.transport, name, address)


_connections: dict[tuple[str, ...], Connection] = {}
_lock = threading.Lock()


def connection_to(nameservers: tuple[str, ...]) -> Connection:
    """Return this process's connection to the cluster of these NameServers."""
    with _lock:
        found = _connections.get(nameservers)
        if found is None:
            transport = Transport(TransportConfig(pool_size=POOL_SIZE))
            found = _connections[nameservers] = Connection(transport, RouteCache(nameservers, transport))
        return found


def persist(call: Callable[[], T], what: str, persist_ms: int = PERSIST_MS) -> T:
    """Make a call that may be repeated until it is answered, at most `persist_ms` long.

    Only errors marked retryable are waited out; the last one is raised when time is over.
    """
    give_up_at = time.monotonic() + persist_ms / 1000
    pause_ms = _PAUSE_FIRST_MS
    while True:
        try:
            return call()
        except RocketqError as error:
            if not error.retryable or time.monotonic() >= give_up_at:
                raise
            log.warning("%s: %s Trying again in %d ms.", what, error.message, pause_ms)
            # Jitter, so that the tasks of one job do not all come back at once.
            time.sleep(pause_ms * random.uniform(0.5, 1.0) / 1000)
            pause_ms = min(2 * pause_ms, _PAUSE_MAX_MS)
