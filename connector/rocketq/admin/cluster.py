"""The administration of one cluster: the connections, and what operators ask and change by them.

with ClusterAdmin("http://127.0.0.1:9876") as admin:
    admin.groups.progress("billing")
    admin.sinks.summaries()
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rocketq.admin.groups import GroupAdmin
from rocketq.admin.live_masters import LiveMasters
from rocketq.admin.replicas import ReplicaAdmin
from rocketq.admin.sinks import SinkAdmin
from rocketq.admin.topics import TopicAdmin
from rocketq.admin.transactions import TransactionAdmin
from rocketq.config import TransportConfig
from rocketq.errors import NameServersUnreachable
from rocketq.net.nameserver_api import NameServerApi
from rocketq.net.route_cache import RouteCache, nameserver_addresses
from rocketq.net.transport import Transport
from rocketq.protocol.documents.nameserver import ClusterView


@dataclass(frozen=True, slots=True)
class NameServerViews:
    """What each NameServer says of who is alive, by address; and why each of the others did not answer."""

    views: dict[str, ClusterView]
    unreachable: dict[str, str]


class ClusterAdmin:
    """Everything an operator asks of one cluster. Thread-safe; making one calls nobody."""

    def __init__(self, nameservers: str | Sequence[str], transport: TransportConfig | None = None) -> None:
        self.nameservers = nameserver_addresses(nameservers)
        self._transport = Transport(transport)
        routes = RouteCache(self.nameservers, self._transport)
        self.masters = LiveMasters(self._transport, routes)
        self.topics = TopicAdmin(self._transport, routes)
        self.groups = GroupAdmin(self.masters)
        self.sinks = SinkAdmin(self.masters)
        self.replicas = ReplicaAdmin(self._transport, routes)
        self.transactions = TransactionAdmin(self.masters, self._transport)

    def views(self) -> NameServerViews:
        """Ask every NameServer who is alive. Raises NameServersUnreachable if none answers."""
        views: dict[str, ClusterView] = {}
        unreachable: dict[str, str] = {}
        for address in self.nameservers:
            try:
                views[address] = NameServerApi(self._transport, address).cluster()
            except NameServersUnreachable as error:
                unreachable |= error.facts["tried"]
        if not views:
            raise NameServersUnreachable(unreachable)
        return NameServerViews(views, unreachable)

    def set_write_permission(self, broker: str, *, writable: bool) -> dict[str, int]:
        """Wipe or restore a broker's write permission on every NameServer; return each one's topics.

        Raises NameServersUnreachable if one of them does not answer; it can be called again.
        """
        return {
            address: NameServerApi(self._transport, address).set_write_permission(broker, writable).topics
            for address in self.nameservers
        }

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def __enter__(self) -> ClusterAdmin:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
