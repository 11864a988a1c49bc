"""Registers this broker with every NameServer, and keeps it registered.

Before the broker serves anything, `claim` asks the NameServers for the broker's name, one after the other, in
the order of their addresses. So two brokers that start at the same moment meet at the first NameServer, and
one of them gets the name. One refusal is enough to give up: the NameServer that refuses knows another live
process with the name, and the others do not know it yet. `claim` skips a NameServer that does not answer.

NameServers do not talk to each other, so the broker tells each of them everything. Each has a worker thread
of its own, so a NameServer that is dead or slow delays no other. A worker is a loop:

    not registered, or topics changed  ->  register in full (RegisterRequest)
    heartbeat due                      ->  heartbeat with the data version only;
                                           "not registered" -> register in full at once
    no answer                          ->  try again at the next heartbeat
    another process has the name       ->  tell the broker, which stops
    stopping                           ->  unregister, once, if it was registered

(RocketMQ: BrokerController.registerBrokerAll, QUERY_DATA_VERSION.) A topic change wakes all workers at once.
The workers are threads, so that a heartbeat leaves in time also while the event loop is busy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import structlog

from rocketq.clock import Clock, SystemClock
from rocketq.errors import RocketqError
from rocketq.errors.registration_errors import BrokerNameTaken
from rocketq.model import TopicConfig
from rocketq.net.nameserver_api import NameServerApi
from rocketq.net.transport import Transport
from rocketq.protocol.documents.nameserver import (
    BrokerIdentity,
    DataVersion,
    HeartbeatRequest,
    RegisterRequest,
    UnregisterRequest,
)

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
    """Whether this broker is registered with one NameServer."""

    nameserver: str
    registered: bool
    #: Why the last call failed; empty if it did not.
    problem: str = ""


class _Registration:
    """What this broker tells every NameServer; any thread may ask for it."""

    def __init__(
        self, identity: BrokerIdentity, table: TopicTable, lease_ms: int, store: str, clock: Clock
    ) -> None:
        self.identity = identity
        self._table = table
        self._lease_ms = lease_ms
        self._store = store
        self._clock = clock
        self._held_since_us = 0

    def full(self) -> RegisterRequest:
        # Read the version before the topics. If a topic changes between the two, the NameServer gets an
        # older version with newer topics, and the next registration corrects that; the reverse would stay.
        version = self._table.data_version
        return RegisterRequest(
            self.identity, version, self._table.topics(), self._lease_ms,
            store=self._store, held_since_us=self._held_since_us,
        )  # fmt: skip

    def heartbeat(self) -> HeartbeatRequest:
        return HeartbeatRequest(self.identity, self._table.data_version)

    def granted(self) -> None:
        """Remember when this process first got its name."""
        self._held_since_us = self._held_since_us or self._clock.now_us()

    def withdrawn(self) -> None:
        """Forget it: this process has given its name back."""
        self._held_since_us = 0


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
        store: str = "",
        on_refused: Callable[[BrokerNameTaken], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`store` names the locked data directory; `on_refused` is called on a worker's thread."""
        self._transport = Transport()
        self._registration = _Registration(identity, table, lease_ms, store, clock or SystemClock())
        self._workers = [
            _Worker(address, self._registration, heartbeat_ms, on_refused, self._transport)
            for address in dict.fromkeys(nameservers)
        ]

    def claim(self) -> None:
        """Ask every NameServer for the broker's name, before `start`; waits for them, some 2 s for each
        that is silent. Raises BrokerNameTaken, and then no NameServer knows of this process.
        """
        try:
            for worker in sorted(self._workers, key=lambda each: each.status.nameserver):
                worker.claim()
        except BrokerNameTaken:
            self.withdraw()
            raise

    def withdraw(self) -> None:
        """Give the name back, if `start` will not be called."""
        for worker in self._workers:
            worker.unregister()
        self._registration.withdrawn()

    def start(self) -> None:
        for worker in self._workers:
            worker.thread.start()

    def take_identity(self, identity: BrokerIdentity) -> None:
        """Register as another replica of the same group: a slave has become master, or a master slave."""
        self._registration.identity = identity
        self.topics_changed()

    def topics_changed(self) -> None:
        """Tell every NameServer at once; any thread may call this."""
        for worker in self._workers:
            worker.wake(changed=True)

    def statuses(self) -> tuple[RegistrationStatus, ...]:
        return tuple(worker.status for worker in self._workers)

    @property
    def ready(self) -> bool:
        """Whether clients can find this broker: registered somewhere, or nowhere to register."""
        return not self._workers or any(worker.status.registered for worker in self._workers)

    def begin_stop(self) -> None:
        """Tell every worker to unregister and end; do not wait."""
        for worker in self._workers:
            worker.wake(stopping=True)

    def stop(self) -> None:
        """Unregister everywhere at the same time, and wait for it at most STOP_TIMEOUT_MS."""
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
        registration: _Registration,
        heartbeat_ms: int,
        on_refused: Callable[[BrokerNameTaken], None] | None,
        transport: Transport,
    ) -> None:
        self.status = RegistrationStatus(address, registered=False)
        self.thread = threading.Thread(target=self._run, name=f"registrar {address}", daemon=True)
        self._registration = registration
        self._heartbeat_ms = heartbeat_ms
        self._on_refused = on_refused
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
                self.unregister()
                return
            try:
                self._attempt(self._register if changed or not self.status.registered else self._heartbeat)
            except BrokerNameTaken as error:
                log.error("name_is_taken", nameserver=self._api.address, why=str(error))
                if self._on_refused is not None:
                    self._on_refused(error)

    def claim(self) -> None:
        """Register once, on the caller's thread, before the worker's own starts; raise BrokerNameTaken."""
        self._attempt(self._register)

    def _attempt(self, act: Callable[[], None]) -> None:
        """Make one call and note its outcome; after a failure the next heartbeat tries again."""
        try:
            act()
        except BrokerNameTaken as error:
            self.status = RegistrationStatus(self._api.address, registered=False, problem=str(error))
            raise
        except RocketqError as error:
            if not self.status.problem:
                log.warning("nameserver_unreachable", nameserver=self._api.address, why=str(error))
            # After an error its table may be empty or stale: the next round registers in full.
            self.status = RegistrationStatus(self._api.address, registered=False, problem=str(error))
        else:
            if self.status.problem or not self.status.registered:
                log.info(
                    "registered", nameserver=self._api.address, broker=self._registration.identity.broker
                )
            self.status = replace(self.status, registered=True, problem="")

    def _register(self) -> None:
        self._api.register(self._registration.full())
        self._registration.granted()

    def _heartbeat(self) -> None:
        if not self._api.heartbeat(self._registration.heartbeat()).registered:
            self._register()

    def unregister(self) -> None:
        """Unregister, if it was registered. An error is only logged: the lease ends anyway."""
        if not self.status.registered:
            return
        try:
            self._api.unregister(UnregisterRequest(self._registration.identity))
        except RocketqError as error:
            log.info("not_unregistered", nameserver=self._api.address, why=str(error))
        self.status = RegistrationStatus(self._api.address, registered=False)
