"""One set of connections for each process and list of NameServers.

Spark reuses its Python workers from batch to batch, so what a module holds survives: routes
stay known and sockets open. Transport and RouteCache make themselves new after a fork.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

from rocketq.config import TransportConfig
from rocketq.errors import BrokerUnreachable, RouteNotFound
from rocketq.net.broker_api import BrokerApi, replica_of
from rocketq.net.read_replicas import ReadReplicas
from rocketq.net.route_cache import RouteCache
from rocketq.net.transport import Transport

#: (topic, broker name): what one broker serves of one topic.
TopicOnBroker = tuple[str, str]

#: Connections kept for each server: a query's held requests and those beside them.
POOL_SIZE: Final = 96


@dataclass(frozen=True, slots=True)
class Connection:
    """What reaches a cluster: pooled sockets, cached routes, and who is read from."""

    transport: Transport
    routes: RouteCache
    replicas: ReadReplicas

    def broker(self, name: str, address: str) -> BrokerApi:
        return BrokerApi(self.transport, name, address)

    def locate(self, topic: str, broker: str) -> BrokerApi:
        """Return where a broker is, by the topic's route or, if that lacks it, as it is registered.

        Raises BrokerUnreachable for one that no NameServer knows to be alive: it is away, and so may be the
        only broker of a topic that has no route for the time being. Raises NameServersUnreachable.
        """
        try:
            return replica_of(self.routes.route(topic), broker, self.transport)
        except (RouteNotFound, BrokerUnreachable):
            address = self.routes.live_addresses().get(broker)
        if address is None:
            raise BrokerUnreachable(
                broker, "no known address", "no NameServer knows it to be alive", sent=False
            )
        return self.broker(broker, address)


_connections: dict[tuple[str, ...], Connection] = {}
_lock = threading.Lock()


def connection_to(nameservers: tuple[str, ...]) -> Connection:
    """Return this process's connection to the cluster of these NameServers."""
    with _lock:
        found = _connections.get(nameservers)
        if found is None:
            transport = Transport(TransportConfig(pool_size=POOL_SIZE))
            found = _connections[nameservers] = Connection(
                transport, RouteCache(nameservers, transport), ReadReplicas(transport)
            )
        return found
