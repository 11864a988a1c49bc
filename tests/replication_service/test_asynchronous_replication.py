"""A group whose master waits for no slave (`--replication async`): what goes on, what a failover loses."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketq import LocalCluster
from rocketq.admin.cluster import ClusterAdmin
from rocketq.errors import InvalidConfiguration, RocketqError
from rocketq.errors.replication_errors import ElectionRefused, InSyncSetUnsettled
from rocketq.model import Message, PullStatus, ReplicationMode, SendStatus
from rocketq.net.broker_api import BrokerApi
from rocketq.net.transport import Transport
from rocketq.protocol.arrow.stream_writer import write_stream
from rocketq.protocol.documents.broker import CreateTopicRequest
from rocketq.protocol.message_schema import from_messages
from rocketq_broker.config import BrokerConfig
from tests.replication_service.simulated_group import Broker, Group
from tests.support.conditions import WAIT_MS, wait_until
from tests.support.patience import PatientClient, patient_transport

GROUP = "broker-a"


def founded() -> Group:
    """A group of three that works."""
    group = Group(min_in_sync=1, replication=ReplicationMode.ASYNC)
    group.pass_time(1_000)
    assert len(group.record.in_sync) == 3
    return group


def cut_off(group: Group, *slaves: Broker) -> None:
    """Let slaves not reach the master."""
    group.cut |= {(slave.number, group.master.number) for slave in slaves}


def test_a_message_is_confirmed_when_the_master_holds_it() -> None:
    group = founded()
    cut_off(group, *group.slaves())
    frame = group.master.write(1)
    assert group.master.shown == frame.end


def test_slaves_show_what_the_master_has_confirmed() -> None:
    group = founded()
    frame = group.master.write(1)
    group.pass_time(1_000)
    assert [broker.shown for broker in group.brokers.values()] == [frame.end] * 3


def test_a_slave_that_lags_leaves_the_set_and_returns_while_the_master_writes_on() -> None:
    group = founded()
    gone = group.slaves()[0].number
    group.kill(gone)
    group.pass_time(6_000)
    assert gone not in {each.number for each in group.record.in_sync}
    for value in range(50):
        group.master.write(value)
    group.start(gone)
    for value in range(50, 150):
        group.master.write(value)
        group.pass_time(10)
    assert gone in {each.number for each in group.record.in_sync}


def test_a_slave_does_not_join_before_it_has_what_the_masters_before_have_left() -> None:
    group = founded()
    late = group.slaves()[1]
    group.kill(late.number)
    group.pass_time(6_000)
    for value in range(1_000):
        group.master.write(value)
    group.pass_time(500)
    group.kill(group.master.number)
    group.start(late.number)
    group.pass_time(2_600)
    for _ in range(300):
        group.pass_time(10)
        in_sync = {each.number for each in group.record.in_sync}
        assert late.number not in in_sync or len(group.brokers[late.number].values()) == 1_000
    assert late.number in {each.number for each in group.record.in_sync}


def test_a_failover_loses_what_no_slave_has_and_the_former_master_cuts_it() -> None:
    group = founded()
    old = group.master
    old.write(1)
    group.pass_time(200)
    cut_off(group, *group.slaves())
    lost = old.write(99)
    assert old.shown == lost.end
    group.kill(old.number)
    group.pass_time(3_000)
    assert group.record.unclean_epoch == group.record.epoch == 2
    group.master.write(2)
    group.cut.clear()
    group.start(old.number)
    group.pass_time(2_000)
    assert [broker.values() for broker in group.brokers.values()] == [[1, 2]] * 3
    assert len(group.record.in_sync) == 3


def test_a_slave_that_has_more_than_the_next_master_cuts_what_was_confirmed() -> None:
    group = founded()
    old, (short, long) = group.master, group.slaves()
    cut_off(group, short)
    frame = old.write(1)
    group.pass_time(1_000)
    assert long.shown == frame.end
    group.kill(old.number)
    short.conduct.promote(unclean=False, reply=[].append, now_ms=group.now_ms)
    group.pass_time(2_000)
    assert group.master is short
    assert [short.values(), long.values()] == [[], []]
    assert long.halted is None


def test_a_master_that_restarts_loses_nothing() -> None:
    group = founded()
    old = group.master
    cut_off(group, *group.slaves())
    old.write(1)
    group.kill(old.number)
    group.start(old.number)
    group.pass_time(500)
    assert group.master.number == old.number
    assert group.record.unclean_epoch == 0
    group.cut.clear()
    group.pass_time(1_000)
    assert [broker.values() for broker in group.brokers.values()] == [[1]] * 3


def test_a_handover_waits_until_the_successor_has_everything() -> None:
    group = founded()
    old, successor = group.master, group.slaves()[1]
    cut_off(group, successor)
    old.write(1)
    answers: list[object] = []
    old.conduct.hand_over(successor.number, answers.append, group.now_ms)
    group.pass_time(2_100)
    assert isinstance(answers[0], ElectionRefused)
    old.conduct.hand_over(successor.number, answers.append, group.now_ms)
    group.cut.clear()
    group.pass_time(1_000)
    assert group.master is successor
    assert successor.values() == [1]
    assert group.record.unclean_epoch == 0


def test_a_master_that_is_cut_off_from_slaves_and_register_ends_to_acknowledge() -> None:
    """Another one may be elected, and what this one takes would be lost."""
    group = founded()
    old = group.master
    cut_off(group, *group.slaves())
    group.register.is_up = False
    group.pass_time(8_000)
    old.write(1)
    group.pass_time(4_000)
    with pytest.raises(InSyncSetUnsettled):
        old.write(2)
    group.register.is_up = True
    group.pass_time(1_500)
    assert group.master is not old


def test_a_master_goes_on_without_slaves_that_the_register_has_taken_out_of_the_set() -> None:
    group = founded()
    for slave in group.slaves():
        group.kill(slave.number)
    group.pass_time(12_000)
    assert len(group.record.in_sync) == 1
    group.master.write(1)


def test_more_than_one_replica_in_sync_cannot_be_asked_for(tmp_path: Path) -> None:
    def config(**settings: object) -> BrokerConfig:
        return BrokerConfig(name="a", data_dir=tmp_path, replication=ReplicationMode.ASYNC, **settings)  # type: ignore[arg-type]

    with pytest.raises(InvalidConfiguration, match="min_in_sync"):
        config(min_in_sync=2)
    assert config(min_in_sync=1).in_sync_needed == config().in_sync_needed == 1
    assert BrokerConfig(name="a", data_dir=tmp_path).in_sync_needed == 2


def test_a_killed_master_takes_what_it_alone_has_and_the_group_goes_on(
    tmp_path: Path,
) -> None:
    arguments = ["--replication", "async"]
    with (
        LocalCluster(1, 1, tmp_path, replicas=2, broker_arguments=arguments) as cluster,
        ClusterAdmin(cluster.nameservers) as admin,
        PatientClient(cluster.nameservers) as client,
    ):
        transport = patient_transport()
        admin.topics.create("orders", CreateTopicRequest(1, 1), wait_ms=WAIT_MS)
        producer = client.producer()
        producer.send("orders", b"kept")
        wait_until(lambda: shown_by_all(cluster, transport, [b"kept"]))
        assert admin.replicas.status(GROUP).replication == "async"
        while not acknowledged_alone(cluster, admin, transport, b"lost"):
            continue
        result = producer.send("orders", b"next")
        assert result.status is SendStatus.SEND_OK
        assert result.offset == 1
        (dead,) = [name for name in cluster.brokers if not cluster.running(name)]
        cluster.restart(dead)
        wait_until(lambda: shown_by_all(cluster, transport, [b"kept", b"next"]))
        wait_until(lambda: all(each.is_in_sync for each in admin.replicas.status(GROUP).replicas))
        assert "log_cut" in cluster.log(dead).read_text()
        transport.close()


def acknowledged_alone(cluster: LocalCluster, admin: ClusterAdmin, transport: Transport, body: bytes) -> bool:
    """Have a master acknowledge a message that no slave has, and kill it; False if it refused.

    The slaves and the register stand still meanwhile, so the slaves stay in the in-sync set.
    """
    master = admin.replicas.status(GROUP).master
    name = next(name for name, address in cluster.brokers.items() if address == master)
    frozen = ["nameserver-1", *(each for each in cluster.brokers if each != name)]
    for each in frozen:
        cluster.pause(each)
    api = BrokerApi(transport, GROUP, master)
    try:
        # The fetches that the master still holds would take the message with them.
        wait_until(lambda: "\nrocketq_held_calls 0.0\n" in api.metrics())
        batch = write_stream([from_messages([Message(body)])])
        answer = api.send("orders", [0], batch)
    except InSyncSetUnsettled:
        # This machine stood still for so long that the master takes nothing more.
        return False
    else:
        assert answer.status is SendStatus.SEND_OK
        assert api.pull("orders", 0, 1).status is PullStatus.FOUND
        cluster.kill(name)
        return True
    finally:
        for each in frozen:
            cluster.resume(each)


def shown_by_all(cluster: LocalCluster, transport: Transport, bodies: list[bytes]) -> bool:
    """Whether every replica shows these messages and no others."""
    return all(shown(BrokerApi(transport, GROUP, each)) == bodies for each in cluster.brokers.values())


def shown(api: BrokerApi) -> list[bytes]:
    try:
        pulled = api.pull("orders", 0, 0)
    except RocketqError:
        return []
    return [body for piece in pulled.slices() for body in piece.batch.column("body").to_pylist()]
