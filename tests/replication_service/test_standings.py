"""What an operator sees of the replicas of a group; what nobody knows is shown as unknown, never as 0."""

from __future__ import annotations

import re

from rocketq import LocalCluster
from rocketq.admin.cluster import ClusterAdmin
from rocketq.admin.replicas import GroupStandings, standings
from rocketq.errors import NotFound
from rocketq.protocol.documents.replication import ReplicaState, ReplicationStatus
from tests.console.conftest import visitor
from tests.support.command_line import rocketq
from tests.support.conditions import wait_until

GROUP = "broker-a"


def status(role: str, *replicas: ReplicaState) -> ReplicationStatus:
    return ReplicationStatus(
        GROUP, "group", 1, "i1", role, 3, "http://one", 2, begin=100, end=1_100, held=1_100, confirmed=1_100,
        replicas=replicas,
    )  # fmt: skip


def replica(number: int, address: str, held: int = -1, behind_ms: int | None = None) -> ReplicaState:
    return ReplicaState(number, f"i{number}", address, number == 1, number == 2, held, behind_ms)


def whole(admin: ClusterAdmin) -> bool:
    return admin.replicas.standings(GROUP).is_whole


def test_a_replica_that_was_not_heard_of_has_an_unknown_lag() -> None:
    known = (
        replica(3, "http://three"),
        replica(1, "http://one", 1_100, 0),
        replica(2, "http://two", 600, 2_500),
    )
    found = standings(status("master", *known)).replicas
    assert [(each.role, each.in_sync, each.lag_bytes, each.lag_s, each.held_percent) for each in found] == [
        ("master", "yes", 0, 0.0, 100.0),
        ("slave", "eligible", 500, 2.5, 50.0),
        ("slave", "no", None, None, None),
    ]


def test_a_group_with_too_few_in_sync_takes_no_writes_and_is_not_whole() -> None:
    group = standings(status("master", replica(1, "http://one", 1_100, 0), replica(2, "http://two")))
    assert not group.takes_writes
    assert not group.is_whole


def test_a_slave_does_not_say_how_far_the_others_are(group: LocalCluster) -> None:
    with ClusterAdmin(group.nameservers) as admin:
        wait_until(lambda: whole(admin))
        number, address = next(item for item in admin.replicas.addresses(GROUP).items() if item[0])
        said = admin.replicas.status_of(GROUP, number)
    assert said.role == "slave"
    others = [each for each in said.replicas if each.address != address]
    assert {(each.held, each.behind_ms) for each in others} == {(-1, None)}
    assert [each.behind_ms for each in said.replicas] == [None] * 3


def test_the_cluster_command_shows_how_each_replica_is(group: LocalCluster) -> None:
    with ClusterAdmin(group.nameservers) as admin:
        wait_until(lambda: whole(admin))
        shown = rocketq("cluster", "-s", ",".join(group.nameservers), "-o", "jsonl")
    assert shown.code == 0
    assert {(row["role"], row["in_sync"], row["lag_bytes"]) for row in shown.rows} == {
        ("master", "yes", 0), ("slave", "yes", 0)
    }  # fmt: skip


def test_a_lone_broker_lacks_nothing(cluster: LocalCluster) -> None:
    with ClusterAdmin(cluster.nameservers) as admin:
        assert isinstance(admin.replicas.known_standings(GROUP), NotFound)
    shown = rocketq("cluster", "-s", ",".join(cluster.nameservers), "-o", "jsonl")
    assert {(row["in_sync"], row["lag_bytes"], row["lag_s"]) for row in shown.rows} == {("yes", 0, 0.0)}


def test_the_console_shows_the_replicas_of_a_group(group: LocalCluster) -> None:
    with ClusterAdmin(group.nameservers) as admin:
        wait_until(lambda: whole(admin))
        known = admin.replicas.known_standings(GROUP)
    assert isinstance(known, GroupStandings)
    for console in visitor(group.nameservers):
        page = console.get(f"/brokers/{GROUP}")
    assert page.status == 200
    assert f"Replicas epoch {known.status.epoch}, as the master knows them" in page.text
    assert re.findall(r"(\d) (master|slave) (in sync|eligible|not in sync) (http://\S+)", page.text) == [
        (str(each.number), each.role, "in sync", each.address) for each in known.replicas
    ]


def test_the_console_shows_no_replicas_of_a_lone_broker(cluster: LocalCluster) -> None:
    for console in visitor(cluster.nameservers):
        page = console.get(f"/brokers/{GROUP}")
    assert page.status == 200
    assert "Replicas" not in page.text
    assert "not known" not in page.text.replace("Not known", "")
