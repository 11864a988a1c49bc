"""Brokers that are given a name which another live process has, as processes and in threads."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from rocketq.errors.registration_errors import BrokerNameTaken
from rocketq.local_cluster.server_process import ServerNotStarted, ServerProcess
from rocketq_broker.registration.directory_lock import locked_store
from rocketq_broker.registration.registrar import Registrar
from rocketq_broker.store.config import StoreConfig
from rocketq_broker.store.store import MessageStore
from tests.broker.cluster.test_registrar import (
    IDENTITY,
    StartNameServer,
    Table,
    free_port,
    known_brokers,
    start_nameserver,
)
from tests.support.conditions import wait_until
from tests.support.http_client import Http, numbered, stream
from tests.support.registrations import registration

__all__ = ["start_nameserver"]

StartProcess = Callable[..., ServerProcess]


@pytest.fixture
def make_process(tmp_path: Path) -> Iterator[StartProcess]:
    """Make broker processes named broker-a, each with its own directory; they are killed in the end."""
    made: list[ServerProcess] = []

    def make(directory: str, *arguments: str, lease_ms: int = 60_000) -> ServerProcess:
        process = ServerProcess(
            "broker-a",
            "rocketq_broker",
            [
                *("--name", "broker-a", "--data-dir", str(tmp_path / directory)),
                *("--heartbeat-ms", "50", "--lease-ms", str(lease_ms), *arguments),
            ],
            port=0,
            log=tmp_path / f"{directory}.log",
        )
        made.append(process)
        return process

    yield make
    for process in made:
        process.kill()


def test_a_second_process_with_a_live_brokers_name_ends_with_the_reason(
    start_nameserver: StartNameServer, make_process: StartProcess
) -> None:
    nameserver = start_nameserver()
    first = make_process("first", "--nameservers", nameserver.address)
    first.start()
    second = make_process("second", "--nameservers", nameserver.address)
    with pytest.raises(ServerNotStarted):
        second.start()
    said = second.log.read_text()
    assert "rocketq_broker: Broker name 'broker-a' (cluster 'default', id 0) is held by another live " in said
    assert first.address in said
    assert "--wait-for-name" in said
    assert second.stop() == 5
    assert known_brokers(nameserver) == {"broker-a": first.address}
    assert Http(first.address).get("/readyz").status == 200


def test_a_killed_broker_is_back_at_once_on_its_directory_and_another_port(
    start_nameserver: StartNameServer, make_process: StartProcess
) -> None:
    nameserver = start_nameserver()
    broker = make_process("data", "--nameservers", nameserver.address, lease_ms=3_600_000)
    broker.start()
    former = broker.address
    Http(former).create("orders")
    broker.kill()
    broker.move(free_port())
    broker.start()
    assert broker.address != former
    wait_until(lambda: known_brokers(nameserver) == {"broker-a": broker.address})
    assert nameserver.route("orders").brokers[0].master == broker.address


def test_a_copy_of_a_killed_broker_s_directory_does_not_get_its_name(
    start_nameserver: StartNameServer, make_process: StartProcess, tmp_path: Path
) -> None:
    nameserver = start_nameserver()
    broker = make_process("data", "--nameservers", nameserver.address, lease_ms=3_600_000)
    broker.start()
    broker.kill()
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    copy = make_process("copy", "--nameservers", nameserver.address)
    with pytest.raises(ServerNotStarted):
        copy.start()
    assert copy.stop() == 5


def test_a_broker_told_to_wait_serves_nothing_until_the_name_is_free(
    start_nameserver: StartNameServer, make_process: StartProcess
) -> None:
    nameserver = start_nameserver()
    first = make_process("first", "--nameservers", nameserver.address)
    first.start()
    second = make_process("second", "--nameservers", nameserver.address, "--wait-for-name")
    second.start()
    waiting = Http(second.address)
    assert waiting.get("/livez").status == 200
    ready = waiting.get("/readyz")
    assert ready.status == 503
    assert first.address in ready.json["missing"]["broker"]
    refused = waiting.send("orders", stream(numbered(1)))
    assert (refused.status, refused.code) == (503, "BROKER_UNAVAILABLE")
    assert known_brokers(nameserver) == {"broker-a": first.address}
    assert first.stop() == 0
    wait_until(lambda: known_brokers(nameserver) == {"broker-a": second.address})
    wait_until(lambda: waiting.get("/readyz").status == 200)
    assert waiting.send("orders", stream(numbered(1))).status == 200


def test_a_broker_that_waits_for_its_name_stops_when_it_is_told_to(
    start_nameserver: StartNameServer, make_process: StartProcess
) -> None:
    nameserver = start_nameserver()
    first = make_process("first", "--nameservers", nameserver.address)
    first.start()
    second = make_process("second", "--nameservers", nameserver.address, "--wait-for-name")
    second.start()
    assert second.stop() == 0
    assert known_brokers(nameserver) == {"broker-a": first.address}


def test_a_broker_waits_out_the_lease_of_a_process_that_was_killed(
    start_nameserver: StartNameServer, make_process: StartProcess
) -> None:
    nameserver = start_nameserver(scan_interval_ms=600_000)
    first = make_process("first", "--nameservers", nameserver.address, lease_ms=300)
    first.start()
    first.pause()
    second = make_process("second", "--nameservers", nameserver.address, "--wait-for-name")
    second.start()
    wait_until(lambda: known_brokers(nameserver) == {"broker-a": second.address})
    # The first one lives after all: its next heartbeat is answered that the name has another owner.
    first.resume()
    wait_until(lambda: not first.running)
    assert first.stop() == 5
    assert known_brokers(nameserver) == {"broker-a": second.address}


def test_a_second_process_gives_the_name_back_to_its_owner(
    start_nameserver: StartNameServer,
) -> None:
    """A NameServer that has just started has heard of neither; the newcomer reaches it first."""
    known, port = start_nameserver(), free_port()
    addresses = [known.address, f"http://127.0.0.1:{port}"]
    owner_identity = replace(IDENTITY, process="owner")
    newcomer_identity = replace(IDENTITY, process="newcomer", address="http://127.0.0.1:2")
    refused = threading.Event()
    # The owner calls when it is woken, the newcomer all the time.
    owner = Registrar(owner_identity, addresses, Table(), heartbeat_ms=600_000, lease_ms=3_600_000)
    newcomer = Registrar(
        newcomer_identity, addresses[1:], Table(), heartbeat_ms=20, lease_ms=3_600_000,
        on_refused=lambda _: refused.set(),
    )  # fmt: skip
    try:
        owner.claim()
        owner.start()
        late = start_nameserver(port)
        newcomer.claim()
        newcomer.start()
        assert known_brokers(late) == {"broker-x": newcomer_identity.address}
        owner.topics_changed()
        wait_until(refused.is_set)
        assert known_brokers(late) == known_brokers(known) == {"broker-x": owner_identity.address}
    finally:
        owner.stop()
        newcomer.stop()


def test_one_refusal_is_enough_and_leaves_no_registration_behind(start_nameserver: StartNameServer) -> None:
    nameservers = sorted((start_nameserver(), start_nameserver()), key=lambda each: each.address)
    holder = registration("broker-x", at="holder", process="holder", lease_ms=3_600_000, held_since_us=1)
    nameservers[1].register(holder)
    addresses = [each.address for each in nameservers]
    registrar = Registrar(IDENTITY, addresses, Table(), heartbeat_ms=50, lease_ms=1_000)
    with pytest.raises(BrokerNameTaken):
        registrar.claim()
    assert known_brokers(nameservers[0]) == {}
    assert known_brokers(nameservers[1]) == {"broker-x": "http://holder:1"}
    registrar.stop()


def test_live_stores_have_different_identities_that_a_restart_keeps(tmp_path: Path) -> None:
    def started(name: str) -> MessageStore:
        return MessageStore.open(StoreConfig(directory=tmp_path / name, broker=name))

    first, second = started("a"), started("b")
    text = locked_store(tmp_path / "a")
    assert text != locked_store(tmp_path / "b")
    first.close()
    second.close()
    again = started("a")
    assert locked_store(tmp_path / "a") == text
    # Removed and made anew under a store that is open: the number of its lock file is not given away.
    shutil.rmtree(tmp_path / "a")
    anew = started("a")
    assert locked_store(tmp_path / "a") != text
    anew.close()
    shutil.rmtree(tmp_path / "a")
    del again


def test_a_replica_without_a_register_is_refused_with_the_reason(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "rocketq_broker", "--name", "a", "--broker-id", "1"),
            *("--data-dir", str(tmp_path / "data"), "--port", "0"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "a replica needs the register of its group" in done.stderr
    assert "--nameservers" in done.stderr
    assert not (tmp_path / "data").exists()
