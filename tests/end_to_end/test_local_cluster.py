"""A LocalCluster is what it says: real processes that crash, freeze, come back, and are never left over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rocketq import Client, LocalCluster, TransportConfig
from rocketq.admin.cluster import ClusterAdmin
from rocketq.errors import InvalidConfiguration, RocketqError
from rocketq.local_cluster.server_process import ServerNotStarted
from tests.support.patience import PatientClient


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_gone(pid: int) -> None:
    descriptor = os.pidfd_open(pid) if is_alive(pid) else None
    if descriptor is not None:
        import select

        gone, _, _ = select.select([descriptor], [], [], 30)
        os.close(descriptor)
        assert gone, f"process {pid} outlived its owner"


def test_a_started_cluster_can_be_used_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    with LocalCluster(brokers=2, nameservers=2) as cluster:
        assert list(cluster.brokers) == ["broker-a", "broker-b"]
        assert len(cluster.nameservers) == 2
        with PatientClient(cluster.nameservers) as client:
            client.create_topic("t", queues=1)
            with client.producer() as producer:
                assert producer.send("t", b"hi").count == 1
        pids = [cluster.pid(name) for name in cluster.names]
        data = cluster.data_dir
    assert not [pid for pid in pids if is_alive(pid)]
    assert not data.exists()


def test_a_killed_broker_comes_back_under_its_address_with_its_messages(tmp_path: Path) -> None:
    with LocalCluster(brokers=1, data_dir=tmp_path) as cluster, PatientClient(cluster.nameservers) as client:
        address = cluster.brokers["broker-a"]
        client.create_topic("t", queues=1)
        with client.producer() as producer:
            producer.send("t", b"before the crash")
        cluster.kill("broker-a")
        assert not cluster.running("broker-a")
        cluster.restart("broker-a")
        assert cluster.brokers["broker-a"] == address
        with client.pull_consumer(["t"], start="earliest") as consumer:
            assert [m.body for m in consumer.poll(timeout_ms=60_000)] == [b"before the crash"]
    assert (tmp_path / "broker-a").is_dir(), "a given data directory is the owner's"


def test_a_restarted_nameserver_knows_every_broker_again() -> None:
    often = ["--heartbeat-ms", "200"]
    with LocalCluster(brokers=2, nameservers=2, broker_arguments=often) as cluster:
        with PatientClient(cluster.nameservers) as client:
            client.create_topic("t", queues=1)
        cluster.kill("nameserver-1")
        cluster.restart("nameserver-1")
        with PatientClient(cluster.nameservers[0]) as client:
            assert {live.identity.broker for live in client.cluster().brokers} == set(cluster.brokers)
            assert len(client.route("t").queues) == 2


def test_a_frozen_server_answers_nothing_until_it_goes_on() -> None:
    with LocalCluster(brokers=1) as cluster:
        with PatientClient(cluster.nameservers) as client:
            cluster.pause("nameserver-1")
            impatient = TransportConfig(timeout_ms=300)
            with Client(cluster.nameservers, transport=impatient) as other, pytest.raises(RocketqError):
                other.create_topic("t", queues=1)
            cluster.resume("nameserver-1")
            client.create_topic("u", queues=1)
        cluster.pause("broker-a")
    assert not cluster.running("broker-a"), "a frozen server is stopped, too"


def test_a_server_that_cannot_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    cluster = LocalCluster(brokers=1, data_dir=tmp_path, broker_arguments=["--no-such-option"])
    with pytest.raises(ServerNotStarted, match="no-such-option") as caught:
        cluster.start()
    assert caught.value.facts["server"] == "broker-a"
    assert not [name for name in cluster.names if cluster.running(name)]
    assert "no-such-option" in (tmp_path / "logs" / "broker-a.log").read_text()


def test_a_name_that_is_no_server_is_answered_with_the_names_there_are(cluster: LocalCluster) -> None:
    with pytest.raises(InvalidConfiguration, match="broker-a, broker-b"):
        cluster.kill("broker-z")


@pytest.mark.parametrize("brokers", [0, 27])
def test_an_impossible_number_of_brokers_is_refused(brokers: int) -> None:
    with pytest.raises(InvalidConfiguration):
        LocalCluster(brokers=brokers)


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_servers_do_not_outlive_an_owner_that_dies(ending: signal.Signals) -> None:
    script = textwrap.dedent(
        """
        import sys
        from rocketq import LocalCluster
        cluster = LocalCluster(brokers=1).start()
        print(*[cluster.pid(name) for name in cluster.names], flush=True)
        sys.stdin.read()
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(is_alive, pids))
        owner.send_signal(ending)
        owner.wait(60)
    for pid in pids:
        wait_gone(pid)


@pytest.mark.parametrize(
    "form", [["--advertise", "http://broker.example:1/"], ["--advertise=http://[::1]:1"]]
)
def test_a_cluster_is_ready_when_its_broker_is_known_under_another_address(form: list[str]) -> None:
    with (
        LocalCluster(brokers=1, broker_arguments=form) as cluster,
        ClusterAdmin(cluster.nameservers) as admin,
    ):
        (view,) = admin.views().views.values()
    advertised = form[-1].removeprefix("--advertise=").rstrip("/")
    assert [live.identity.address for live in view.brokers] == [advertised]


def test_servers_of_a_local_cluster_see_no_settings_of_other_servers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ROCKETQ_CONFIG", str(tmp_path / "of another server.toml"))
    monkeypatch.setenv("ROCKETQ_BROKER_PORT", "none")
    with LocalCluster(brokers=1) as cluster:
        assert cluster.running("broker-a")
