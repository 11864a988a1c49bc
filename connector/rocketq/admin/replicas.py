"""The replicas of broker groups: how they are, and who of them is master."""

from __future__ import annotations

from rocketq.errors import NotFound
from rocketq.net.replication_api import ReplicationApi
from rocketq.net.route_cache import RouteCache
from rocketq.net.transport import Transport
from rocketq.protocol.documents.nameserver import MASTER_ID
from rocketq.protocol.documents.replication import ReplicationStatus

#: An election or a handover waits for the register, and for the slaves.
COMMAND_TIMEOUT_MS = 10_000


class ReplicaAdmin:
    """What an operator asks of replicas. Thread-safe. Every method raises NameServersUnreachable."""

    def __init__(self, transport: Transport, routes: RouteCache) -> None:
        self._transport = transport
        self._routes = routes

    def addresses(self, broker: str) -> dict[int, str]:
        """Return the live processes of a group by id, the master's being 0; raise NotFound."""
        found = {
            live.identity.broker_id: live.identity.address
            for live in self._routes.cluster().brokers
            if live.identity.broker == broker
        }
        if not found:
            raise NotFound("broker", broker)
        return found

    def status(self, broker: str) -> ReplicationStatus:
        """Return a group as its master sees it, else as a slave does. Raises NotFound, BrokerUnreachable."""
        addresses = self.addresses(broker)
        return self._api(broker, addresses[min(addresses)]).status()

    def promote(self, broker: str, number: int, *, unclean: bool = False) -> int:
        """Make a replica master; return the epoch that has begun. Raises ElectionRefused.

        With `unclean` it becomes master although it may lack messages that are confirmed: those are lost.
        """
        return self._api(broker, self._address(broker, number)).promote(unclean=unclean)

    def hand_over(self, broker: str, successor: int = 0) -> int:
        """Have the master give its office to a replica that is in sync, or to any; return the next epoch."""
        return self._api(broker, self._address(broker, MASTER_ID)).hand_over(successor)

    def _address(self, broker: str, number: int) -> str:
        addresses = self.addresses(broker)
        if number not in addresses:
            what = "its master" if number == MASTER_ID else f"slave {number}"
            raise NotFound("replica", f"{broker}: {what}")
        return addresses[number]

    def _api(self, broker: str, address: str) -> ReplicationApi:
        return ReplicationApi(self._transport, broker, address, timeout_ms=COMMAND_TIMEOUT_MS)
