"""The route table: RocketMQ's tables and rules (RouteInfoManager), as a value; the caller passes the time.

    topic    ──> broker name ──> QueueData            what the broker group serves of the topic
    topic    ──> broker name ──> record               which broker groups hold the topic, as this broker says
    broker   ──> cluster, broker id ──> address       the replicas of the broker group; id 0: master
    cluster  ──> broker names
    (cluster, address) ──> Holder                     who is alive: last heard, lease, DataVersion

Invariants, between any two calls:
  * a topic in the table has at least one QueueData, a group at least one address,
    a cluster at least one group;
  * every QueueData belongs to a group in the table, and every group to one cluster;
  * each address has one lease, so that nothing stays for ever;
  * each lease has one address, so of two processes with one name only one is in the table;
  * whenever a topic's route changes, the topic gets a version that it never had before; the same for
    the topic list. (A broker group that changes only `enable_acting_master` gives new versions, too.)

Versions are taken from one counter that only grows. Its start should be the wall time,
so that a NameServer that starts anew never gives a version it gave before.

Where this table departs from RocketMQ, on purpose:
  * A topic absent from a changed registration is dropped from that broker, so that a deleted
    topic goes away (RocketMQ: deleteTopicWithBrokerRegistration, off by default).
  * RocketMQ refuses an unknown broker id that registers exactly one topic, because it takes that for
    an incremental registration. Ours are always complete, and a young broker has one topic.
  * A broker name that is registered in another cluster is refused; RocketMQ would mix the two.
  * An address that registers under another broker name removes the broker that had the address
    before, which would otherwise stay without a lease.
  * A name has one owner (`ownership`): RocketMQ's table takes whoever registered last.
  * A process unregisters itself only, so that one that leaves late does not remove its successor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from rocketq.errors import Conflict, NotFound
from rocketq.errors.registration_errors import BrokerNameTaken
from rocketq.model import Perm, TopicConfig
from rocketq.protocol.documents.nameserver import (
    MASTER_ID,
    BrokerData,
    BrokerIdentity,
    ClusterView,
    HeartbeatRequest,
    LiveBroker,
    QueueData,
    RegisterAnswer,
    RegisterRequest,
    TopicList,
    TopicRoute,
)
from rocketq_nameserver.ownership import Holder, LapsedProcesses, may_take


@dataclass(frozen=True, slots=True)
class Changes:
    """What a watcher must be told: topics with a changed route; whether the topic list changed."""

    topics: frozenset[str]
    listed: bool


@dataclass(slots=True)
class _Group:
    """One broker name and its replicas."""

    cluster: str
    addresses: dict[int, str]
    #: Whether the last replica that registered allows a slave to stand in for the master.
    acting_master: bool = False

    def state(self) -> tuple[dict[int, str], bool]:
        return dict(self.addresses), self.acting_master


class RouteTable:
    """All that one NameServer knows; `now_ms` is any clock that does not run backwards."""

    def __init__(self, server: str, *, first_version: int = 1, support_acting_master: bool = False) -> None:
        self.server = server
        self._support_acting_master = support_acting_master
        self._topics: dict[str, dict[str, QueueData]] = {}
        #: Only records that are not empty; every key (topic, broker) is also in `_topics`.
        self._records: dict[tuple[str, str], tuple[str, ...]] = {}
        self._groups: dict[str, _Group] = {}
        self._clusters: dict[str, set[str]] = {}
        self._live: dict[tuple[str, str], Holder] = {}
        self._lapsed = LapsedProcesses()
        self._counter = max(1, first_version)
        self._versions: dict[str, int] = {}
        self._list_version = self._counter
        self._changed: set[str] = set()
        self._list_changed = False
        self._sorted: tuple[str, ...] | None = ()

    # --- what brokers say ---------------------------------------------------------------

    def register(self, request: RegisterRequest, now_ms: int) -> RegisterAnswer:
        """Take a broker's full registration.

        Raises Conflict if its name is registered in another cluster, BrokerNameTaken if another live process
        has it.

        The order is RocketMQ's: add the group; delete other ids of this address (a slave became master);
        ignore an older state of an id that has moved; set the address; take the topics; renew the lease.
        """
        identity = request.identity
        self._check_owner(request, now_ms)
        group = self._groups.get(identity.broker)
        holder = self._live.get((identity.cluster, identity.address))
        if holder is not None and holder.identity.broker != identity.broker:
            # The port has another owner now, so whoever had it is gone.
            self.unregister([holder.identity])
        if group is None:
            group = _Group(identity.cluster, {})
            self._groups[identity.broker] = group
            self._clusters.setdefault(identity.cluster, set()).add(identity.broker)
        before = group.state()
        group.acting_master = request.enable_acting_master
        for broker_id, address in list(group.addresses.items()):
            if address == identity.address and broker_id != identity.broker_id:
                del group.addresses[broker_id]
        if self._is_outdated(group, request):
            self._live.pop((identity.cluster, identity.address), None)
        else:
            former = group.addresses.get(identity.broker_id)
            if former is not None and former != identity.address:
                del self._live[identity.cluster, former]
            group.addresses[identity.broker_id] = identity.address
            self._take_topics(group, request, former is None)
            self._live[identity.cluster, identity.address] = Holder.of(request, now_ms)
        if group.state() != before:
            self._touch_topics_of({identity.broker})
        return self._answer(identity, group)

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> bool:
        """Renew the lease if the broker is registered with this identity and DataVersion; else False."""
        identity = request.identity
        live = self._live.get((identity.cluster, identity.address))
        if live is None or live.identity != identity or live.data_version != request.data_version:
            return False
        live.heard_ms = now_ms
        return True

    def expire(self, now_ms: int) -> tuple[BrokerIdentity, ...]:
        """Remove every broker whose lease has ended (last heard + lease < now); return them."""
        dead = tuple(live.identity for live in self._live.values() if live.has_expired(now_ms))
        if dead:
            self._end(dead)
        return dead

    def _end(self, silent: Collection[BrokerIdentity]) -> None:
        """Remove brokers whose lease has ended."""
        for identity in silent:
            self._lapsed.add(identity.process)
        self.unregister(silent)

    def unregister(self, identities: Iterable[BrokerIdentity]) -> None:
        """Remove brokers, as one change (RocketMQ: BatchUnregistrationService).

        Remove in this order, which is RocketMQ's: the lease; the address; then, if it was the last address,
        the broker name, its place in the cluster, a cluster that is left empty, its QueueData, and topics
        that are left without QueueData. While another replica is left, the QueueData stay. If the group
        then has no master and allows an acting one, they lose the write permission.
        """
        removed: set[str] = set()
        reduced: set[str] = set()
        for identity in identities:
            key = (identity.cluster, identity.address)
            live = self._live.get(key)
            if live is None or (live.identity.broker, live.identity.process) != (
                identity.broker,
                identity.process,
            ):
                continue
            del self._live[key]
            group = self._groups[identity.broker]
            kept = {n: address for n, address in group.addresses.items() if address != identity.address}
            reduced.add(identity.broker)
            group.addresses = kept
            if not kept:
                self._remove_group(identity.broker, group)
                removed.add(identity.broker)
        reduced -= removed
        if removed:
            self._remove_queues_of(removed)
        if reduced:
            self._touch_topics_of(reduced)
            self._close_masterless(reduced)

    def set_write_permission(self, broker: str, writable: bool) -> int:
        """Wipe or restore the write permission of all topics of a group; return how many it has.

        Restoring sets exactly read and write (RocketMQ: addWritePerm). A change lasts until the
        group registers topics of another DataVersion. Raises NotFound.
        """
        if broker not in self._groups:
            raise NotFound("broker", broker)
        count = 0
        for topic, queues in self._topics.items():
            data = queues.get(broker)
            if data is not None:
                count += 1
                perm = int(Perm.READ_WRITE) if writable else data.perm & ~Perm.WRITE
                self._put(topic, replace(data, perm=int(perm)))
        return count

    # --- what clients ask ---------------------------------------------------------------

    def route(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic; None if no broker serves it."""
        queues = self._topics.get(topic)
        if queues is None:
            return None
        ordered = tuple(queues[name] for name in sorted(queues))
        brokers = tuple(self._broker_data(data) for data in ordered)
        return TopicRoute(topic, self._versions[topic], ordered, brokers, self.server, self._holders(topic))

    def version(self, topic: str) -> int:
        """Return the version of a topic's route; 0 if no broker serves it."""
        return self._versions.get(topic, 0)

    def topics(self) -> TopicList:
        """Return all topics, sorted."""
        if self._sorted is None:
            self._sorted = tuple(sorted(self._topics))
        return TopicList(self.server, self._list_version, self._sorted)

    @property
    def list_version(self) -> int:
        return self._list_version

    def cluster(self, now_ms: int) -> ClusterView:
        """Return who is alive."""
        counts: dict[str, int] = {}
        for queues in self._topics.values():
            for broker in queues:
                counts[broker] = counts.get(broker, 0) + 1
        clusters = {name: tuple(sorted(brokers)) for name, brokers in sorted(self._clusters.items())}
        live = sorted(
            self._live.values(),
            key=lambda one: (one.identity.broker, one.identity.broker_id, one.identity.address),
        )
        brokers = tuple(
            LiveBroker(
                one.identity,
                max(0, now_ms - one.heard_ms),
                one.lease_ms,
                one.data_version,
                counts.get(one.identity.broker, 0),
            )
            for one in live
        )
        return ClusterView(self.server, clusters, brokers)

    @property
    def broker_count(self) -> int:
        """How many broker processes are alive."""
        return len(self._live)

    @property
    def topic_count(self) -> int:
        return len(self._topics)

    def take_changes(self) -> Changes:
        """Return what changed since this was last asked: the caller tells the watchers."""
        changes = Changes(frozenset(self._changed), self._list_changed)
        self._changed, self._list_changed = set(), False
        return changes

    # --- registration, step by step -------------------------------------------------------

    def _check_owner(self, request: RegisterRequest, now_ms: int) -> None:
        """Raise unless the broker may have its name; a holder whose lease has ended is removed."""
        identity = request.identity
        group = self._groups.get(identity.broker)
        if group is None:
            return
        if group.cluster != identity.cluster:
            raise Conflict(
                f"broker {identity.broker}", f"it belongs to cluster {group.cluster}",
                hint="Give each broker group a name of its own.",
            )  # fmt: skip
        address = group.addresses.get(identity.broker_id)
        if address is None:
            return
        holder = self._live[group.cluster, address]
        if may_take(request, holder, self._lapsed):
            return
        if holder.has_expired(now_ms):
            self._end([holder.identity])
        elif not self._is_outdated(group, request):
            age_ms = max(0, now_ms - holder.heard_ms)
            raise BrokerNameTaken(
                identity.cluster, identity.broker, identity.broker_id, address, age_ms, holder.lease_ms
            )

    def _is_outdated(self, group: _Group, request: RegisterRequest) -> bool:
        """Whether another address holds the id with a newer state version."""
        holder = group.addresses.get(request.identity.broker_id)
        if holder is None or holder == request.identity.address:
            return False
        live = self._live.get((group.cluster, holder))
        return live is not None and live.data_version.state_version > request.data_version.state_version

    def _take_topics(self, group: _Group, request: RegisterRequest, first: bool) -> None:
        """Take the topics from the master, or from the lowest slave if it may act as one.

        Topics that are known here are rewritten only at the first registration or when the DataVersion
        differs; so a removed write permission survives heartbeats. A topic that lacks this broker is
        always added.
        """
        identity = request.identity
        acting = request.enable_acting_master and identity.broker_id == min(group.addresses)
        if identity.broker_id != MASTER_ID and not acting:
            return
        live = self._live.get((identity.cluster, identity.address))
        changed = first or live is None or live.data_version != request.data_version
        # An acting master may be read from only.
        granted = int(Perm.READ_WRITE if identity.broker_id == MASTER_ID else Perm.READ)
        # Most topics of a broker have the same record, which is kept once.
        records: dict[tuple[str, ...], tuple[str, ...]] = {}
        for topic in request.topics:
            if changed or identity.broker not in self._topics.get(topic.name, ()):
                self._put(topic.name, _queue_data(identity.broker, topic, granted))
                self._record(topic.name, identity.broker, records.setdefault(topic.brokers, topic.brokers))
        if changed:
            given = {topic.name for topic in request.topics}
            dropped = [
                name
                for name, queues in self._topics.items()
                if identity.broker in queues and name not in given
            ]
            for name in dropped:
                self._drop(name, identity.broker)

    def _answer(self, identity: BrokerIdentity, group: _Group) -> RegisterAnswer:
        master = group.addresses.get(MASTER_ID)
        if identity.broker_id == MASTER_ID or master is None:
            return RegisterAnswer(self.server)
        live = self._live.get((group.cluster, master))
        return RegisterAnswer(self.server, master, live.ha_address if live is not None else "")

    # --- removal, step by step --------------------------------------------------------------

    def _remove_group(self, broker: str, group: _Group) -> None:
        del self._groups[broker]
        members = self._clusters[group.cluster]
        members.discard(broker)
        if not members:
            del self._clusters[group.cluster]

    def _remove_queues_of(self, brokers: set[str]) -> None:
        affected = [
            (topic, broker) for topic, queues in self._topics.items() for broker in queues.keys() & brokers
        ]
        for topic, broker in affected:
            self._drop(topic, broker)

    def _close_masterless(self, brokers: set[str]) -> None:
        closed = {
            broker
            for broker in brokers
            if self._groups[broker].acting_master and MASTER_ID not in self._groups[broker].addresses
        }
        if not closed:
            return
        for topic, queues in self._topics.items():
            for broker in queues.keys() & closed:
                data = queues[broker]
                self._put(topic, replace(data, perm=data.perm & ~Perm.WRITE))

    # --- the tables and their versions --------------------------------------------------------

    def _put(self, topic: str, data: QueueData) -> None:
        queues = self._topics.get(topic)
        if queues is None:
            self._topics[topic] = queues = {}
            self._list_changes()
        if queues.get(data.broker) != data:
            queues[data.broker] = data
            self._touch(topic)

    def _record(self, topic: str, broker: str, brokers: tuple[str, ...]) -> None:
        if self._records.get((topic, broker), ()) == brokers:
            return
        before = self._holders(topic)
        if brokers:
            self._records[topic, broker] = brokers
        else:
            del self._records[topic, broker]
        if self._holders(topic) != before:
            self._touch(topic)

    def _holders(self, topic: str) -> tuple[str, ...]:
        """Return the groups that hold the topic, as all of its registered brokers say together."""
        records = (self._records.get((topic, broker), ()) for broker in self._topics[topic])
        return tuple(sorted({name for record in records for name in record}))

    def _drop(self, topic: str, broker: str) -> None:
        queues = self._topics[topic]
        del queues[broker]
        self._records.pop((topic, broker), None)
        if queues:
            self._touch(topic)
        else:
            del self._topics[topic]
            del self._versions[topic]
            self._changed.add(topic)
            self._list_changes()

    def _touch_topics_of(self, brokers: set[str]) -> None:
        for topic, queues in self._topics.items():
            if not brokers.isdisjoint(queues):
                self._touch(topic)

    def _touch(self, topic: str) -> None:
        self._counter += 1
        self._versions[topic] = self._counter
        self._changed.add(topic)

    def _list_changes(self) -> None:
        self._counter += 1
        self._list_version = self._counter
        self._list_changed = True
        self._sorted = None

    def _broker_data(self, data: QueueData) -> BrokerData:
        """Return the replicas of a group, the lowest as master if it may act as one (read-only)."""
        group = self._groups[data.broker]
        addresses = dict(sorted(group.addresses.items()))
        if (
            self._support_acting_master
            and group.acting_master
            and MASTER_ID not in addresses
            and not data.perm & Perm.WRITE
        ):
            lowest = min(addresses)
            addresses = {MASTER_ID: addresses.pop(lowest), **addresses}
        return BrokerData(group.cluster, data.broker, addresses)


def _queue_data(broker: str, topic: TopicConfig, granted: int) -> QueueData:
    return QueueData(broker, topic.read_queues, topic.write_queues, topic.perm & granted, topic.incarnation)
