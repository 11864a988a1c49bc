"""Where topics live: what brokers register and what NameServers answer.

The tables are RocketMQ's (`RouteInfoManager`): a topic has one QueueData for
each broker group that serves it, a broker group one BrokerData with the
address of each replica. An address is an HTTP base URL without a path.
"""

from __future__ import annotations

import msgspec

from rocketq.model import Int64, MessageQueue, Perm, TopicConfig
from rocketq.protocol.json_codec import prepare_documents

MASTER_ID = 0


class DataVersion(msgspec.Struct, frozen=True):
    """The version of a broker's topic table (RocketMQ: DataVersion); any difference is another version."""

    state_version: Int64 = 0
    timestamp_ms: Int64 = 0
    counter: Int64 = 0

    def next(self, now_ms: int) -> DataVersion:
        return DataVersion(self.state_version, now_ms, self.counter + 1)


class BrokerIdentity(msgspec.Struct, frozen=True):
    """One broker process: a replica of the group `broker`; id 0 is the master.

    `process` is a random text that the process chose when it started.
    """

    cluster: str
    broker: str
    broker_id: Int64
    address: str
    process: str = ""


class QueueData(msgspec.Struct, frozen=True):
    """What one broker group serves of one topic."""

    broker: str
    read_queues: Int64
    write_queues: Int64
    perm: Int64
    incarnation: str = ""


class BrokerData(msgspec.Struct, frozen=True):
    """The replicas of one broker group: broker id to address."""

    cluster: str
    broker: str
    addresses: dict[int, str]

    @property
    def master(self) -> str | None:
        return self.addresses.get(MASTER_ID)


class TopicRoute(msgspec.Struct, frozen=True):
    """Everything a client needs to use one topic.

    `version` grows whenever this NameServer's answer for the topic changes; it
    is only comparable with versions from the same NameServer (`server`).

    `holders` are the broker groups that hold the topic by its record (`TopicConfig.brokers`), sorted:
    what all registered brokers of the topic say together. A holder without QueueData is not
    registered with the topic: it is away, or lost the topic. Empty: no record says.
    """

    topic: str
    version: Int64
    queues: tuple[QueueData, ...]
    brokers: tuple[BrokerData, ...]
    server: str = ""
    holders: tuple[str, ...] = ()

    def queue_data(self, broker: str) -> QueueData | None:
        return next((q for q in self.queues if q.broker == broker), None)

    def broker(self, name: str) -> BrokerData | None:
        return next((b for b in self.brokers if b.broker == name), None)

    def incarnation(self, broker: str) -> str:
        return next((q.incarnation for q in self.queues if q.broker == broker), "")

    def write_queues(self) -> list[MessageQueue]:
        """Queues a producer may choose: writable, and the master is there (TopicPublishInfo)."""
        masters = {b.broker for b in self.brokers if b.master is not None}
        return [
            MessageQueue(self.topic, q.broker, n)
            for q in sorted(self.queues, key=lambda q: q.broker)
            if q.perm & Perm.WRITE and q.broker in masters
            for n in range(q.write_queues)
        ]

    def read_queues(self) -> list[MessageQueue]:
        """Queues a consumer reads, in the order of broker name and queue id."""
        return [
            MessageQueue(self.topic, q.broker, n)
            for q in sorted(self.queues, key=lambda q: q.broker)
            if q.perm & Perm.READ
            for n in range(q.read_queues)
        ]


# --- calls to a NameServer ---------------------------------------------------------


class RegisterRequest(msgspec.Struct, frozen=True):
    """A broker's full registration; it is also its heartbeat (REGISTER_BROKER).

    `store` names the data directory that the process has locked: two live processes never have the same.
    `held_since_us` is when a NameServer first gave this process its name; 0 before that.
    """

    identity: BrokerIdentity
    data_version: DataVersion
    topics: tuple[TopicConfig, ...]
    lease_ms: Int64 = 12_000
    ha_address: str = ""
    enable_acting_master: bool = False
    store: str = ""
    held_since_us: Int64 = 0


class RegisterAnswer(msgspec.Struct, frozen=True):
    """What a broker learns by registering: its master, if it is a slave, and this NameServer's name."""

    server: str
    master_address: str = ""
    ha_address: str = ""


class HeartbeatRequest(msgspec.Struct, frozen=True):
    """The cheap heartbeat: renews the lease if the topics are unchanged (QUERY_DATA_VERSION)."""

    identity: BrokerIdentity
    data_version: DataVersion


class HeartbeatAnswer(msgspec.Struct, frozen=True):
    """`registered` False asks for a full registration."""

    server: str
    registered: bool


class UnregisterRequest(msgspec.Struct, frozen=True):
    """A broker that goes away in good order (UNREGISTER_BROKER)."""

    identity: BrokerIdentity


class WritePermissionRequest(msgspec.Struct, frozen=True):
    """Wipe (False) or restore (True) the write permission of a broker group's topics, here only."""

    writable: bool


class WritePermissionAnswer(msgspec.Struct, frozen=True):
    topics: Int64


class LiveBroker(msgspec.Struct, frozen=True):
    """A broker of the cluster view; `age_ms` since it was last heard of."""

    identity: BrokerIdentity
    age_ms: Int64
    lease_ms: Int64
    data_version: DataVersion
    topics: Int64


class ClusterView(msgspec.Struct, frozen=True):
    """All that one NameServer knows of who is alive: cluster to broker names, and each broker."""

    server: str
    clusters: dict[str, tuple[str, ...]]
    brokers: tuple[LiveBroker, ...]


class TopicList(msgspec.Struct, frozen=True):
    """All topics of the cluster; `version` grows when a topic appears or goes."""

    server: str
    version: Int64
    topics: tuple[str, ...]


prepare_documents(__name__)
