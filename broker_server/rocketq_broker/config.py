"""The broker's settings: one frozen value, checked when it is made, built only in `__main__` or a test.

Sizes are in bytes, times in milliseconds. Nothing here is read from the
environment, and nothing can be changed while the broker runs: paths and
addresses that a caller could change at run time have been how others were
broken into.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from rocketq.errors import InvalidConfiguration
from rocketq.http_server.admission import AcceptedHosts, accepted_hosts
from rocketq.model import DEFAULT_QUEUES, QUEUE_COUNT_MAX, FlushMode, ReplicationMode, is_legal_name
from rocketq.protocol.documents.groups import SESSION_TIMEOUT_MS, SESSION_TIMEOUT_MS_MIN
from rocketq.protocol.documents.nameserver import MASTER_ID
from rocketq.protocol.sizes import INFLATED_BYTES_MAX
from rocketq_broker.store.config import RetentionPolicy, StoreConfig, TransactionPolicy

KIB: Final = 1024
MIB: Final = 1024 * KIB

#: RocketMQ's broker port.
DEFAULT_PORT: Final = 10911
#: What a replica may be: see `BrokerConfig.role`.
ROLES: Final = ("auto", "slave")
#: The slowest copy of a log, in bytes each second.
CATCH_UP_MIN: Final = 64 * KIB
#: What `min_in_sync` is under synchronous replication unless the operator says otherwise.
MIN_IN_SYNC: Final = 2
REPLICA_NUMBER_MAX: Final = 99


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """One broker process. With the id 0 it is the group `name` by itself; from 1 on it is a replica of it."""

    name: str
    data_dir: Path
    cluster: str = "default"
    #: 0: this broker replicates nothing. From 1 on: the number of this replica, for ever.
    broker_id: int = MASTER_ID
    #: A replica takes part in elections (auto), or becomes master by an operator's command only (slave).
    role: str = "auto"
    #: Whether a message is confirmed when the in-sync replicas hold it (sync), or the master alone (async).
    #: It counts for a group that this broker founds; the record of the group has it from then on.
    replication: ReplicationMode = ReplicationMode.SYNC
    #: How many replicas, the master included, must hold a message before it is confirmed; None: 2 under
    #: synchronous replication. It counts for a group that this broker founds, as well.
    min_in_sync: int | None = None
    #: How often a replica reads its whole log to find damage, which other members heal; 0: never.
    scrub_ms: int = 7 * 86_400_000
    #: Whether a master sends consumers that lag far to a slave (RocketMQ: slaveReadEnable).
    slave_read_enable: bool = True
    #: The share of this machine's memory, in percent, beyond which a consumer lags far.
    access_message_in_memory_max_ratio: int = 40
    #: How fast a replica that is not in sync copies the log of its master; 0: as fast as it can.
    catch_up_bytes_per_s: int = 0
    #: Members of the etcd cluster that keeps the group's record; none: the NameServers keep it.
    etcd: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    #: The base URL under which others reach this broker; empty: the address it listens on.
    advertise: str = ""
    #: Further names under which this broker is called (`rocketq.http_server.admission`).
    allowed_hosts: tuple[str, ...] = ()
    nameservers: tuple[str, ...] = ()
    flush: FlushMode = FlushMode.ASYNC
    segment_bytes: int = 1 << 30
    auto_create_topics: bool = True
    #: A group is created by its first heartbeat or commit (RocketMQ: autoCreateSubscriptionGroup).
    auto_create_groups: bool = True
    #: The longest session of a group's member, and that of a member that asks for none.
    session_timeout_ms: int = SESSION_TIMEOUT_MS
    #: Queues of a topic that a send creates (RocketMQ: defaultTopicQueueNums).
    default_queues: int = DEFAULT_QUEUES

    #: How far away a delivery time may be (RocketMQ: timerMaxDelaySec).
    delay_ms_max: int = 3 * 86_400_000

    request_bytes_max: int = 16 * MIB
    #: What the batches of one request may inflate to; a reader relies on the protocol's own bound.
    inflated_bytes_max: int = INFLATED_BYTES_MAX
    #: The largest body of one message, unless its topic says otherwise (RocketMQ: maxMessageSize).
    message_bytes_max: int = 4 * MIB
    #: Batches of one send: checking one costs some 70 µs on the loop, however small it is.
    send_batches_max: int = 1024
    #: Bodies of all sends that are being received, checked or written, together.
    in_flight_bytes_max: int = 256 * MIB
    #: Answers that clients have not taken yet, together; a slow reader holds its own until it is cut.
    outgoing_bytes_max: int = 512 * MIB
    #: What decoded pulls, finds and compressed sends may inflate at once, and how long one waits for room.
    decoded_bytes_max: int = 512 * MIB
    decoded_wait_ms_max: int = 2_000
    held_calls_max: int = 20_000

    #: What is kept, and when a disk counts as full (`store.retention`).
    retention: RetentionPolicy = field(default_factory=RetentionPolicy)
    #: When undecided transactions are checked, and how many there may be.
    transactions: TransactionPolicy = field(default_factory=TransactionPolicy)
    #: Messages of one queue that a group may have leased one by one.
    leased_messages_max: int = 20_000
    topics_max: int = 10_000
    queues_max: int = 50_000
    #: Files of the store that may be open at once, however many queues there are.
    open_files_max: int = 512
    #: Sends wait at most this long for the log, in bytes and in time, before SYSTEM_BUSY.
    queued_bytes_max: int = 256 * MIB
    queue_wait_ms_max: int = 2_000
    #: A sync that takes longer is answered FLUSH_DISK_TIMEOUT.
    flush_timeout_ms: int = 5_000

    #: A stage that was quiet this long is asked about; undecided for so long it is given up.
    sink_check_ms: int = 30_000
    stage_ttl_ms: int = 6 * 3600 * 1000
    #: How long a commit waits for the participants, and after what time one is told again.
    sink_commit_wait_ms: int = 5_000
    sink_retry_ms: int = 1_000

    heartbeat_ms: int = 3_000
    #: How long a NameServer believes in this broker without hearing of it.
    lease_ms: int = 12_000
    #: Wait while another live process has this broker's name, instead of ending.
    wait_for_name: bool = False
    #: Below this much free disk space the broker is no longer ready.
    free_disk_bytes_min: int = 64 * MIB

    def __post_init__(self) -> None:
        for kind, name in (("Broker", self.name), ("Cluster", self.cluster)):
            if not is_legal_name(name):
                raise InvalidConfiguration(
                    kind.lower(), name, "is not a legal name", hint="Use 1 to 127 of A-Z a-z 0-9 _ - % |."
                )
        _check_range("broker_id", self.broker_id, 0, REPLICA_NUMBER_MAX)
        _check_range("min_in_sync", self.in_sync_needed, 1, REPLICA_NUMBER_MAX)
        if self.replication is ReplicationMode.ASYNC and self.in_sync_needed > 1:
            raise InvalidConfiguration(
                "min_in_sync", self.in_sync_needed, "under asynchronous replication nobody waits for slaves",
                hint="Leave --min-in-sync away, or give --replication sync.",
            )  # fmt: skip
        _check_range("scrub_ms", self.scrub_ms, 0, 366 * 86_400_000)
        _check_range("access_message_in_memory_max_ratio", self.access_message_in_memory_max_ratio, 0, 100)
        if self.catch_up_bytes_per_s:
            _check_range("catch_up_bytes_per_s", self.catch_up_bytes_per_s, CATCH_UP_MIN, 1 << 40)
        if self.role not in ROLES:
            raise InvalidConfiguration("role", self.role, f"the roles are {' and '.join(ROLES)}")
        if self.is_replica and not (self.nameservers or self.etcd):
            raise InvalidConfiguration(
                "broker_id", self.broker_id, "a replica needs the register of its group",
                hint="Name the NameServers that keep it (--nameservers), or an etcd cluster (--etcd).",
            )  # fmt: skip
        _check_range("port", self.port, 0, 65_535)
        _check_range("segment_bytes", self.segment_bytes, 4 * KIB, 1 << 40)
        _check_range("default_queues", self.default_queues, 1, QUEUE_COUNT_MAX)
        _check_range("delay_ms_max", self.delay_ms_max, 0, 10 * 366 * 86_400_000)
        _check_range("request_bytes_max", self.request_bytes_max, KIB, 64 * MIB)
        _check_range("inflated_bytes_max", self.inflated_bytes_max, KIB, INFLATED_BYTES_MAX)
        _check_range("message_bytes_max", self.message_bytes_max, 1, self.inflated_bytes_max)
        _check_range("send_batches_max", self.send_batches_max, 1, 1 << 20)
        _check_range("in_flight_bytes_max", self.in_flight_bytes_max, self.request_bytes_max, 1 << 40)
        _check_range("outgoing_bytes_max", self.outgoing_bytes_max, MIB, 1 << 40)
        _check_range("decoded_bytes_max", self.decoded_bytes_max, MIB, 1 << 40)
        _check_range("decoded_wait_ms_max", self.decoded_wait_ms_max, 0, 60_000)
        _check_range("held_calls_max", self.held_calls_max, 1, 1 << 24)
        _check_range("session_timeout_ms", self.session_timeout_ms, SESSION_TIMEOUT_MS_MIN, 3_600_000)
        _check_range("sink_check_ms", self.sink_check_ms, 1, 86_400_000)
        _check_range("stage_ttl_ms", self.stage_ttl_ms, self.sink_check_ms, 30 * 86_400_000)
        _check_range("sink_commit_wait_ms", self.sink_commit_wait_ms, 0, 30_000)
        _check_range("sink_retry_ms", self.sink_retry_ms, 10, 600_000)
        _check_range("heartbeat_ms", self.heartbeat_ms, 10, 600_000)
        _check_range("lease_ms", self.lease_ms, 2 * self.heartbeat_ms, 3_600_000)
        _check_range("free_disk_bytes_min", self.free_disk_bytes_min, 0, 1 << 50)
        self.store_config()
        for setting, addresses in (("nameservers", self.nameservers), ("etcd", self.etcd)):
            for address in addresses:
                _check_address(setting, address)
        if self.advertise:
            _check_address("advertise", self.advertise)
        elif self.nameservers and _is_wildcard(self.host):
            raise InvalidConfiguration(
                "host", self.host, "nobody can reach a broker under this address",
                hint="Say under which address it is reached: --advertise http://HOST:PORT.",
            )  # fmt: skip
        self.hosts()

    @property
    def is_replica(self) -> bool:
        """Whether this broker is one of several replicas of its group."""
        return self.broker_id != MASTER_ID

    @property
    def in_sync_needed(self) -> int:
        """How many replicas must hold a message before it is confirmed."""
        if self.min_in_sync is not None:
            return self.min_in_sync
        return MIN_IN_SYNC if self.replication is ReplicationMode.SYNC else 1

    def hosts(self) -> AcceptedHosts:
        """Return what this broker answers to; raise InvalidConfiguration."""
        return accepted_hosts(self.host, self.advertise, self.allowed_hosts)

    def store_config(self) -> StoreConfig:
        """Return the settings of this broker's store; raise InvalidConfiguration."""
        return StoreConfig(
            directory=self.data_dir,
            broker=self.name,
            flush=self.flush,
            segment_bytes=self.segment_bytes,
            retention=self.retention,
            transactions=self.transactions,
            leased_messages_max=self.leased_messages_max,
            topics_max=self.topics_max,
            queues_max=self.queues_max,
            open_files_max=self.open_files_max,
            queued_bytes_max=self.queued_bytes_max,
            queue_wait_ms_max=self.queue_wait_ms_max,
            flush_timeout_ms=self.flush_timeout_ms,
        )


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidConfiguration(name, value, f"must be from {low} to {high}")


def _check_address(name: str, address: str) -> None:
    """An address is an HTTP base URL without a path."""
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.path in ("", "/")
        usable = usable and not parts.query and not parts.fragment and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise InvalidConfiguration(
            name, address, "is not an HTTP base URL", hint="Write it as http://HOST:PORT."
        )


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
