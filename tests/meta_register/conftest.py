"""Registers to test, each with handles that proposers of several brokers would have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketq.config import TransportConfig
from rocketq.http_server.runner import ServerThread
from rocketq.net.transport import Transport
from rocketq_broker.meta_register.etcd_register import EtcdRegister
from rocketq_broker.meta_register.nameserver_register import NameServerRegister
from rocketq_nameserver.app import create_app
from rocketq_nameserver.config import NameServerConfig
from tests.support.etcd import Etcd, without_etcd


class Acceptors:
    """Three NameServers that keep registers, each of which can be stopped and started on its directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        #: Of each one; another one after a restart.
        self.addresses = ["", "", ""]
        self.servers: dict[int, ServerThread] = {}
        self.transport = Transport(TransportConfig())
        self.handles: list[NameServerRegister] = []
        for place in range(3):
            self.start(place)

    def start(self, place: int) -> None:
        directory = self.root / f"acceptor-{place}"
        is_new = not directory.exists()
        config = NameServerConfig(register_dir=directory, register_is_new=is_new, scan_interval_ms=600_000)
        self.servers[place] = ServerThread(create_app(config)).__enter__()
        self.addresses[place] = self.servers[place].address

    def stop(self, place: int) -> None:
        self.servers.pop(place).__exit__(None, None, None)

    def handle(self, broker: str = "broker-a", timeout_ms: int = 20_000) -> NameServerRegister:
        """Return a register as one more broker has it."""
        made = NameServerRegister(
            self.transport, self.addresses, "DefaultCluster", broker, timeout_ms=timeout_ms
        )
        self.handles.append(made)
        return made

    def close(self) -> None:
        for handle in self.handles:
            handle.close()
        for place in list(self.servers):
            self.stop(place)
        self.transport.close()


class EtcdMember:
    """One etcd process with a register on it, as the tests use `Acceptors`."""

    def __init__(self, root: Path) -> None:
        self.etcd = Etcd(root)
        self.transport = Transport(TransportConfig())
        self.etcd.start()

    def handle(self, broker: str = "broker-a", timeout_ms: int = 20_000) -> EtcdRegister:
        return EtcdRegister(
            self.transport, [self.etcd.address], "DefaultCluster", broker, timeout_ms=timeout_ms
        )

    def close(self) -> None:
        self.transport.close()
        self.etcd.stop()


@pytest.fixture(params=["nameservers", pytest.param("etcd", marks=without_etcd)])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Acceptors | EtcdMember]:
    """Whatever keeps a register."""
    made = Acceptors(tmp_path) if request.param == "nameservers" else EtcdMember(tmp_path)
    yield made
    made.close()


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdMember]:
    made = EtcdMember(tmp_path)
    yield made
    made.close()


@pytest.fixture
def acceptors(tmp_path: Path) -> Iterator[Acceptors]:
    made = Acceptors(tmp_path)
    yield made
    made.close()
