"""How a broker starts, stops, fails and comes back, as a process and in a thread."""

from __future__ import annotations

import errno
import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import pytest

from rocketq.errors import InvalidConfiguration
from rocketq.http_server.runner import Binding, ServerThread
from rocketq.local_cluster.server_process import ServerProcess
from rocketq.model import Message
from rocketq_broker.app import create_app
from rocketq_broker.broker_options import COMMAND, config_of
from rocketq_broker.config import DEFAULT_PORT, BrokerConfig
from tests.broker.conftest import StartBroker
from tests.broker.data_plane.test_pull import wait_until_held
from tests.support.http_client import ARROW, Http, numbered, stream


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServerProcess]:
    """A broker process, not yet started; it is killed in the end."""
    made = ServerProcess(
        "broker-a",
        "rocketq_broker",
        ["--name", "broker-a", "--data-dir", str(tmp_path / "data")],
        port=0,
        log=tmp_path / "broker.log",
    )
    yield made
    made.kill()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command: Sequence[str] = [sys.executable, "-P", "-m", "rocketq_broker", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def recoveries(process: ServerProcess) -> list[bool]:
    """Whether the log was closed in good order, for each start."""
    lines = [json.loads(line) for line in process.log.read_text().splitlines() if line.startswith("{")]
    return [line["clean"] for line in lines if line["event"] == "recovered"]


def test_sigterm_answers_held_calls_and_ends_in_good_order(process: ServerProcess) -> None:
    process.start()
    broker = Http(process.address)
    broker.create("orders")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(broker.pull, "orders", 0, 0, wait_ms=60_000)
        wait_until_held(broker, 1)
        assert process.stop() == 0
        answer = waiting.result(60)
    assert answer.status == 200
    assert answer.header("x-rocketq-status") == "NO_NEW_MSG"
    process.start()
    assert recoveries(process)[-1] is True


def test_a_send_under_way_is_finished_before_the_end(process: ServerProcess) -> None:
    process.start()
    broker = Http(process.address)
    broker.create("orders")
    body = stream(numbered(3))
    with socket.create_connection((broker.host, broker.port), timeout=60) as client:
        client.sendall(
            b"POST /v1/topics/orders/messages?queue=0 HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n"
            b"content-type: application/vnd.apache.arrow.stream\r\ncontent-length: %d\r\n\r\n" % len(body)
        )
        assert client.recv(100).startswith(b"HTTP/1.1 100")
        os.kill(process.pid, signal.SIGTERM)
        client.sendall(body)
        assert client.recv(15) == b"HTTP/1.1 200 OK"
    assert process.stop() == 0
    process.start()
    assert Http(process.address).total("orders") == 3


def test_what_was_acknowledged_survives_a_crash_of_the_process(process: ServerProcess) -> None:
    process.start()
    broker = Http(process.address)
    for _ in range(5):
        assert broker.send("orders", stream(numbered(100)), "?queue=0").status == 200
    process.kill()
    process.start()
    assert recoveries(process)[-1] is False
    assert Http(process.address).total("orders") == 500


def test_a_process_whose_log_fails_ends_with_an_exit_code_that_says_so(tmp_path: Path) -> None:
    process = ServerProcess(
        "broker-a",
        "rocketq_broker",
        ["--name", "broker-a", "--data-dir", str(tmp_path / "data"), "--segment-bytes", "65536"],
        port=0,
        log=tmp_path / "broker.log",
    )
    process.start()
    try:
        broker = Http(process.address)
        broker.create("orders")
        assert broker.send("orders", stream(numbered(10)), "?queue=0").status == 200
        connection = http.client.HTTPConnection(broker.host, broker.port, timeout=60)
        connection.connect()
        connection.request("GET", "/livez")
        connection.getresponse().read()
        # From here on the process can open no file: not the next segment either.
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (3, 3))
        path = "/v1/topics/orders/messages?queue=0"
        connection.request("POST", path, stream([Message(bytes(100_000))]), ARROW)
        response = connection.getresponse()
        assert response.status == 503
        assert json.loads(response.read())["code"] == "BROKER_UNAVAILABLE"
        assert process.stop() == 1
        assert "The log could not" in process.log.read_text()
        process.start()
        assert Http(process.address).total("orders") == 10
    finally:
        process.kill()


def test_a_full_disk_refuses_the_send_and_nothing_else(process: ServerProcess) -> None:
    process.start()
    broker = Http(process.address)
    broker.create("orders")
    assert broker.send("orders", stream(numbered(10)), "?queue=0").status == 200
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
    refused = broker.send("orders", stream([Message(bytes(200_000))]), "?queue=0")
    assert (refused.status, refused.code) == (507, "STORE_FULL")
    assert broker.total("orders") == 10
    assert broker.pull("orders", 0, 0).status == 200
    assert broker.send("orders", stream(numbered(1)), "?queue=0").status == 200
    assert broker.total("orders") == 11


def test_a_directory_in_use_is_refused_with_the_reason(process: ServerProcess, tmp_path: Path) -> None:
    process.start()
    second = run("--name", "broker-b", "--data-dir", str(tmp_path / "data"), "--port", "0")
    assert second.returncode == 1
    assert "is in use by a broker that runs" in second.stderr
    assert second.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--name", "a.b"],
        ["--name", "a", "--port", "70000"],
        ["--name", "a", "--nameservers", "127.0.0.1:9876"],
        ["--name", "a", "--heartbeat-ms", "5000", "--lease-ms", "6000"],
        ["--name", "a", "--host", "0.0.0.0"],
        ["--name", "a", "--flush", "sometimes"],
        ["--name", "a", "--segment-bytes", "1"],
        [],
    ],
)
def test_arguments_that_make_no_sense_are_refused(tmp_path: Path, arguments: list[str]) -> None:
    with pytest.raises((InvalidConfiguration, click.BadParameter)):
        configured([*arguments, "--data-dir", str(tmp_path / "data")])


def configured(arguments: list[str]) -> Binding:
    """What the process makes of its command line before it opens anything."""
    settings = COMMAND.read(arguments)
    settings.needed("name", "data_dir")
    config = config_of(settings.values)
    return Binding(config.host, config.port)


def test_the_arguments_of_a_broker_are_not_refused(tmp_path: Path) -> None:
    assert configured(["--name", "a", "--data-dir", str(tmp_path / "data")]).port == DEFAULT_PORT


@pytest.mark.parametrize("arguments", [["--name", "a.b", "--port", "0"], []], ids=["a value", "the grammar"])
def test_a_process_with_wrong_arguments_starts_nothing(tmp_path: Path, arguments: list[str]) -> None:
    done = run(*arguments, "--data-dir", str(tmp_path / "data"))
    assert done.returncode == 2
    assert done.stderr != ""
    assert done.stdout == ""
    assert not (tmp_path / "data").exists()


def test_held_calls_are_released_when_the_server_stops(tmp_path: Path) -> None:
    app = create_app(BrokerConfig(name="broker-a", data_dir=tmp_path))
    with ServerThread(app) as server, ThreadPoolExecutor(2) as pool:
        broker = Http(server.address)
        broker.create("orders")
        waiting = [
            pool.submit(broker.pull, "orders", 0, 0, wait_ms=60_000),
            pool.submit(broker.get, "/v1/topics/orders/offsets?after_total=0&wait_ms=60000"),
        ]
        wait_until_held(broker, 2)
        server.__exit__(None, None, None)
        assert [each.result(60).status for each in waiting] == [200, 200]


def test_after_a_fault_of_the_log_nothing_more_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_to_stop = threading.Event()
    app = create_app(BrokerConfig(name="broker-a", data_dir=tmp_path), on_failure=asked_to_stop.set)
    with ServerThread(app) as server:
        broker = Http(server.address)
        broker.create("orders")
        assert broker.send("orders", stream(numbered(2)), "?queue=0").status == 200

        def failing(*_: Any) -> int:
            raise OSError(errno.EIO, "the disk is gone")

        with ThreadPoolExecutor(1) as pool:
            held = pool.submit(broker.pull, "orders", 1, 0, wait_ms=60_000)
            wait_until_held(broker, 1)
            monkeypatch.setattr(os, "pwritev", failing)
            refused = broker.send("orders", stream(numbered(1)), "?queue=0")
            assert (refused.status, refused.code) == (503, "BROKER_UNAVAILABLE")
            assert held.result(60).status == 200
        assert asked_to_stop.wait(60)
        for answer in (
            broker.send("orders", stream(numbered(1))),
            broker.pull("orders", 0, 0),
            broker.get("/v1/topics"),
        ):
            assert (answer.status, answer.code) == (503, "BROKER_UNAVAILABLE")
            assert int(answer.header("retry-after")) >= 1
        assert broker.get("/livez").status == 200
        ready = broker.get("/readyz")
        assert ready.status == 503
        assert "broker" in ready.json["missing"]
        monkeypatch.undo()
    assert app.exit_code == 1


def test_a_broker_that_is_registered_nowhere_serves_but_is_not_ready(start_broker: StartBroker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        dead = f"http://127.0.0.1:{taken.getsockname()[1]}"
    broker = start_broker(nameservers=(dead,))
    ready = broker.get("/readyz")
    assert ready.status == 503
    assert dead in ready.json["missing"]["nameservers"]
    assert broker.send("orders", stream(numbered(1))).status == 200


def test_a_broker_without_nameservers_is_ready(start_broker: StartBroker) -> None:
    assert start_broker().get("/readyz").status == 200


def test_a_full_disk_makes_a_broker_unready(start_broker: StartBroker) -> None:
    broker = start_broker(free_disk_bytes_min=1 << 50)
    assert "disk" in broker.get("/readyz").json["missing"]
