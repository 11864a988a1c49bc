"""How the replica of a broker is put together: from its settings, and from what its disk has.

What the disk promised and does not hold gives the replica a new incarnation, before anybody hears of it
(`replication.incarnation`).
"""

from __future__ import annotations

import uuid
from typing import Final

import structlog

from rocketq.clock import Clock
from rocketq.errors.replication_errors import NotMaster
from rocketq.model import SendStatus
from rocketq.net.transport import Transport
from rocketq_broker.config import BrokerConfig
from rocketq_broker.meta_register.etcd_register import EtcdRegister
from rocketq_broker.meta_register.meta_register import MetaRegister
from rocketq_broker.meta_register.nameserver_register import NameServerRegister
from rocketq_broker.replication.group_record import Member, ReplicaId
from rocketq_broker.replication.incarnation import DiskFacts, broken_promise
from rocketq_broker.replication.replica import Replica, Standing
from rocketq_broker.replication.slave_role import Confirmed
from rocketq_broker.replication_service.log_healer import LogHealer
from rocketq_broker.replication_service.member_ranges import MemberRanges
from rocketq_broker.replication_service.ports import Observer
from rocketq_broker.replication_service.replica_driver import Policy
from rocketq_broker.replication_service.service import ReplicationService
from rocketq_broker.replication_service.store_log import StoreLog
from rocketq_broker.store.replica.operations import ReplicaHooks, ReplicaOperations
from rocketq_broker.store.store import MessageStore

#: One call to the register, over all its rounds.
REGISTER_TIMEOUT_MS: Final = 2_000

log = structlog.get_logger("rocketq.broker.replica")


class LogHooks:
    """What the store tells a replica: it is opened before there is one."""

    def __init__(self) -> None:
        self._service: ReplicationService | None = None

    def hooks(self, config: BrokerConfig) -> ReplicaHooks:
        """Return the hooks to open a store with."""
        refusal = NotMaster(config.name, 0)
        return ReplicaHooks(self.log_moved, refusal, self.late_status)

    def tell(self, service: ReplicationService) -> None:
        self._service = service

    def log_moved(self) -> None:
        if self._service is not None:
            self._service.log_moved()

    def late_status(self) -> SendStatus:
        return SendStatus.SLAVE_NOT_AVAILABLE if self._service is None else self._service.status.late_status()


class RegisterOfGroup:
    """The register of a broker's group, with the connections to it."""

    def __init__(self, config: BrokerConfig) -> None:
        self._transport = Transport()
        self._nameservers: NameServerRegister | None = None
        if config.etcd:
            self.register: MetaRegister = EtcdRegister(
                self._transport, config.etcd, config.cluster, config.name, timeout_ms=REGISTER_TIMEOUT_MS
            )
        else:
            self._nameservers = NameServerRegister(
                self._transport, config.nameservers, config.cluster, config.name,
                timeout_ms=REGISTER_TIMEOUT_MS,
            )  # fmt: skip
            self.register = self._nameservers

    def close(self) -> None:
        self._transport.close()
        if self._nameservers is not None:
            self._nameservers.close()


def replica_at_work(
    config: BrokerConfig,
    store: MessageStore,
    address: str,
    register: MetaRegister,
    observer: Observer,
    hooks: LogHooks,
    clock: Clock,
) -> ReplicationService:
    """Return the service of a store that was opened with `hooks`; it is not started yet."""
    operations = store.replica
    if operations is None:
        raise ValueError("the store was opened without a replica")
    incarnation = _incarnation(config, operations)
    kept = operations.kept
    replica = Replica(
        Member(ReplicaId(config.broker_id, incarnation), address),
        Standing(kept.group, kept.epoch),
        Confirmed(min(kept.confirmed, operations.view().held), kept.confirmed_epoch),
    )
    stands = config.role == "auto"
    founds = f"{config.name}-{uuid.uuid4().hex[:12]}" if stands else ""
    service = ReplicationService(
        replica,
        Policy(founds, config.in_sync_needed, stands, config.replication, config.catch_up_bytes_per_s),
        StoreLog(operations), register, observer, clock=clock,
    )  # fmt: skip
    hooks.tell(service)
    return service


def healer_of(
    config: BrokerConfig, store: MessageStore, service: ReplicationService, clock: Clock
) -> LogHealer | None:
    """Return what heals the log of a replica; it is not started yet."""
    if store.replica is None:
        return None
    return LogHealer(store.replica, lambda: service.status.replica, MemberRanges(), clock, config.scrub_ms)


def _incarnation(config: BrokerConfig, operations: ReplicaOperations) -> str:
    kept, found = operations.kept, operations.found
    facts = DiskFacts(
        kept.incarnation, config.flush, found.was_stopped_cleanly, found.same_boot, found.log_end,
        kept.confirmed, bool(found.doubt),
    )  # fmt: skip
    why, incarnation = broken_promise(facts), kept.incarnation
    if why:
        incarnation = uuid.uuid4().hex
        log.warning("new_incarnation", broker=config.name, number=config.broker_id, why=why)
    operations.begin_life(incarnation)
    return incarnation
