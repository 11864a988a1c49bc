"""One set of connections for each process and list of NameServers.

Spark reuses its Python workers from batch to batch, so what a module holds survives: routes
stay known and sockets open. Transport and RouteCache make themselves new after a fork.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

from rocketq.broker_api import BrokerApi
from rocketq.config import TransportConfig
from rocketq.routes import RouteCache
from rocketq.transport import Transport

#: Connections kept for each server: a query's held requests and those beside them.
POOL_SIZE: Final = 96


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
