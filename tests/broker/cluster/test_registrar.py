"""A broker and real NameServers: who knows what, and when."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rocketq.errors import RouteNotFound
from rocketq.http_server.runner import Binding, ServerThread
from rocketq.local_cluster.server_process import ServerProcess
from rocketq.model import TopicConfig
from rocketq.net.nameserver_api import NameServerApi
from rocketq.protocol.documents.nameserver import BrokerIdentity, DataVersion, UnregisterRequest
from rocketq_broker.app import create_app
from rocketq_broker.config import BrokerConfig
from rocketq_broker.registration.registrar import Registrar
from rocketq_nameserver.app import create_app as create_nameserver
from rocketq_nameserver.config import NameServerConfig
from tests.broker.conftest import StartBroker
from tests.support.conditions import WAIT_MS, wait_until
from tests.support.http_client import Http, numbered, stream
from tests.support.patience import patient_transport

SEND_HEAD = (
    b"POST /v1/topics/orders/messages HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n"
    b"content-type: application/vnd.apache.arrow.stream\r\ncontent-length: %d\r\n\r\n"
)
BODY = stream(numbered(3))
IDENTITY = BrokerIdentity("default", "broker-x", 0, "http://127.0.0.1:1")


class Table:
    """A topic table that a test changes by hand."""

    def __init__(self) -> None:
        self.data_version = DataVersion(0, 1, 1)
        self._topics: tuple[TopicConfig, ...] = ()

    def topics(self) -> tuple[TopicConfig, ...]:
        return self._topics

    def add(self, name: str) -> None:
        self._topics = (*self._topics, TopicConfig(name))
        self.data_version = self.data_version.next(2)


StartNameServer = Callable[..., NameServerApi]


@pytest.fixture
def start_nameserver() -> Iterator[StartNameServer]:
    """Start a NameServer, on a given port if one is given; return how to call it."""
    running: list[ServerThread] = []
    transport = patient_transport()

    def start(port: int = 0, **fields: Any) -> NameServerApi:
        server = ServerThread(create_nameserver(NameServerConfig(**fields)), binding=Binding(port=port))
        server.__enter__()
        running.append(server)
        return NameServerApi(transport, server.address)

    yield start
    transport.close()
    for server in running:
        server.__exit__(None, None, None)


def known_brokers(nameserver: NameServerApi) -> dict[str, str]:
    return {live.identity.broker: live.identity.address for live in nameserver.cluster().brokers}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@pytest.fixture
def start_registrar() -> Iterator[Callable[..., Registrar]]:
    started: list[Registrar] = []

    def start(table: Table, *addresses: str, heartbeat_ms: int = 50, lease_ms: int = 10_000) -> Registrar:
        registrar = Registrar(IDENTITY, addresses, table, heartbeat_ms=heartbeat_ms, lease_ms=lease_ms)
        registrar.start()
        started.append(registrar)
        return registrar

    yield start
    for registrar in started:
        registrar.stop()


def test_a_broker_is_known_to_every_nameserver_under_its_address(
    start_nameserver: StartNameServer, start_broker: StartBroker
) -> None:
    nameservers = [start_nameserver(), start_nameserver()]
    broker = start_broker(name="broker-a", nameservers=tuple(each.address for each in nameservers))
    for nameserver in nameservers:
        wait_until(lambda: known_brokers(nameserver) == {"broker-a": broker.address})  # noqa: B023
    assert broker.get("/readyz").status == 200


def test_a_new_topic_has_a_route_at_once(
    start_nameserver: StartNameServer, start_broker: StartBroker
) -> None:
    nameserver = start_nameserver()
    # The next heartbeat is minutes away: only the change itself can bring the news.
    broker = start_broker(nameservers=(nameserver.address,), heartbeat_ms=300_000, lease_ms=600_000)
    broker.create("orders", read_queues=3, write_queues=2)
    route = nameserver.route("orders", since=0, wait_ms=WAIT_MS)
    assert [(each.read_queues, each.write_queues) for each in route.queues] == [(3, 2)]
    assert route.incarnation("broker-0") == broker.get("/v1/topics/orders").json["config"]["incarnation"]
    broker.call("PATCH", "/v1/topics/orders", b'{"write_queues": 3}', {"content-type": "application/json"})
    assert nameserver.route("orders", since=route.version, wait_ms=WAIT_MS).queues[0].write_queues == 3


def test_a_topic_created_by_a_send_has_a_route_too(
    start_nameserver: StartNameServer, start_broker: StartBroker
) -> None:
    nameserver = start_nameserver()
    broker = start_broker(nameservers=(nameserver.address,))
    assert broker.send_json("fresh", {"body": "a"}).status == 200
    assert len(nameserver.route("fresh", since=0, wait_ms=WAIT_MS).read_queues()) == 4


def test_the_advertised_address_is_what_others_are_told(
    start_nameserver: StartNameServer, start_broker: StartBroker
) -> None:
    nameserver = start_nameserver()
    start_broker(nameservers=(nameserver.address,), advertise="http://broker.example:80/")
    wait_until(lambda: known_brokers(nameserver) == {"broker-0": "http://broker.example:80"})


def test_a_broker_that_stops_in_good_order_is_forgotten_at_once(
    start_nameserver: StartNameServer, start_registrar: Callable[..., Registrar]
) -> None:
    nameserver = start_nameserver()
    registrar = start_registrar(Table(), nameserver.address, lease_ms=3_600_000)
    wait_until(lambda: known_brokers(nameserver) == {"broker-x": IDENTITY.address})
    registrar.stop()
    assert known_brokers(nameserver) == {}
    assert not registrar.ready


def test_heartbeats_renew_the_lease_again_and_again(
    start_nameserver: StartNameServer, start_registrar: Callable[..., Registrar]
) -> None:
    nameserver = start_nameserver(scan_interval_ms=10)
    start_registrar(Table(), nameserver.address, heartbeat_ms=20, lease_ms=60_000)
    wait_until(lambda: bool(known_brokers(nameserver)))
    renewals = 0
    age_ms = 0
    while renewals < 20:
        (live,) = nameserver.cluster().brokers
        renewals += live.age_ms < age_ms
        age_ms = live.age_ms


def test_a_nameserver_that_starts_later_learns_all_at_the_next_heartbeat(
    start_nameserver: StartNameServer, start_registrar: Callable[..., Registrar]
) -> None:
    port = free_port()
    table = Table()
    table.add("orders")
    registrar = start_registrar(table, f"http://127.0.0.1:{port}")
    wait_until(lambda: registrar.statuses()[0].problem != "")
    assert not registrar.ready
    nameserver = start_nameserver(port)
    assert nameserver.route("orders", since=0, wait_ms=WAIT_MS).brokers[0].master == IDENTITY.address
    wait_until(lambda: registrar.ready)


def test_a_restarted_nameserver_gets_a_full_registration(
    start_nameserver: StartNameServer, start_registrar: Callable[..., Registrar]
) -> None:
    nameserver = start_nameserver()
    table = Table()
    table.add("orders")
    start_registrar(table, nameserver.address)
    nameserver.route("orders", since=0, wait_ms=WAIT_MS)
    nameserver.unregister(UnregisterRequest(IDENTITY))
    wait_until(lambda: known_brokers(nameserver) == {"broker-x": IDENTITY.address})
    assert nameserver.route("orders").brokers[0].master == IDENTITY.address


def test_a_nameserver_that_never_answers_delays_no_other(
    start_nameserver: StartNameServer, start_registrar: Callable[..., Registrar]
) -> None:
    nameserver = start_nameserver()
    with socket.create_server(("127.0.0.1", 0)) as mute:
        table = Table()
        registrar = start_registrar(
            table, f"http://127.0.0.1:{mute.getsockname()[1]}", nameserver.address, heartbeat_ms=600_000
        )
        wait_until(lambda: registrar.ready)
        for number in range(3):
            table.add(f"topic-{number}")
            registrar.topics_changed()
            nameserver.route(f"topic-{number}", since=0, wait_ms=WAIT_MS)
        assert [each.registered for each in registrar.statuses()] == [False, True]
        registrar.stop()
        assert known_brokers(nameserver) == {}


def test_an_unregistered_broker_s_topics_have_no_route(
    start_nameserver: StartNameServer, start_registrar: Callable[..., Registrar]
) -> None:
    nameserver = start_nameserver()
    table = Table()
    table.add("orders")
    registrar = start_registrar(table, nameserver.address)
    nameserver.route("orders", since=0, wait_ms=WAIT_MS)
    registrar.stop()
    with pytest.raises(RouteNotFound):
        nameserver.route("orders")


def test_a_stopping_broker_is_unlisted_while_it_finishes_its_calls(
    start_nameserver: StartNameServer, tmp_path: Path
) -> None:
    nameserver = start_nameserver()
    config = BrokerConfig(name="broker-a", data_dir=tmp_path, nameservers=(nameserver.address,))
    app = create_app(config)
    with ServerThread(app) as server:
        broker = Http(server.address)
        broker.create("orders")
        nameserver.route("orders", since=0, wait_ms=WAIT_MS)
        with socket.create_connection((broker.host, broker.port), timeout=60) as client:
            client.sendall(SEND_HEAD % len(BODY))
            assert client.recv(100).startswith(b"HTTP/1.1 100")
            server.call(app.begin_shutdown)
            wait_until(lambda: known_brokers(nameserver) == {})
            refused = broker.send("orders", BODY)
            assert (refused.status, refused.code) == (503, "BROKER_UNAVAILABLE")
            client.sendall(BODY)
            assert client.recv(15) == b"HTTP/1.1 200 OK"


def test_a_killed_broker_is_forgotten_when_its_lease_ends(
    start_nameserver: StartNameServer, tmp_path: Path
) -> None:
    nameserver = start_nameserver(scan_interval_ms=10)
    process = ServerProcess(
        "broker-a",
        "rocketq_broker",
        [
            *("--name", "broker-a", "--data-dir", str(tmp_path / "data")),
            *("--nameservers", nameserver.address, "--heartbeat-ms", "100", "--lease-ms", "400"),
        ],
        port=0,
        log=tmp_path / "broker.log",
    )
    process.start()
    try:
        address = process.address
        wait_until(lambda: known_brokers(nameserver) == {"broker-a": address})
        Http(address).create("orders")
        version = nameserver.route("orders", since=0, wait_ms=WAIT_MS).version
        process.kill()
        with suppress(RouteNotFound):
            # A lease that ended while the machine was busy, and a registration anew, are changes as well.
            while True:
                version = nameserver.route("orders", since=version, wait_ms=WAIT_MS).version
        assert known_brokers(nameserver) == {}
    finally:
        process.kill()
