"""The rules of RocketMQ's RouteInfoManager, one by one, on the pure table."""

from __future__ import annotations

import pytest

from rocketq.errors import Conflict, NotFound
from rocketq.model import Perm, TopicConfig
from rocketq.protocol.documents.nameserver import DataVersion, RegisterAnswer, TopicRoute
from rocketq_nameserver.route_table import RouteTable
from tests.support.registrations import heartbeat_of, identity, registration


@pytest.fixture
def table() -> RouteTable:
    return RouteTable("ns")


def route_of(table: RouteTable, topic: str = "orders") -> TopicRoute:
    route = table.route(topic)
    assert route is not None
    return route


def perms(table: RouteTable, topic: str = "orders") -> dict[str, int]:
    return {data.broker: data.perm for data in route_of(table, topic).queues}


# --- registration ---------------------------------------------------------------------------


def test_a_registered_topic_has_a_route_with_its_queues_and_addresses(table: RouteTable) -> None:
    topic = TopicConfig("orders", read_queues=8, write_queues=4, incarnation="i-1")
    table.register(registration("broker-a", [topic]), 0)
    table.register(registration("broker-b", ["orders"]), 0)
    route = route_of(table)
    first, second = route.queues
    assert (first.broker, first.read_queues, first.write_queues, first.incarnation) == (
        "broker-a",
        8,
        4,
        "i-1",
    )
    assert second.broker == "broker-b"
    assert [broker.addresses for broker in route.brokers] == [
        {0: "http://broker-a-0:1"},
        {0: "http://broker-b-0:1"},
    ]
    assert table.topics().topics == ("orders",)


def test_an_unknown_topic_has_no_route(table: RouteTable) -> None:
    assert table.route("orders") is None
    assert table.version("orders") == 0


def test_a_broker_whose_whole_table_is_one_topic_or_none_is_taken(table: RouteTable) -> None:
    """RocketMQ refuses one topic of an unknown broker as a fragment; ours are always complete."""
    table.register(registration("broker-a", ["orders"]), 0)
    table.register(registration("broker-b", []), 0)
    assert table.cluster(0).clusters == {"default": ("broker-a", "broker-b")}


def test_a_registration_with_the_known_version_rewrites_nothing(table: RouteTable) -> None:
    table.register(registration(topics=[TopicConfig("orders", perm=6)]), 0)
    table.register(registration(topics=[TopicConfig("orders", perm=4)]), 1)
    assert perms(table) == {"broker-a": 6}


def test_a_registration_of_any_other_version_rewrites_its_topics(
    table: RouteTable,
) -> None:
    table.register(registration(topics=[TopicConfig("orders", perm=6)], version=5), 0)
    table.register(registration(topics=[TopicConfig("orders", perm=4)], version=4), 1)
    assert perms(table) == {"broker-a": 4}


def test_a_topic_that_lacks_the_broker_is_added_at_the_same_version(table: RouteTable) -> None:
    table.register(registration("broker-a", ["orders"]), 0)
    table.register(registration("broker-a", ["orders", "late"]), 1)
    assert table.topics().topics == ("late", "orders")


def test_a_topic_absent_from_a_new_registration_leaves_that_broker_only(
    table: RouteTable,
) -> None:
    table.register(registration("broker-a", ["orders", "gone"]), 0)
    table.register(registration("broker-b", ["orders", "gone"]), 0)
    table.register(registration("broker-a", ["orders"], version=2), 1)
    assert perms(table, "gone") == {"broker-b": 6}
    table.register(registration("broker-b", ["orders"], version=2), 1)
    assert table.route("gone") is None
    assert table.topics().topics == ("orders",)


def test_a_topic_absent_under_the_known_version_stays(table: RouteTable) -> None:
    table.register(registration(topics=["orders", "other"]), 0)
    table.register(registration(topics=["orders"]), 1)
    assert table.topics().topics == ("orders", "other")


def test_topics_come_from_the_master_only(table: RouteTable) -> None:
    table.register(registration(topics=["orders"]), 0)
    table.register(registration(broker_id=1, topics=["orders", "rumour"]), 0)
    assert table.topics().topics == ("orders",)
    assert route_of(table).brokers[0].addresses == {0: "http://broker-a-0:1", 1: "http://broker-a-1:1"}


def test_a_slave_learns_its_master_and_where_to_replicate_from(table: RouteTable) -> None:
    assert table.register(registration(broker_id=1), 0) == RegisterAnswer("ns")
    assert table.register(registration(ha="http://broker-a-0:2"), 0) == RegisterAnswer("ns")
    answer = table.register(registration(broker_id=1), 1)
    assert answer == RegisterAnswer("ns", "http://broker-a-0:1", "http://broker-a-0:2")


def test_a_slave_that_becomes_master_leaves_its_old_id(table: RouteTable) -> None:
    table.register(registration(broker_id=0, at="x"), 0)
    table.register(registration(broker_id=1, at="y"), 0)
    table.unregister([identity(broker_id=0, at="x")])
    table.register(registration(broker_id=0, at="y"), 1)
    assert route_of(table).brokers[0].addresses == {0: "http://y:1"}
    table.register(registration(broker_id=1, at="x"), 1)
    assert route_of(table).brokers[0].addresses == {0: "http://y:1", 1: "http://x:1"}


def test_an_older_state_of_an_id_that_moved_is_ignored(table: RouteTable) -> None:
    table.register(registration(at="new", version=DataVersion(2, 0, 0), topics=["orders"]), 0)
    answer = table.register(registration(at="old", version=DataVersion(1, 0, 9), topics=["rumour"]), 0)
    assert answer == RegisterAnswer("ns")
    assert route_of(table).brokers[0].addresses == {0: "http://new:1"}
    assert table.topics().topics == ("orders",)
    assert [live.identity.address for live in table.cluster(0).brokers] == ["http://new:1"]


def test_a_newer_state_takes_the_id_over(table: RouteTable) -> None:
    table.register(registration(at="old", version=DataVersion(1, 0, 0)), 0)
    table.register(registration(at="new", version=DataVersion(2, 0, 0)), 5_000)
    assert route_of(table).brokers[0].addresses == {0: "http://new:1"}
    assert [live.identity.address for live in table.cluster(0).brokers] == ["http://new:1"]
    assert table.expire(12_001) == ()


def test_an_address_that_comes_back_under_another_name_ends_the_former_one(table: RouteTable) -> None:
    table.register(registration("broker-a", ["orders"], at="x"), 0)
    table.register(registration("broker-b", ["bills"], at="x"), 1)
    assert table.topics().topics == ("bills",)
    assert table.cluster(1).clusters == {"default": ("broker-b",)}


def test_a_name_that_lives_in_another_cluster_is_refused(table: RouteTable) -> None:
    table.register(registration(cluster="east"), 0)
    with pytest.raises(Conflict):
        table.register(registration(cluster="west", at="y"), 0)
    assert table.cluster(0).clusters == {"east": ("broker-a",)}


def test_data_versions_differ_if_one_of_their_fields_does() -> None:
    assert DataVersion(1, 2, 3) == DataVersion(1, 2, 3)
    assert len({DataVersion(1, 2, 3), DataVersion(0, 2, 3), DataVersion(1, 0, 3), DataVersion(1, 2, 0)}) == 4


# --- leases ---------------------------------------------------------------------------------


def test_a_broker_expires_only_once_its_lease_is_over(table: RouteTable) -> None:
    table.register(registration(lease_ms=100), 1_000)
    assert table.expire(1_100) == ()
    assert table.expire(1_101) == (identity(),)
    assert table.route("orders") is None
    assert table.cluster(1_101).clusters == {}
    assert table.expire(9_999) == ()


def test_a_heartbeat_with_the_known_version_renews_the_lease(table: RouteTable) -> None:
    request = registration(lease_ms=100)
    table.register(request, 0)
    assert table.heartbeat(heartbeat_of(request), 90)
    assert table.expire(190) == ()
    assert table.expire(191) == (identity(),)


@pytest.mark.parametrize(
    "other",
    [
        registration(version=2),
        registration(version=DataVersion(1, 0, 1)),
        registration(version=DataVersion(0, 1, 1)),
        registration(broker_id=1),
        registration(at="elsewhere"),
        registration("broker-b"),
        registration(cluster="west"),
    ],
)
def test_a_heartbeat_of_anything_but_what_is_known_asks_for_a_registration(table: RouteTable, other) -> None:  # type: ignore[no-untyped-def]
    table.register(registration(lease_ms=100), 0)
    assert not table.heartbeat(heartbeat_of(other), 90)
    assert table.expire(101) == (identity(),)


def test_a_heartbeat_after_the_id_was_taken_asks_for_a_registration(table: RouteTable) -> None:
    first, second = registration(at="x"), registration(at="y", version=DataVersion(1, 0, 1))
    table.register(first, 0)
    table.register(second, 1)
    assert not table.heartbeat(heartbeat_of(first), 2)
    assert table.heartbeat(heartbeat_of(second), 2)


def test_a_heartbeat_after_expiry_asks_for_a_registration(table: RouteTable) -> None:
    request = registration(lease_ms=100)
    table.register(request, 0)
    table.expire(101)
    assert not table.heartbeat(heartbeat_of(request), 102)


def test_the_cluster_view_says_who_was_heard_of_when(table: RouteTable) -> None:
    table.register(registration("broker-a", ["orders", "bills"], lease_ms=7), 100)
    table.register(registration("broker-b", [], cluster="west"), 130)
    view = table.cluster(150)
    assert view.clusters == {"default": ("broker-a",), "west": ("broker-b",)}
    assert [(b.identity.broker, b.age_ms, b.lease_ms, b.topics) for b in view.brokers] == [
        ("broker-a", 50, 7, 2),
        ("broker-b", 20, 12_000, 0),
    ]


# --- removal --------------------------------------------------------------------------------


def test_brokers_are_unregistered_together_and_leave_nothing_behind(table: RouteTable) -> None:
    requests = [registration(f"broker-{n}", ["orders", f"own-{n}"], cluster=f"c{n % 2}") for n in range(4)]
    for request in requests:
        table.register(request, 0)
    table.unregister([request.identity for request in requests[:3]])
    assert perms(table) == {"broker-3": 6}
    assert table.topics().topics == ("orders", "own-3")
    assert table.cluster(0).clusters == {"c1": ("broker-3",)}
    table.unregister([requests[3].identity])
    assert table.topics().topics == ()
    assert table.cluster(0).clusters == {}
    assert table.broker_count == 0


def test_queues_stay_while_another_replica_is_left(table: RouteTable) -> None:
    table.register(registration(broker_id=0), 0)
    table.register(registration(broker_id=1), 0)
    table.unregister([identity(broker_id=0)])
    route = route_of(table)
    assert route.brokers[0].addresses == {1: "http://broker-a-1:1"}
    assert route.queues[0].perm == 6
    assert route.write_queues() == []


def test_unregistering_what_is_not_there_changes_nothing(table: RouteTable) -> None:
    table.register(registration(), 0)
    before = route_of(table)
    table.unregister([identity(at="y"), identity("broker-z"), identity(cluster="west")])
    assert route_of(table) == before
    assert table.broker_count == 1


# --- acting master --------------------------------------------------------------------------


def acting_group(*, support: bool, allowed: bool = True) -> RouteTable:
    """A master and two slaves, whose master has just left."""
    table = RouteTable("ns", support_acting_master=support)
    for broker_id in (0, 1, 2):
        table.register(registration(broker_id=broker_id, acting=allowed), 0)
    table.unregister([identity(broker_id=0)])
    return table


def test_a_group_that_allows_it_has_its_lowest_slave_as_acting_master() -> None:
    table = acting_group(support=True)
    route = route_of(table)
    assert route.brokers[0].addresses == {0: "http://broker-a-1:1", 2: "http://broker-a-2:1"}
    assert perms(table) == {"broker-a": int(Perm.READ)}
    assert route.write_queues() == []
    assert len(route.read_queues()) == 4


def test_without_support_no_slave_is_shown_as_master() -> None:
    route = route_of(acting_group(support=False))
    assert route.brokers[0].addresses == {1: "http://broker-a-1:1", 2: "http://broker-a-2:1"}


def test_a_group_without_acting_master_keeps_its_ids_and_permission() -> None:
    table = acting_group(support=True, allowed=False)
    assert route_of(table).brokers[0].addresses == {1: "http://broker-a-1:1", 2: "http://broker-a-2:1"}
    assert perms(table) == {"broker-a": int(Perm.READ_WRITE)}


def test_a_slave_stands_in_only_where_nothing_may_be_written() -> None:
    table = acting_group(support=True)
    table.set_write_permission("broker-a", True)
    assert route_of(table).brokers[0].addresses == {1: "http://broker-a-1:1", 2: "http://broker-a-2:1"}
    table.set_write_permission("broker-a", False)
    assert route_of(table).brokers[0].addresses == {0: "http://broker-a-1:1", 2: "http://broker-a-2:1"}


def test_the_lowest_slave_may_register_topics_to_read_when_it_acts() -> None:
    table = acting_group(support=True)
    table.register(registration(broker_id=1, acting=True, version=2, topics=["orders", "new"]), 1)
    assert perms(table, "new") == {"broker-a": int(Perm.READ)}
    table.register(registration(broker_id=2, acting=True, version=2, topics=["orders", "rumour"]), 1)
    assert table.route("rumour") is None


def test_a_master_that_returns_may_be_written_to_again() -> None:
    table = acting_group(support=True)
    table.register(registration(broker_id=0, acting=True), 1)
    assert perms(table) == {"broker-a": int(Perm.READ_WRITE)}
    assert route_of(table).brokers[0].addresses[0] == "http://broker-a-0:1"


# --- write permission -----------------------------------------------------------------------


def test_wiping_counts_the_topics_of_the_broker_and_leaves_others_alone(table: RouteTable) -> None:
    table.register(registration("broker-a", ["orders", "bills"]), 0)
    table.register(registration("broker-b", ["orders"]), 0)
    assert table.set_write_permission("broker-a", False) == 2
    assert perms(table) == {"broker-a": 4, "broker-b": 6}
    assert perms(table, "bills") == {"broker-a": 4}
    assert table.set_write_permission("broker-a", False) == 2


def test_adding_sets_exactly_read_and_write(table: RouteTable) -> None:
    table.register(registration(topics=[TopicConfig("orders", perm=0), TopicConfig("bills", perm=4)]), 0)
    assert table.set_write_permission("broker-a", True) == 2
    assert perms(table) == perms(table, "bills") == {"broker-a": 6}


def test_a_wiped_permission_lasts_until_the_registration_changes(
    table: RouteTable,
) -> None:
    table.register(registration(), 0)
    table.set_write_permission("broker-a", False)
    table.heartbeat(heartbeat_of(registration()), 1)
    table.register(registration(), 2)
    assert perms(table) == {"broker-a": 4}
    table.register(registration(version=2), 3)
    assert perms(table) == {"broker-a": 6}


def test_the_permission_of_an_unknown_broker_cannot_be_set(table: RouteTable) -> None:
    with pytest.raises(NotFound):
        table.set_write_permission("broker-z", False)


# --- versions -------------------------------------------------------------------------------


def test_changes_name_exactly_the_topics_whose_route_changed(table: RouteTable) -> None:
    table.register(registration("broker-a", ["orders"]), 0)
    assert table.take_changes().topics == {"orders"}
    table.register(registration("broker-b", ["orders", "bills"]), 0)
    changes = table.take_changes()
    assert changes.topics == {"orders", "bills"}
    assert changes.listed
    table.register(registration("broker-b", ["orders", "bills"]), 1)
    assert table.take_changes().topics == set()
    table.register(registration("broker-b", [TopicConfig("orders", perm=4), "bills"], version=2), 1)
    changes = table.take_changes()
    assert changes.topics == {"orders"}
    assert not changes.listed


def test_a_new_replica_changes_the_routes_of_its_group(table: RouteTable) -> None:
    table.register(registration("broker-a", ["orders"]), 0)
    table.register(registration("broker-b", ["bills"]), 0)
    table.take_changes()
    table.register(registration("broker-a", broker_id=1), 0)
    assert table.take_changes().topics == {"orders"}


def test_a_topic_that_returns_has_a_version_it_never_had(table: RouteTable) -> None:
    table.register(registration(), 0)
    first = table.version("orders")
    table.unregister([identity()])
    assert table.version("orders") == 0
    table.register(registration(), 1)
    assert table.version("orders") > first


def test_versions_start_above_those_given_before_a_restart() -> None:
    before, after = RouteTable("ns", first_version=1_000), RouteTable("ns", first_version=2_000)
    before.register(registration(), 0)
    after.register(registration(), 0)
    assert after.version("orders") > before.version("orders") > 1_000
    assert after.list_version > before.list_version


def recorded(name: str, *brokers: str) -> TopicConfig:
    return TopicConfig(name, brokers=brokers)


def test_a_route_names_who_holds_the_topic_also_those_never_heard_of() -> None:
    table = RouteTable("ns")
    table.register(registration("broker-a", [recorded("orders", "broker-a", "broker-b")]), 0)
    route = table.route("orders")
    assert route is not None
    assert route.holders == ("broker-a", "broker-b")
    assert [data.broker for data in route.queues] == ["broker-a"]
    table.register(registration("broker-c", [recorded("orders", "broker-a", "broker-c"), "old"]), 0)
    route, old = table.route("orders"), table.route("old")
    assert route is not None
    assert route.holders == ("broker-a", "broker-b", "broker-c")
    assert old is not None
    assert old.holders == (), "a topic without a record says nothing"


def test_a_record_that_changes_is_a_new_version_of_the_route() -> None:
    table = RouteTable("ns")
    table.register(registration(topics=[recorded("orders", "broker-a", "broker-b")], version=1), 0)
    first = table.version("orders")
    table.take_changes()
    table.register(registration(topics=[recorded("orders", "broker-a", "broker-b")], version=2), 0)
    assert table.version("orders") == first
    table.register(registration(topics=[recorded("orders", "broker-a")], version=3), 0)
    assert table.version("orders") > first
    assert table.take_changes().topics == {"orders"}
    table.register(registration(topics=["orders"], version=4), 0)
    assert table.route("orders").holders == ()  # type: ignore[union-attr]
