"""What each replica of a group answers: clients, the other replicas, and operators."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketq import LocalCluster
from rocketq.admin.cluster import ClusterAdmin
from rocketq.errors import InvalidRequest, NotFound, TopicNotFound
from rocketq.errors.replication_errors import (
    ElectionRefused,
    EpochAhead,
    ForeignReplica,
    NotEnoughReplicas,
    NotMaster,
    ReplicaUnknown,
    StaleEpoch,
)
from rocketq.local_cluster.server_process import ServerProcess
from rocketq.model import Message, MessageQueue, PullStatus
from rocketq.net.broker_api import BrokerApi
from rocketq.net.replication_api import ReplicationApi
from rocketq.net.transport import Transport
from rocketq.protocol.arrow.stream_reader import write_stream
from rocketq.protocol.documents.broker import CreateTopicRequest
from rocketq.protocol.documents.replication import FETCH_PATH
from rocketq.protocol.message_schema import from_messages
from tests.support.conditions import WAIT_MS, wait_until
from tests.support.patience import PatientClient, patient_transport

GROUP = "broker-a"


@pytest.fixture(scope="module")
def transport() -> Iterator[Transport]:
    made = patient_transport()
    yield made
    made.close()


@pytest.fixture(scope="module")
def admin(group: LocalCluster) -> Iterator[ClusterAdmin]:
    with ClusterAdmin(group.nameservers) as made:
        yield made


def replicas(group: LocalCluster, transport: Transport) -> list[ReplicationApi]:
    """The master first."""
    apis = [ReplicationApi(transport, GROUP, address) for address in group.brokers.values()]
    return sorted(apis, key=lambda api: api.status().role)


def fetch_query(api: ReplicationApi, **changes: object) -> dict[str, str | int | None]:
    """The query of a slave that has everything."""
    status = api.status()
    fetch: dict[str, object] = {
        "group": status.group, "number": status.number, "incarnation": status.incarnation,
        "epoch": status.epoch, "end": 0, "last_epoch": 0, "held": 0, "confirmed": 0, "max_bytes": 1_000,
        "wait_ms": 0,
    }  # fmt: skip
    return fetch | changes  # type: ignore[return-value]


def test_one_replica_is_master_and_all_are_in_sync(group: LocalCluster, transport: Transport) -> None:
    master, *slaves = (api.status() for api in replicas(group, transport))
    assert master.role == "master"
    assert [slave.role for slave in slaves] == ["slave", "slave"]
    assert all(each.is_in_sync for each in master.replicas)
    assert {slave.master for slave in slaves} == {master.master}


def test_what_is_sent_is_read_from_each_replica(
    group: LocalCluster, transport: Transport, topic: str
) -> None:
    with PatientClient(group.nameservers) as client:
        result = client.producer().send(topic, b"hello", queue=0)
    for address in group.brokers.values():
        api = BrokerApi(transport, GROUP, address)

        def shown(api: BrokerApi = api) -> bool:
            try:
                return api.pull(topic, 0, result.offset).status is PullStatus.FOUND
            except (TopicNotFound, NotFound):
                return False

        wait_until(shown)


def test_a_slave_refuses_a_send_and_names_the_master(
    group: LocalCluster, transport: Transport, topic: str
) -> None:
    master, slave, _ = replicas(group, transport)
    body = write_stream([from_messages([Message(b"x")])])
    with pytest.raises(NotMaster) as refused:
        BrokerApi(transport, GROUP, slave.address).send(topic, [0], body)
    assert refused.value.facts["master"] == master.address


def test_a_slave_refuses_reads_that_only_a_master_may_answer(
    group: LocalCluster, transport: Transport, topic: str
) -> None:
    with PatientClient(group.nameservers) as client:
        client.producer().send(topic, b"x", queue=0)
    master, slave = (BrokerApi(transport, GROUP, api.address) for api in replicas(group, transport)[:2])
    assert master.offsets(topic, master_only=True).total == 1
    assert master.pull(topic, 0, 0, master_only=True).status is PullStatus.FOUND
    with pytest.raises(NotMaster):
        slave.offsets(topic, master_only=True)
    with pytest.raises(NotMaster):
        slave.pull(topic, 0, 0, master_only=True)


def test_a_slave_refuses_to_create_a_topic(group: LocalCluster, transport: Transport, topic: str) -> None:
    slave = replicas(group, transport)[1]
    with pytest.raises(NotMaster):
        BrokerApi(transport, GROUP, slave.address).create_topic(topic, CreateTopicRequest())


def test_the_route_names_the_master_with_the_id_0_and_the_slaves_with_theirs(
    group: LocalCluster, transport: Transport, admin: ClusterAdmin
) -> None:
    master = replicas(group, transport)[0].status()
    addresses = admin.replicas.addresses(GROUP)
    assert addresses[0] == master.master
    assert set(addresses) == {0, 1, 2, 3} - {master.number}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"epoch": 99}, EpochAhead),
        ({"epoch": 0}, StaleEpoch),
        ({"group": "another"}, ForeignReplica),
        ({"incarnation": "another"}, ReplicaUnknown),
        ({"number": 9}, ReplicaUnknown),
    ],
)
def test_a_fetch_that_does_not_belong_here_is_refused(
    group: LocalCluster, transport: Transport, changes: dict[str, object], error: type[Exception]
) -> None:
    master, slave, _ = replicas(group, transport)
    with pytest.raises(error):
        transport.call("GET", master.address, FETCH_PATH, query=fetch_query(slave, **changes))


def test_a_fetch_from_a_slave_is_refused(group: LocalCluster, transport: Transport) -> None:
    _, slave, other = replicas(group, transport)
    with pytest.raises(NotMaster):
        transport.call("GET", slave.address, FETCH_PATH, query=fetch_query(other))


@pytest.mark.parametrize("name", ["end", "wait_ms", "held"])
def test_a_fetch_with_a_number_that_is_none_is_refused(
    group: LocalCluster, transport: Transport, name: str
) -> None:
    master, slave, _ = replicas(group, transport)
    with pytest.raises(InvalidRequest, match=name):
        transport.call("GET", master.address, FETCH_PATH, query=fetch_query(slave, **{name: "much"}))


def test_a_broker_without_replicas_says_so(cluster: LocalCluster, transport: Transport) -> None:
    address = cluster.brokers["broker-a"]
    with pytest.raises(NotFound, match="broker id"):
        ReplicationApi(transport, GROUP, address).status()
    with pytest.raises(NotFound):
        transport.call("GET", address, FETCH_PATH)


def test_promoting_the_master_is_refused(group: LocalCluster, transport: Transport) -> None:
    with pytest.raises(ElectionRefused, match="it is master"):
        replicas(group, transport)[0].promote()


def test_a_handover_to_a_replica_that_is_not_there_is_refused(
    group: LocalCluster, admin: ClusterAdmin
) -> None:
    with pytest.raises(ElectionRefused):
        admin.replicas.hand_over(GROUP, 9)


def test_a_handover_changes_the_master_and_a_producer_goes_on(
    group: LocalCluster, transport: Transport, admin: ClusterAdmin, topic: str
) -> None:
    with PatientClient(group.nameservers) as client:
        producer = client.producer()
        first = producer.send(topic, b"before", queue=MessageQueue(topic, GROUP, 0))
        before = admin.replicas.status(GROUP)
        epoch = admin.replicas.hand_over(GROUP)
        assert epoch == before.epoch + 1
        second = producer.send(topic, b"after", queue=MessageQueue(topic, GROUP, 0))
    assert second.offset == first.offset + 1
    assert replicas(group, transport)[0].status().number != before.number


def test_a_promoted_slave_is_master(group: LocalCluster, transport: Transport, admin: ClusterAdmin) -> None:
    wait_until(lambda: all(each.is_in_sync for each in replicas(group, transport)[0].status().replicas))
    slave = replicas(group, transport)[1].status()
    epoch = replicas(group, transport)[1].promote()
    assert epoch == slave.epoch + 1
    wait_until(lambda: replicas(group, transport)[0].status().number == slave.number)


def test_the_metrics_name_role_epoch_and_lag(group: LocalCluster, transport: Transport) -> None:
    master = replicas(group, transport)[0]
    wait_until(lambda: all(each.behind_ms is not None for each in master.status().replicas))
    said = bytes(transport.call("GET", master.address, "/metrics").body).decode()
    assert "rocketq_replica_is_master{" in said
    assert said.count("rocketq_replica_lag_bytes{") == 2, "of each slave that the master has heard of"


def test_too_few_replicas_in_sync_refuse_a_send_before_it_is_stored(transport: Transport, topic: str) -> None:
    body = write_stream([from_messages([Message(b"x")])])
    with LocalCluster(brokers=1, replicas=2) as pair, ClusterAdmin(pair.nameservers) as admin:
        admin.topics.create(topic, CreateTopicRequest(1, 1), wait_ms=WAIT_MS)
        status = admin.replicas.status(GROUP)
        slave = next(name for name, address in pair.brokers.items() if address != status.master)
        pair.kill(slave)
        wait_until(lambda: sum(e.is_in_sync for e in admin.replicas.status(GROUP).replicas) == 1)
        with pytest.raises(NotEnoughReplicas, match="1 of at least 2"):
            BrokerApi(transport, GROUP, status.master).send(topic, [0], body)
        assert admin.replicas.status(GROUP).end == status.end
        pair.restart(slave)
        BrokerApi(transport, GROUP, status.master).send(topic, [0], body)


def test_a_second_process_with_the_number_of_a_live_replica_ends_and_harms_nobody(
    group: LocalCluster, transport: Transport
) -> None:
    number = replicas(group, transport)[0].status().number
    arguments = [
        "--name", GROUP, "--broker-id", str(number), "--data-dir", str(group.data_dir / "second"),
        "--nameservers", ",".join(group.nameservers),
    ]  # fmt: skip
    second = ServerProcess(
        "second", "rocketq_broker", arguments, port=0, log=group.data_dir / "logs" / "second.log"
    )
    second.launch()
    wait_until(lambda: not second.running)
    assert "Another live process is replica" in second.log_tail()
    assert replicas(group, transport)[0].status().number == number
