"""A producer as a member of its producer group: every live broker knows that it is there.

One thread, `rocketq-producer GROUP`, sends a heartbeat to each live broker when the producer starts, and
again every HEARTBEAT_MS (RocketMQ: heartbeatBrokerInterval). A broker lists the producer until its goodbye,
or until its session ends there. Nothing that is sent depends on it: a broker that does not answer is told
again soon.
"""

from __future__ import annotations

import logging
import threading
from importlib.metadata import version
from typing import Final

from rocketq.admin.live_masters import LiveMasters
from rocketq.clock import Clock
from rocketq.errors import RocketqError
from rocketq.net.broker_api import BrokerApi
from rocketq.net.route_cache import RouteCache
from rocketq.net.transport import Transport
from rocketq.protocol.documents.groups import HEARTBEAT_MS, ProducerHeartbeat
from rocketq.protocol.rules.reserved_names import check_user_group

log = logging.getLogger("rocketq.producing.producer_sessions")

#: The pause before the brokers are told again when one of them has not answered.
RETRY_MS: Final = 3_000
#: How long a broker may take for a heartbeat, or for the goodbye of a producer that closes.
CALL_TIMEOUT_MS: Final = 1_000


class ProducerSessions:
    """The sessions of one producer with all live brokers, from its making to `close`."""

    def __init__(
        self, transport: Transport, routes: RouteCache, group: str, client_id: str, clock: Clock
    ) -> None:
        """Raise InvalidName or ReservedName for a name that no producer group may have."""
        check_user_group(group)
        self.group, self.client_id = group, client_id
        self._transport = transport
        self._masters = LiveMasters(transport, routes)
        self._beat = ProducerHeartbeat(clock.now_us(), language="python", version=version("rocketq"))
        self._closing = threading.Event()
        #: The brokers that know the producer, and those that are in trouble, which is logged once.
        self._joined: set[str] = set()
        self._troubled: set[str] = set()
        self._thread = threading.Thread(target=self._run, name=f"rocketq-producer {group}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Say goodbye to every broker that knows the producer; one that does not answer finds out itself."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._thread.join()
        for api in self._live_brokers():
            if api.broker not in self._joined:
                continue
            try:
                api.producer_leaves(self.group, self.client_id)
            except RocketqError as error:
                log.info("Broker %s was not told that %s has left: %s", api.broker, self.client_id, error)

    def _run(self) -> None:
        pause_ms = 0
        while not self._closing.wait(pause_ms / 1000):
            answers = [self._beat_at(api) for api in self._live_brokers()]
            pause_ms = HEARTBEAT_MS if answers and all(answers) else RETRY_MS

    def _live_brokers(self) -> list[BrokerApi]:
        """Return calls to the live brokers; none if no NameServer says which these are."""
        try:
            masters = self._masters.identities().values()
        except RocketqError as error:
            self._note("the NameServers", error)
            return []
        self._troubled.discard("the NameServers")
        return [
            BrokerApi(self._transport, each.broker, each.address, timeout_ms=CALL_TIMEOUT_MS)
            for each in masters
        ]

    def _beat_at(self, api: BrokerApi) -> bool:
        """Send a heartbeat; return whether the broker has taken it."""
        try:
            api.producer_heartbeat(self.group, self.client_id, self._beat)
        except RocketqError as error:
            self._note(f"broker {api.broker}", error)
            return False
        self._joined.add(api.broker)
        self._troubled.discard(f"broker {api.broker}")
        return True

    def _note(self, who: str, error: RocketqError) -> None:
        """Log a trouble when it begins."""
        if who not in self._troubled and not self._closing.is_set():
            self._troubled.add(who)
            log.warning("Producer group %s is not known to %s: %s", self.group, who, error)
