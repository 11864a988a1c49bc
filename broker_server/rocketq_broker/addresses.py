"""Where the other brokers of the cluster are: asked of the NameServers, and kept until a call fails."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from rocketq.errors import BrokerUnreachable, RocketqError
from rocketq.routes import RouteCache
from rocketq.topics import TopicAdmin
from rocketq.transport import Transport


class Addresses:
    """The masters of one cluster, by broker name; safe to use from any thread."""

    def __init__(self, cluster: str, nameservers: Sequence[str], transport: Transport) -> None:
        self._cluster = cluster
        self._topics = TopicAdmin(transport, RouteCache(nameservers, transport)) if nameservers else None
        self._known: dict[str, str] = {}
        self._lock = threading.Lock()

    def of(self, broker: str) -> str:
        """Return the address of a broker group's master; raise BrokerUnreachable if nobody knows one."""
        known = self._known.get(broker)
        if known is not None:
            return known
        why = "no NameServer lists it as alive"
        with self._lock:
            if self._topics is not None:
                try:
                    self._known = {each.broker: each.address for each in self._topics.masters(self._cluster)}
                except RocketqError as error:
                    why = error.message
            known = self._known.get(broker)
        if known is None:
            raise BrokerUnreachable(broker, "no known address", why, sent=False)
        return known

    def forget(self, broker: str) -> None:
        """Ask again next time: it did not answer, so it may have moved."""
        self._known.pop(broker, None)
