"""Which masters are alive: the NameServers are asked, and say it of every broker group of the cluster."""

from __future__ import annotations

from typing import Final

from rocketq.errors import BrokerUnreachable, NotFound
from rocketq.net.broker_api import BrokerApi
from rocketq.net.route_cache import RouteCache
from rocketq.net.transport import Transport
from rocketq.protocol.documents.nameserver import MASTER_ID, BrokerIdentity

NO_MASTER: Final = "its group has no master at the moment"


def without_master(group: str) -> BrokerUnreachable:
    """Return the error of a call that needs the master of a broker group of which only slaves are alive."""
    return BrokerUnreachable(group, "no known address", NO_MASTER, sent=False)


class LiveMasters:
    """The masters that the NameServers list at the moment of each call. Thread-safe.

    A broker that stopped without notice is listed until its lease ends. Every method raises
    NameServersUnreachable when no NameServer answers.
    """

    def __init__(self, transport: Transport, routes: RouteCache) -> None:
        self._transport = transport
        self._routes = routes

    def identities(self) -> dict[str, BrokerIdentity]:
        """Return the live masters; the key is the name of the broker group."""
        alive = (live.identity for live in self._routes.cluster().brokers)
        masters = {identity.broker: identity for identity in alive if identity.broker_id == MASTER_ID}
        return dict(sorted(masters.items()))

    def by_group(self, cluster: str | None = None) -> tuple[list[BrokerApi], list[str]]:
        """Return calls to each live master, by name, and the groups of which only slaves are alive.

        Those of one cluster if it is named.
        """
        alive = [
            live.identity
            for live in self._routes.cluster().brokers
            if cluster is None or live.identity.cluster == cluster
        ]
        masters = {each.broker: each for each in alive if each.broker_id == MASTER_ID}
        leaderless = sorted({each.broker for each in alive} - masters.keys())
        return [self.api(each) for _, each in sorted(masters.items())], leaderless

    def apis(self, cluster: str | None = None) -> list[BrokerApi]:
        """Return calls to each live master, by name; to those of one cluster if it is named."""
        return self.by_group(cluster)[0]

    def of_every_group(self) -> list[BrokerApi]:
        """Return calls to each live master, by name; raise BrokerUnreachable for a group with slaves only."""
        masters, leaderless = self.by_group()
        if leaderless:
            raise without_master(leaderless[0])
        return masters

    def named(self, broker: str) -> BrokerApi:
        """Return calls to the master of a broker group; raise NotFound if none is alive."""
        identity = self.identities().get(broker)
        if identity is None:
            raise NotFound("broker", broker)
        return self.api(identity)

    def api(self, identity: BrokerIdentity) -> BrokerApi:
        """Return calls to the broker process with this identity."""
        return BrokerApi(self._transport, identity.broker, identity.address)
