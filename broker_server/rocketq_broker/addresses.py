"""Where the other brokers of the cluster are: asked of the NameServers, and kept until a call fails."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from rocketq.errors import BrokerUnreachable, NameServersUnreachable, RocketqError
from rocketq.nameserver_api import NameServerApi
from rocketq.protocol.route import MASTER_ID
from rocketq.transport import Transport

#: All answers of a NameServer come from memory.
_CALL_TIMEOUT_MS = 2_000


class Addresses:
    """The masters of one cluster, by broker name; safe to use from any thread."""

    def __init__(self, cluster: str, nameservers: Sequence[str], transport: Transport) -> None:
        self._cluster = cluster
        self._nameservers = [
            NameServerApi(transport, address, timeout_ms=_CALL_TIMEOUT_MS) for address in nameservers
        ]
        self._known: dict[str, str] = {}
        self._lock = threading.Lock()

    def of(self, broker: str) -> str:
        """Return the address of a broker group's master; raise BrokerUnreachable if nobody knows one."""
        known = self._known.get(broker)
        if known is not None:
            return known
        with self._lock:
            tried = self._ask()
        if broker not in self._known:
            why = "; ".join(f"{address}: {error}" for address, error in tried.items())
            why = why or "no NameServer lists it as alive"
            raise BrokerUnreachable(broker, "no known address", why, sent=False)
        return self._known[broker]

    def forget(self, broker: str) -> None:
        """Ask again next time: it did not answer, so it may have moved."""
        self._known.pop(broker, None)

    def _ask(self) -> dict[str, str]:
        """Take the view of the first NameServer that answers; return why the others before it did not."""
        tried: dict[str, str] = {}
        for nameserver in self._nameservers:
            try:
                brokers = nameserver.cluster().brokers
            except NameServersUnreachable as error:
                tried[nameserver.address] = error.message
                continue
            except RocketqError as error:
                tried[nameserver.address] = str(error)
                continue
            identities = [live.identity for live in brokers]
            self._known = {
                each.broker: each.address
                for each in identities
                if each.cluster == self._cluster and each.broker_id == MASTER_ID
            }
            return {}
        return tried
