"""One NameServer: the route table, the held calls that wait for its changes, and the scan for dead brokers.

Everything runs on the loop's thread. The same step that changes the table wakes the held calls, so none
misses a change. The table is in memory only: a NameServer that restarts learns everything again from the
brokers' next heartbeats.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

import structlog

from rocketq.clock import Clock, SystemClock
from rocketq.errors import InvalidConfiguration
from rocketq.errors.registration_errors import BrokerNameTaken
from rocketq.http_server.longpoll.long_poll import LongPoll
from rocketq.protocol.documents.nameserver import (
    BrokerIdentity,
    ClusterView,
    HeartbeatAnswer,
    HeartbeatRequest,
    RegisterAnswer,
    RegisterRequest,
    UnregisterRequest,
)
from rocketq_nameserver.config import NameServerConfig
from rocketq_nameserver.kv_config import KvConfig
from rocketq_nameserver.meta_register.acceptor import Acceptor
from rocketq_nameserver.meta_register.acceptor_files import AcceptorFiles
from rocketq_nameserver.registration import check_identity, check_registration
from rocketq_nameserver.route_table import RouteTable

log = structlog.get_logger("rocketq.nameserver")

STOPPING: Final = "it is shutting down"

#: What calls wait for that watch the topic list; the others wait for a topic, and none has an empty name.
TOPIC_LIST: Final = ""


@dataclass(slots=True)
class Tallies:
    """What has happened so far, for /metrics."""

    registrations: int = 0
    refusals: int = 0
    heartbeats: int = 0
    unregistrations: int = 0
    expiries: int = 0


class NameServer:
    """Made before the loop runs; `start` and `stop` are the ends of the server's lifespan."""

    def __init__(self, config: NameServerConfig, clock: Clock | None = None) -> None:
        """Raises InvalidConfiguration if the key-value configuration or a register cannot be read."""
        self.config = config
        self.clock: Clock = clock or SystemClock()
        self.table = RouteTable(
            config.name or f"{config.host}:{config.port}",
            # Wall time: higher than any version given before a restart.
            first_version=self.clock.now_us(),
            support_acting_master=config.support_acting_master,
        )
        self.waiting = LongPoll[str](self.clock, config.held_watches_max, "changes")
        self.kv = KvConfig(config.data_dir)
        try:
            self.acceptor_files = _acceptor_files(config)
        except InvalidConfiguration:
            self.kv.close()
            raise
        self.acceptor = Acceptor(self.acceptor_files) if self.acceptor_files is not None else None
        self.tallies = Tallies()
        self._stopping = False
        self._scanning: asyncio.Task[None] | None = None

    def listens_on(self, address: str) -> None:
        """Take the name from the address, if the configuration gives none."""
        if not self.config.name:
            self.table.server = address.partition("://")[2]

    def start(self) -> None:
        self._scanning = asyncio.get_running_loop().create_task(self._scan_forever())

    def begin_shutdown(self) -> None:
        """Answer the calls that wait; hold none any more."""
        self._stopping = True
        self.waiting.release_all()

    def stop(self) -> None:
        self.begin_shutdown()
        if self._scanning is not None:
            self._scanning.cancel()
        self.kv.close()
        if self.acceptor_files is not None:
            self.acceptor_files.close()

    async def problems(self) -> dict[str, str]:
        """Return what keeps it from being ready; empty when it is."""
        return {"nameserver": STOPPING} if self._stopping else {}

    # --- what brokers say ---------------------------------------------------------------

    def register(self, request: RegisterRequest) -> RegisterAnswer:
        """Take a full registration; raise InvalidName, InvalidRequest, Conflict or BrokerNameTaken."""
        check_registration(request)
        known = self.table.broker_count
        try:
            answer = self.table.register(request, self._now_ms())
        except BrokerNameTaken as error:
            self.tallies.refusals += 1
            log.warning("name_is_taken", **_named(request.identity), holder=error.facts["address"])
            raise
        self.tallies.registrations += 1
        if self.table.broker_count > known:
            identity = request.identity
            log.info("broker_came", **_named(identity), topics=len(request.topics))
        self._announce()
        return answer

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatAnswer:
        """Renew a lease, or ask for a full registration."""
        self.tallies.heartbeats += 1
        return HeartbeatAnswer(self.table.server, self.table.heartbeat(request, self._now_ms()))

    def unregister(self, request: UnregisterRequest) -> None:
        """Take note that a broker leaves; raise InvalidName or InvalidRequest."""
        check_identity(request.identity)
        self.table.unregister([request.identity])
        self.tallies.unregistrations += 1
        log.info("broker_left", **_named(request.identity))
        self._announce()

    def set_write_permission(self, broker: str, writable: bool) -> int:
        """Return how many topics the group has; raise NotFound."""
        topics = self.table.set_write_permission(broker, writable)
        log.info("write_permission", broker=broker, writable=writable, topics=topics)
        self._announce()
        return topics

    def scan(self) -> tuple[BrokerIdentity, ...]:
        """Remove the brokers whose lease has ended, and tell who watches; return them."""
        dead = self.table.expire(self._now_ms())
        for identity in dead:
            log.warning("broker_expired", **_named(identity))
        self.tallies.expiries += len(dead)
        if dead:
            self._announce()
        return dead

    def cluster(self) -> ClusterView:
        return self.table.cluster(self._now_ms())

    def _now_ms(self) -> int:
        return self.clock.monotonic_ms()

    def _announce(self) -> None:
        changes = self.table.take_changes()
        self.waiting.changed([*changes.topics, TOPIC_LIST] if changes.listed else changes.topics)

    async def _scan_forever(self) -> None:
        while True:
            await asyncio.sleep(self.config.scan_interval_ms / 1000)
            self.scan()


def _acceptor_files(config: NameServerConfig) -> AcceptorFiles | None:
    if config.register_dir is None:
        return None
    return AcceptorFiles(config.register_dir, is_new=config.register_is_new)


def _named(identity: BrokerIdentity) -> dict[str, object]:
    return {
        "broker": identity.broker,
        "broker_id": identity.broker_id,
        "address": identity.address,
        "cluster": identity.cluster,
    }
