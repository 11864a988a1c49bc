"""Questions to a whole cluster, as the command line and a console put them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec
import pytest

from rocketq import BrokerUnreachable, LocalCluster, NameServersUnreachable, NotFound
from rocketq.admin.cluster import ClusterAdmin
from rocketq.admin.groups import QueueProgress
from rocketq.clock import SystemClock
from rocketq.errors import InvalidConfiguration, InvalidRequest
from rocketq.errors.group_errors import GroupNotFound
from rocketq.errors.sink_errors import SinkNotFound
from rocketq.http_server.runner import ServerThread
from rocketq.net.broker_api import BrokerApi
from rocketq.net.nameserver_api import NameServerApi
from rocketq.protocol.documents.broker import CommitOffsetsRequest, GroupOffset
from rocketq.protocol.documents.nameserver import BrokerIdentity, DataVersion, RegisterRequest
from rocketq_nameserver.app import create_app
from rocketq_nameserver.config import NameServerConfig
from tests.support.patience import PatientClient, patient_transport

#: Nothing listens there: the port is reserved (RFC 6335, tcpmux).
NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[ClusterAdmin]:
    with ClusterAdmin(cluster.nameservers) as admin:
        yield admin


def test_live_masters_are_listed_by_name_and_cluster(cluster: LocalCluster, admin: ClusterAdmin) -> None:
    identities = admin.masters.identities()
    assert list(identities) == sorted(cluster.brokers)
    addresses = {api.broker: api.address for api in admin.masters.apis()}
    assert addresses == {name: one.address for name, one in identities.items()}
    (name,) = {one.cluster for one in identities.values()}
    assert [api.broker for api in admin.masters.apis(name)] == sorted(cluster.brokers)
    assert admin.masters.apis("another") == []
    assert admin.masters.named("broker-a").address == addresses["broker-a"]
    with pytest.raises(NotFound, match="broker-z"):
        admin.masters.named("broker-z")


def test_a_nameserver_that_is_down_is_named_beside_the_views_of_the_others(cluster: LocalCluster) -> None:
    with ClusterAdmin([*cluster.nameservers, NOBODY]) as admin:
        found = admin.views()
    assert list(found.views) == list(cluster.nameservers)
    for view in found.views.values():
        assert {live.identity.broker for live in view.brokers} == set(cluster.brokers)
    assert list(found.unreachable) == [NOBODY]
    with ClusterAdmin(NOBODY) as admin, pytest.raises(NameServersUnreachable, match=NOBODY):
        admin.views()


def test_the_progress_of_a_group_is_told_for_each_queue(
    cluster: LocalCluster, admin: ClusterAdmin, topic: str
) -> None:
    with PatientClient(cluster.nameservers) as mq:
        mq.create_topic(topic, queues=1, brokers=["broker-a"])
        with mq.producer() as producer:
            for _ in range(3):
                producer.send(topic, b"x")
        broker = admin.masters.named("broker-a")
        broker.commit_offsets(topic, CommitOffsetsRequest((GroupOffset(topic, 0, 1),)))
        [progress] = admin.groups.progress(topic)
        assert progress.lag_ms is not None
        assert replace(progress, lag_ms=None) == QueueProgress(topic, "broker-a", 0, 1, 3, 2, None, None)
        assert topic in {config.name for config in admin.topics.configs()["broker-a"]}
        mq.delete_topic(topic)
    assert admin.groups.progress(topic) == []
    with pytest.raises(GroupNotFound, match=topic):
        admin.groups.progress(f"{topic}-unknown")


def test_a_sink_is_described_and_deleted_on_the_chosen_brokers(admin: ClusterAdmin, topic: str) -> None:
    coordinator, other = admin.masters.apis()
    for each in (coordinator, other):
        each.register_sink(topic, coordinator.broker)
    coordinator.begin_run(topic, "run-1", "query-1")
    (summary,) = [one for one in admin.sinks.summaries() if one.sink == topic]
    assert (summary.coordinator, summary.run, summary.pending) == (coordinator.broker, "run-1", 0)
    assert admin.sinks.coordinator(topic).broker == coordinator.broker
    with pytest.raises(InvalidConfiguration, match="nobody"):
        admin.sinks.delete(topic, ["nobody"])
    admin.sinks.delete(topic, [coordinator.broker])
    assert [one.broker for one in admin.sinks.describe(topic)] == [other.broker]
    with pytest.raises(BrokerUnreachable, match="coordinates the sink"):
        admin.sinks.coordinator(topic)
    (summary,) = [one for one in admin.sinks.summaries() if one.sink == topic]
    assert (summary.run, summary.decided, summary.pending) == (None, None, None)
    admin.sinks.delete(topic)
    with pytest.raises(SinkNotFound):
        admin.sinks.describe(topic)


@pytest.fixture
def leaderless(cluster: LocalCluster, admin: ClusterAdmin) -> Iterator[tuple[str, Callable[[], None]]]:
    """A NameServer that lists broker-a as master, and of the group broker-b a slave only, until it is told
    that this one is master.
    """
    first, second = (admin.masters.identities()[name] for name in ("broker-a", "broker-b"))
    with (
        ServerThread(create_app(NameServerConfig(port=0), SystemClock())) as server,
        patient_transport() as transport,
    ):
        nameserver = NameServerApi(transport, server.address)

        def list_as(identity: BrokerIdentity) -> None:
            nameserver.register(
                RegisterRequest(
                    identity=identity, data_version=DataVersion(counter=1), topics=(), lease_ms=600_000
                )
            )

        list_as(first)
        list_as(msgspec.structs.replace(second, broker_id=1))
        yield server.address, lambda: list_as(second)


def test_a_sink_is_deleted_everywhere_or_nowhere_while_a_group_has_no_master(
    leaderless: tuple[str, Callable[[], None]], admin: ClusterAdmin, topic: str
) -> None:
    nameserver, elect = leaderless
    for each in admin.masters.apis():
        each.register_sink(topic, "broker-a")
    with ClusterAdmin(nameserver) as partial, PatientClient(nameserver) as mq:
        for delete in (
            lambda: partial.sinks.delete(topic),
            lambda: partial.sinks.delete(topic, ["broker-b"]),
            mq.sink(topic, timeout_ms=1).delete,
        ):
            with pytest.raises(BrokerUnreachable, match=r"broker-b .*no master"):
                delete()
        assert len(admin.sinks.describe(topic)) == 2
        partial.sinks.delete(topic, ["broker-a"])
        with pytest.raises(BrokerUnreachable, match=r"broker-b .*no master"):
            partial.sinks.describe(topic)
        elect()
        partial.sinks.delete(topic)
    with pytest.raises(SinkNotFound):
        admin.sinks.describe(topic)


def test_a_call_without_an_answer_raises_the_error_of_its_kind_of_server() -> None:
    with patient_transport() as transport:
        with pytest.raises(BrokerUnreachable, match=f"broker-a at {NOBODY}"):
            BrokerApi(transport, "broker-a", NOBODY).version()
        with pytest.raises(NameServersUnreachable, match=NOBODY):
            NameServerApi(transport, NOBODY).version()


def test_an_answer_of_another_shape_is_refused_and_names_the_server(cluster: LocalCluster) -> None:
    address = cluster.nameservers[0]
    # The NameServer's list of topics has no `broker`.
    of_a_nameserver = f"the answer of broker broker-a at {address}"
    with patient_transport() as transport, pytest.raises(InvalidRequest, match=of_a_nameserver):
        BrokerApi(transport, "broker-a", address).topics()
