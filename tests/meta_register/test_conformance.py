"""What every register must do, whichever keeps it; and what those in NameServers do when some are down."""

from __future__ import annotations

import threading

import pytest

from rocketq.errors import InvalidConfiguration, RegisterChanged, RegisterUnavailable
from rocketq.http_server.runner import ServerThread
from rocketq.protocol.documents.meta_register import RECORD_CHARS_MAX
from rocketq_broker.meta_register.meta_register import MetaRegister, Registered
from rocketq_nameserver.app import create_app
from rocketq_nameserver.config import NameServerConfig
from tests.meta_register.conftest import Acceptors, EtcdMember, without_etcd
from tests.support.http_client import JSON, Http

Backend = Acceptors | EtcdMember


@pytest.fixture
def register(backend: Backend) -> MetaRegister:
    return backend.handle()


@pytest.fixture
def other(backend: Backend) -> MetaRegister:
    """The same register, as another broker has it."""
    return backend.handle()


def test_a_register_that_was_never_set_has_version_0(register: MetaRegister) -> None:
    assert register.read() == Registered(0, "")


def test_what_one_broker_sets_the_other_one_reads(register: MetaRegister, other: MetaRegister) -> None:
    assert register.cas(0, '{"größe": 1}') == Registered(1, '{"größe": 1}')
    assert other.read() == Registered(1, '{"größe": 1}')
    assert other.cas(1, "second") == Registered(2, "second")
    assert register.read() == Registered(2, "second")


def test_a_change_of_another_version_changes_nothing(register: MetaRegister, other: MetaRegister) -> None:
    register.cas(0, "first")
    for version in (0, 2):
        with pytest.raises(RegisterChanged):
            other.cas(version, "wrong")
    assert register.read() == Registered(1, "first")


def test_of_several_changes_of_one_version_one_takes_effect(backend: Backend) -> None:
    handles: list[MetaRegister] = [backend.handle() for _ in range(3)]
    won: list[Registered] = []
    unknown: list[str] = []

    def change(register: MetaRegister, name: str) -> None:
        for attempt in range(4):
            found = register.read()
            try:
                won.append(register.cas(found.version, f"{name}.{attempt}"))
            except RegisterChanged:
                continue
            except RegisterUnavailable:
                unknown.append(name)

    threads = [threading.Thread(target=change, args=(handle, f"p{n}")) for n, handle in enumerate(handles)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last = handles[0].read().version
    assert len({found.version for found in won}) == len(won) >= 1
    assert len(won) <= last <= len(won) + len(unknown)


def test_registers_of_two_groups_are_two_registers(backend: Backend) -> None:
    backend.handle("broker-a").cas(0, "a")
    assert backend.handle("broker-b").read() == Registered(0, "")


def test_a_majority_is_enough_and_less_is_not(acceptors: Acceptors) -> None:
    register = acceptors.handle()
    register.cas(0, "first")
    acceptors.stop(0)
    assert register.cas(1, "second") == Registered(2, "second")
    acceptors.stop(1)
    with pytest.raises(RegisterUnavailable):
        acceptors.handle(timeout_ms=200).read()
    acceptors.start(0)
    assert acceptors.handle().read() == Registered(2, "second")


def test_a_register_outlives_the_restart_of_all_its_acceptors(acceptors: Acceptors) -> None:
    acceptors.handle().cas(0, "kept")
    for place in range(3):
        acceptors.stop(place)
    for place in range(3):
        acceptors.start(place)
    assert acceptors.handle().read() == Registered(1, "kept")


@without_etcd
def test_a_register_in_etcd_outlives_its_restart_and_says_when_nobody_answers(etcd: EtcdMember) -> None:
    register = etcd.handle()
    register.cas(0, "kept")
    etcd.etcd.stop()
    with pytest.raises(RegisterUnavailable):
        register.cas(1, "unknown")
    etcd.etcd.start()
    assert register.read() == Registered(1, "kept")


def test_one_acceptor_under_three_addresses_is_no_majority(acceptors: Acceptors) -> None:
    acceptors.addresses[1:] = [acceptors.addresses[0]] * 2
    with pytest.raises(RegisterUnavailable):
        acceptors.handle(timeout_ms=200).cas(0, "alone")


def test_an_acceptor_refuses_calls_that_no_proposer_makes(acceptors: Acceptors) -> None:
    http = Http(acceptors.addresses[0])

    def refused(path: str, body: str) -> tuple[int, str]:
        answer = http.call("POST", f"/v1/registers/{path}", body.encode(), JSON)
        return answer.status, answer.code

    ballot = '"ballot": {"number": 1, "proposer": "p"}'
    assert refused("c/b%20x/prepare", f"{{{ballot}}}") == (400, "INVALID_NAME")
    assert refused("c/b/prepare", '{"ballot": {"number": 0, "proposer": "p"}}') == (400, "INVALID_REQUEST")
    assert refused("c/b/prepare", '{"ballot": {"number": 1, "proposer": ""}}') == (400, "INVALID_REQUEST")
    large = "x" * (RECORD_CHARS_MAX + 1)
    value = f'"value": {{"version": 1, "author": "a", "record": "{large}"}}'
    assert refused("c/b/accept", f"{{{ballot}, {value}}}") == (413, "TOO_LARGE")


def test_a_nameserver_without_a_directory_for_registers_has_none() -> None:
    body = b'{"ballot": {"number": 1, "proposer": "p"}}'
    with ServerThread(create_app(NameServerConfig())) as server:
        answer = Http(server.address).call("POST", "/v1/registers/c/b/prepare", body, JSON)
    assert (answer.status, answer.code) == (404, "NOT_FOUND")


def test_a_new_register_needs_a_directory() -> None:
    with pytest.raises(InvalidConfiguration, match="needs register_dir"):
        NameServerConfig(register_is_new=True)
