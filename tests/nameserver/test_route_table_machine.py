"""The route table against a model, and against the invariants it claims, over random histories.

The model knows no acting masters and no state versions, only who holds which id, since when and on which
store, with which topics; what it predicts is who is refused and the content of every route. That a version
changes exactly when its route does needs no model: every step compares before and after.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from rocketq.errors.registration_errors import BrokerNameTaken
from rocketq.model import Perm, TopicConfig
from rocketq.protocol.documents.nameserver import RegisterRequest, TopicRoute
from rocketq_nameserver.route_table import RouteTable
from tests.support.examples import examples
from tests.support.registrations import heartbeat_of, identity, registration

LEASE_MS = 100
BROKERS = st.sampled_from(["a", "b", "c"])
IDS = st.sampled_from([0, 0, 0, 1, 2])
PORTS = st.sampled_from(["x", "y", "z"])
VERSIONS = st.integers(1, 3)
PROCESSES = st.sampled_from(["p", "q", "r"])
STORES = st.sampled_from(["", "s", "t"])
SINCE = st.sampled_from([0, 0, 1, 2])
TOPICS = st.dictionaries(st.sampled_from(["t1", "t2", "t3"]), st.sampled_from([2, 4, 6]), max_size=3)
#: The record of all topics of one registration.
RECORDS = st.lists(st.sampled_from(["a", "b", "c"]), max_size=3, unique=True).map(tuple)


@dataclass
class Model:
    """What should be known: addresses, queue permissions and records, and who was heard of when."""

    addresses: dict[str, dict[int, str]] = field(default_factory=dict)
    perms: dict[str, dict[str, int]] = field(default_factory=dict)
    records: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    live: dict[str, tuple[RegisterRequest, int]] = field(default_factory=dict)
    lapsed: set[str] = field(default_factory=set)

    def refuses(self, request: RegisterRequest, now_ms: int) -> bool:
        """Whether another process holds the id; if its lease has ended it is removed."""
        me = request.identity
        address = self.addresses.get(me.broker, {}).get(me.broker_id)
        if address is None:
            return False
        holder, heard_ms = self.live[address]
        never = 1 << 60
        older = (request.held_since_us or never) < (holder.held_since_us or never)
        if (
            holder.identity.process == me.process
            or holder.store == request.store != ""
            or (older and me.process not in self.lapsed)
        ):
            return False
        if heard_ms + LEASE_MS >= now_ms:
            return True
        self.lapsed.add(holder.identity.process)
        self.remove(holder)
        return False

    def register(self, request: RegisterRequest, now_ms: int) -> None:
        me, group = request.identity, request.identity.broker
        former = self.live.get(me.address)
        if former is not None and former[0].identity.broker != group:
            self.remove(former[0])
            former = None
        replicas = self.addresses.setdefault(group, {})
        for number in [n for n, address in replicas.items() if address == me.address and n != me.broker_id]:
            del replicas[number]
        first = me.broker_id not in replicas
        self.live.pop(replicas.get(me.broker_id, ""), None)
        replicas[me.broker_id] = me.address
        self.live[me.address] = (request, now_ms)
        if me.broker_id != 0:
            return
        known = self.perms.setdefault(group, {})
        given = {topic.name: topic.perm for topic in request.topics}
        records = {topic.name: topic.brokers for topic in request.topics}
        if first or former is None or former[0].data_version != request.data_version:
            self.perms[group], self.records[group] = given, records
        else:
            self.perms[group] = {**given, **known}
            self.records[group] = {**records, **self.records[group]}

    def remove(self, request: RegisterRequest) -> None:
        me = request.identity
        known = self.live.get(me.address)
        if known is None or known[0].identity.broker != me.broker or known[0].identity.process != me.process:
            return
        del self.live[me.address]
        replicas = self.addresses.get(me.broker, {})
        for number in [n for n, address in replicas.items() if address == me.address]:
            del replicas[number]
        if not replicas:
            self.addresses.pop(me.broker, None)
            self.perms.pop(me.broker, None)
            self.records.pop(me.broker, None)

    def holders(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, set[str]] = {}
        for broker, topics in self.perms.items():
            for topic in topics:
                found.setdefault(topic, set()).update(self.records[broker][topic])
        return {topic: tuple(sorted(names)) for topic, names in found.items()}

    def routes(self) -> dict[str, dict[str, tuple[int, dict[int, str]]]]:
        found: dict[str, dict[str, tuple[int, dict[int, str]]]] = {}
        for broker, topics in self.perms.items():
            for topic, perm in topics.items():
                found.setdefault(topic, {})[broker] = (perm, self.addresses[broker])
        return found


class RouteTableMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable("ns", first_version=10)
        self.model = Model()
        self.now_ms = 0
        self.seen = self.snapshot()
        self.highest = 10

    @rule(
        place=st.tuples(BROKERS, IDS, PORTS),
        version=VERSIONS,
        topics=TOPICS,
        record=RECORDS,
        process=PROCESSES,
        store=STORES,
        since_us=SINCE,
    )
    def register(
        self,
        place: tuple[str, int, str],
        version: int,
        topics: dict[str, int],
        record: tuple[str, ...],
        process: str,
        store: str,
        since_us: int,
    ) -> None:
        broker, broker_id, port = place
        request = registration(
            broker,
            [TopicConfig(name, perm=perm, brokers=record) for name, perm in topics.items()],
            broker_id=broker_id,
            at=port,
            version=version,
            lease_ms=LEASE_MS,
            process=process,
            store=store,
            held_since_us=since_us,
        )
        if self.model.refuses(request, self.now_ms):
            with pytest.raises(BrokerNameTaken):
                self.table.register(request, self.now_ms)
        else:
            self.table.register(request, self.now_ms)
            self.model.register(request, self.now_ms)

    @precondition(lambda self: self.model.live)
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        address = data.draw(st.sampled_from(sorted(self.model.live)))
        request, _ = self.model.live[address]
        assert self.table.heartbeat(heartbeat_of(request), self.now_ms)
        self.model.live[address] = (request, self.now_ms)
        other = replace(request, identity=replace(request.identity, process="another"))
        assert not self.table.heartbeat(heartbeat_of(other), self.now_ms)

    @rule(ms=st.integers(0, LEASE_MS))
    def let_time_pass(self, ms: int) -> None:
        self.now_ms += ms

    @rule()
    def expire(self) -> None:
        due = [request for request, heard in self.model.live.values() if heard + LEASE_MS < self.now_ms]
        assert set(self.table.expire(self.now_ms)) == {request.identity for request in due}
        for request in due:
            self.model.lapsed.add(request.identity.process)
            self.model.remove(request)

    @rule(brokers=st.lists(st.tuples(BROKERS, IDS, PORTS, PROCESSES), max_size=4))
    def unregister(self, brokers: list[tuple[str, int, str, str]]) -> None:
        requests = [
            registration(broker, broker_id=number, at=port, process=process)
            for broker, number, port, process in brokers
        ]
        self.table.unregister([request.identity for request in requests])
        for request in requests:
            self.model.remove(request)

    @precondition(lambda self: self.model.addresses)
    @rule(data=st.data(), writable=st.booleans())
    def set_write_permission(self, data: st.DataObject, writable: bool) -> None:
        broker = data.draw(st.sampled_from(sorted(self.model.addresses)))
        topics = self.model.perms.get(broker, {})
        assert self.table.set_write_permission(broker, writable) == len(topics)
        for topic, perm in topics.items():
            topics[topic] = int(Perm.READ_WRITE) if writable else perm & ~2

    @invariant()
    def routes_are_what_was_registered(self) -> None:
        routes = {
            topic: {
                data.broker: (data.perm, dict(route.broker(data.broker).addresses))  # type: ignore[union-attr]
                for data in route.queues
            }
            for topic, route in self.snapshot()[0].items()
        }
        assert routes == self.model.routes()
        assert {topic: route.holders for topic, route in self.snapshot()[0].items()} == self.model.holders()

    @invariant()
    def the_cluster_view_lists_every_group_and_every_lease(self) -> None:
        view = self.table.cluster(self.now_ms)
        assert {name for names in view.clusters.values() for name in names} == set(self.model.addresses)
        assert {live.identity.address.removeprefix("http://") for live in view.brokers} == {
            address.removeprefix("http://") for address in self.model.live
        }
        named = [(one.identity.broker, one.identity.broker_id, one.identity.address) for one in view.brokers]
        assert sorted(named) == sorted(
            (broker, n, at) for broker, ids in self.model.addresses.items() for n, at in ids.items()
        )

    @invariant()
    def versions_change_exactly_with_what_they_stand_for(self) -> None:
        routes, listed = before = self.seen
        now_routes, now_listed = after = self.snapshot()
        changes = self.table.take_changes()
        moved = set()
        for topic in routes.keys() | now_routes.keys():
            was, now = routes.get(topic), now_routes.get(topic)
            if was is not None and now is not None and was.version == now.version:
                assert was == now
            else:
                moved.add(topic)
        # A step may change a route there and back, which is told too; what is not told did not change.
        assert moved == changes.topics & (routes.keys() | now_routes.keys())
        assert (listed[1] != now_listed[1]) <= changes.listed
        assert (listed[0] == now_listed[0]) <= (listed[1] == now_listed[1])
        fresh = [route.version for topic, route in now_routes.items() if topic in moved]
        assert all(version > self.highest for version in fresh)
        self.highest = max([self.highest, now_listed[0], *fresh])
        assert before is not after
        self.seen = after

    def snapshot(self) -> tuple[dict[str, TopicRoute], tuple[int, tuple[str, ...]]]:
        listed = self.table.topics()
        routes = {}
        for topic in listed.topics:
            route = self.table.route(topic)
            assert route is not None
            assert route.version == self.table.version(topic)
            routes[topic] = route
        return routes, (listed.version, listed.topics)


TestRouteTableMachine = RouteTableMachine.TestCase
TestRouteTableMachine.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)


def test_the_model_would_notice_a_forgotten_topic() -> None:
    model = Model()
    model.register(registration("a", ["t1"], at="x"), 0)
    assert model.routes() == {"t1": {"a": (6, {0: "http://x:1"})}}
    model.remove(replace(registration("a", at="x"), identity=identity("a", at="x")))
    assert model.routes() == {}
