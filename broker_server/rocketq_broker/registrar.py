"""Makes this broker known to every NameServer and keeps it known.

NameServers never talk to each other, so each is told everything by a worker
thread of its own: one that is dead or slow delays no other. A worker is a small loop:

    not registered, or topics changed  ->  register in full (RegisterRequest)
    heartbeat due                      ->  heartbeat with the data version only;
                                           "not registered" -> register in full at once
    no answer                          ->  try again at the next heartbeat
    stopping                           ->  unregister, once, if it was registered

(RocketMQ: BrokerController.registerBrokerAll, QUERY_DATA_VERSION.) A topic change
wakes all workers at once. Threads rather than the broker's loop, so that a
heartbeat still leaves in time while the loop is busy with large batches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import structlog

from rocketq.errors import RocketqError
from rocketq.nameserver_api import NameServerApi
from rocketq.protocol.model import TopicConfig
from rocketq.protocol.route import (
    BrokerIdentity,
    DataVersion,
    HeartbeatRequest,
    RegisterRequest,
    UnregisterRequest,
)
from rocketq.transport import Transport

#: One call to a NameServer; all of its answers come from memory.
CALL_TIMEOUT_MS: Final = 2_000
#: What unregistering may add to a shutdown.
STOP_TIMEOUT_MS: Final = 1_000
log = structlog.get_logger("rocketq.broker.registrar")


class TopicTable(Protocol):
    """What is registered: the store, as the registrar sees it."""

    @property
    def data_version(self) -> DataVersion: ...

    def topics(self) -> tuple[TopicConfig, ...]: ...


@dataclass(frozen=True, slots=True)
class RegistrationStatus:
    """How this broker stands with one NameServer."""

    nameserver: str
    registered: bool
    #: Why the last call failed; empty if it did not.
    problem: str = ""


class Registrar:
    """One worker thread for each NameServer, from `start` to `stop`."""

    def __init__(
        self,
        identity: BrokerIdentity,
        nameservers: Sequence[str],
        table: TopicTable,
        *,
        heartbeat_ms: int,
        lease_ms: int,
        transport: Transport | None = None,
    ) -> None:
        self._transport = transport or Transport()
        self._workers = [
            _Worker(address, identity, table, heartbeat_ms, lease_ms, self._transport)
            for address in dict.fromkeys(nameservers)
        ]

    def start(self) -> None:
        for worker in self._workers:
            worker.thread.start()

    def topics_changed(self) -> None:
        """Have every NameServer told at once; any thread may call this."""
        for worker in self._workers:
            worker.wake(changed=True)

    def statuses(self) -> tuple[RegistrationStatus, ...]:
        return tuple(worker.status for worker in self._workers)

    @property
    def ready(self) -> bool:
        """Whether clients can find this broker: registered somewhere, or nowhere to register."""
        return not self._workers or any(worker.status.registered for worker in self._workers)

    def begin_stop(self) -> None:
        """Have every worker unregister and end; does not wait."""
        for worker in self._workers:
            worker.wake(stopping=True)

    def stop(self) -> None:
        """Unregister everywhere, all at the same time, and wait for that, briefly."""
        self.begin_stop()
        for worker in self._workers:
            if worker.thread.ident is not None:
                worker.thread.join(STOP_TIMEOUT_MS / 1000)
        # Cuts the calls of those that are still waiting for a dead NameServer.
        self._transport.close()


class _Worker:
    """Keeps the registration with one NameServer."""

    def __init__(
        self,
        address: str,
        identity: BrokerIdentity,
        table: TopicTable,
        heartbeat_ms: int,
        lease_ms: int,
        transport: Transport,
    ) -> None:
        self.status = RegistrationStatus(address, registered=False)
        self.thread = threading.Thread(target=self._run, name=f"registrar {address}", daemon=True)
        self._identity = identity
        self._table = table
        self._heartbeat_ms = heartbeat_ms
        self._lease_ms = lease_ms
        self._api = NameServerApi(transport, address, timeout_ms=CALL_TIMEOUT_MS)
        self._condition = threading.Condition()
        self._changed = True
        self._stopping = False

    def wake(self, *, changed: bool = False, stopping: bool = False) -> None:
        with self._condition:
            self._changed |= changed
            self._stopping |= stopping
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                if not (self._changed or self._stopping):
                    self._condition.wait(self._heartbeat_ms / 1000)
                stopping, changed, self._changed = self._stopping, self._changed, False
            if stopping:
                self._farewell()
                return
            self._attempt(self._register if changed or not self.status.registered else self._heartbeat)

    def _attempt(self, act: Callable[[], None]) -> None:
        """Do one round and note how it went; a failure is met again at the next heartbeat."""
        try:
            act()
        except RocketqError as error:
            if not self.status.problem:
                log.warning("nameserver_unreachable", nameserver=self._api.address, why=str(error))
            # After an error its table may be empty or stale: the next round registers in full.
            self.status = RegistrationStatus(self._api.address, registered=False, problem=str(error))
        else:
            if self.status.problem or not self.status.registered:
                log.info("registered", nameserver=self._api.address, broker=self._identity.broker)
            self.status = replace(self.status, registered=True, problem="")

    def _register(self) -> None:
        # The version before the topics: were a topic to change between the two, an older version
        # with newer topics is corrected by the next registration, the reverse would stay.
        version = self._table.data_version
        self._api.register(RegisterRequest(self._identity, version, self._table.topics(), self._lease_ms))

    def _heartbeat(self) -> None:
        if not self._api.heartbeat(HeartbeatRequest(self._identity, self._table.data_version)).registered:
            self._register()

    def _farewell(self) -> None:
        if not self.status.registered:
            return
        try:
            self._api.unregister(UnregisterRequest(self._identity))
        except RocketqError as error:
            # The lease will end it.
            log.info("not_unregistered", nameserver=self._api.address, why=str(error))
        self.status = RegistrationStatus(self._api.address, registered=False)
