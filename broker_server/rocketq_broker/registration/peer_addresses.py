"""The names and addresses of the cluster's other brokers, as the NameServers list them.

An address is kept until a call to it fails, or says that it is not the master. NameServers forget a broker
when its lease ends; `was_seen` remembers its name until this process ends.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from rocketq.admin.live_masters import LiveMasters
from rocketq.errors import BrokerUnreachable, RocketqError
from rocketq.net.route_cache import RouteCache
from rocketq.net.transport import Transport


class Addresses:
    """The masters of one cluster, by broker name; safe to use from any thread."""

    def __init__(self, cluster: str, nameservers: Sequence[str], transport: Transport) -> None:
        self._cluster = cluster
        self._masters = LiveMasters(transport, RouteCache(nameservers, transport)) if nameservers else None
        self._known: dict[str, str] = {}
        self._seen: set[str] = set()
        self._lock = threading.Lock()

    def of(self, broker: str) -> str:
        """Return the address of a broker group's master; raise BrokerUnreachable if nobody knows one."""
        known = self._known.get(broker)
        if known is not None:
            return known
        with self._lock:
            problem = self._refresh()
            known = self._known.get(broker)
        if known is None:
            why = problem or "no NameServer lists it as alive"
            raise BrokerUnreachable(broker, "no known address", why, sent=False)
        return known

    def refresh(self) -> str:
        """Ask who is alive, unless another thread is asking; return what went wrong, "" for nothing."""
        if not self._lock.acquire(blocking=False):
            return ""
        try:
            return self._refresh()
        finally:
            self._lock.release()

    def _refresh(self) -> str:
        if self._masters is None:
            return ""
        try:
            masters, leaderless = self._masters.by_group(self._cluster)
        except RocketqError as error:
            return error.message
        self._known = {each.broker: each.address for each in masters}
        self._seen.update(self._known, leaderless)
        return ""

    def was_seen(self, broker: str) -> bool:
        """Whether a NameServer has ever listed this broker group to us, if only a slave of it."""
        return broker in self._seen

    def forget(self, broker: str) -> None:
        """Ask again next time: it did not answer, so it may have moved."""
        self._known.pop(broker, None)
