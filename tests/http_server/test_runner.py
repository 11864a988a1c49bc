"""A service binds, announces, serves, and stops in good order; it never listens where it should not."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketq.errors import InvalidConfiguration
from rocketq.http_server.connection.limits import ServerLimits
from rocketq.http_server.permissions import Permission, Resource, Rule, declare, rule_of, undeclared
from rocketq.http_server.runner import Binding, ServerThread, address_of, listen
from tests.support.conditions import wait_until
from tests.support.raw_connection import Connection, Probe

SERVE = [sys.executable, "-m", "rocketq_nameserver", "--port", "0"]


class Hooked(Probe):
    """The probe with the hooks that the runner calls."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def bound(self, address: str) -> None:
        self.said.append(f"bound {address}")

    def begin_shutdown(self) -> None:
        self.said.append("begin_shutdown")
        self._released.set()


class Failing:
    """An app that does not start."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no disk"})


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*SERVE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def announced(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line: dict[str, Any] = json.loads(process.stdout.readline())
    return line


# --- in a thread ------------------------------------------------------------------------------


def test_hooks_are_called_in_order_and_a_held_call_delays_no_stop() -> None:
    app = Hooked()
    with ServerThread(app) as server:
        client = Connection(server.address)
        client.send(b"GET /hold HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert app.held.wait(60)
    assert app.said == [f"bound {server.address}", "begin_shutdown"]
    assert client.answer() == (200, b"hello")
    assert client.ended()
    client.close()


def test_a_call_that_does_not_end_is_told_that_the_server_stopped() -> None:
    app = Probe()
    with ServerThread(app, limits=ServerLimits(shutdown_ms=1)) as server:
        client = Connection(server.address)
        client.send(b"GET /hold HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert app.held.wait(60)
    status, body = client.answer()
    assert (status, json.loads(body)["code"]) == (503, "SERVER_STOPPING")
    client.close()


def test_an_app_that_does_not_start_is_an_error_where_it_was_started() -> None:
    with pytest.raises(RuntimeError, match="did not start"):
        ServerThread(Failing()).__enter__()


def test_nobody_is_let_in_before_the_app_has_started() -> None:
    starting, go_on = threading.Event(), threading.Event()

    class Slow(Probe):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "lifespan":
                starting.set()
                go_on.wait(60)
            await super().__call__(scope, receive, send)

    server = ServerThread(Slow())
    entering = threading.Thread(target=server.__enter__)
    entering.start()
    assert starting.wait(60)
    with pytest.raises(ConnectionRefusedError):
        Connection(server.address)
    go_on.set()
    entering.join(60)
    with Connection(server.address) as client:
        assert client.get("/hello") == (200, b"hello")
    server.__exit__(None, None, None)


# --- addresses --------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_an_address_that_others_can_reach_needs_insecure(host: str) -> None:
    with pytest.raises(InvalidConfiguration, match="--insecure"):
        Binding(host)
    assert Binding(host, insecure=True).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_permission(host: str) -> None:
    assert Binding(host).host == host


def test_a_port_that_is_taken_is_an_error_that_names_it() -> None:
    with listen(Binding()) as first:
        first.listen()
        port = first.getsockname()[1]
        with pytest.raises(InvalidConfiguration, match=str(port)):
            listen(Binding(port=port))


def test_an_ipv6_address_is_written_in_brackets() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6")
    try:
        listener = listen(Binding("::1"))
    except InvalidConfiguration:
        pytest.skip("no IPv6 loopback on this machine")
    with listener:
        assert address_of(listener).startswith("http://[::1]:")


# --- as a process -----------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_announces_itself_in_one_line_and_ends_with_0(number: signal.Signals) -> None:
    process = start("--name", "ns-1")
    said = announced(process)
    assert said["service"] == "nameserver"
    assert said["name"] == "ns-1"
    assert said["pid"] == process.pid
    with Connection(said["address"]) as client:
        assert client.get("/livez")[0] == 200
    process.send_signal(number)
    rest, errors = process.communicate(timeout=60)
    assert (process.returncode, rest) == (0, ""), errors


def test_a_process_ends_in_good_order_while_calls_are_held() -> None:
    process = start()
    with Connection(announced(process)["address"]) as client:
        client.send(b"GET /v1/routes/orders?since=0&wait_ms=60000 HTTP/1.1\r\nhost: localhost\r\n\r\n")
        with Connection(f"http://127.0.0.1:{client.socket.getpeername()[1]}") as other:
            wait_until(lambda: b"rocketq_nameserver_held_watches 1.0" in other.get("/metrics")[1])
        process.send_signal(signal.SIGTERM)
        assert client.answer()[0] == 404
    assert process.wait(60) == 0
    process.communicate()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "--insecure"),
        (["--scan-interval-ms", "0"], "scan_interval_ms"),
        (["--data-dir", "/dev/null/x"], "/dev/null"),
        (["--connections-max", "0"], "connections_max"),
    ],
)
def test_arguments_that_make_no_sense_end_with_2_and_say_why(arguments: list[str], said: str) -> None:
    process = start(*arguments)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert said in errors
    assert "Traceback" not in errors


def test_a_process_ends_when_its_parent_is_gone(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    script = (
        "import os, subprocess, sys\n"
        f"p = subprocess.Popen([*{SERVE!r}, '--parent-pid', str(os.getpid())], stdout={write_end})\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, pass_fds=[write_end])
    os.close(write_end)
    with os.fdopen(read_end) as out:
        address = json.loads(out.readline())["address"]
        with Connection(address) as client:
            assert client.get("/livez")[0] == 200
        parent.kill()
        parent.wait()
        # Its end of the pipe closes with the process, which is what is waited for.
        assert out.read() == ""
    with pytest.raises(ConnectionRefusedError):
        Connection(address)


def test_a_process_started_through_another_one_watches_who_it_was_told_to() -> None:
    watched = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    process = start("--parent-pid", str(watched.pid))
    announced(process)
    assert process.poll() is None
    watched.communicate()
    process.communicate(timeout=60)
    assert process.returncode == 0


# --- logs ---------------------------------------------------------------------------------------

LOGGING = """
import logging
import structlog
from rocketq.http_server.logs import configure_logging

configure_logging()
try:
    raise RuntimeError("a defect")
except RuntimeError as error:
    structlog.get_logger("rocketq").error("ours", exc_info=error)
    logging.getLogger("uvicorn.error").error("Exception in ASGI application\\n", exc_info=error)
logging.getLogger("asyncio").warning("slow: %d ms", 5)
logging.getLogger("uvicorn.error").info("not worth a line")
"""


def test_every_log_line_is_json_also_of_libraries_and_tracebacks() -> None:
    done = subprocess.run([sys.executable, "-c", LOGGING], stderr=subprocess.PIPE, text=True, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"].strip() for line in lines] == [
        "ours",
        "Exception in ASGI application",
        "slow: 5 ms",
    ]
    assert all("RuntimeError: a defect" in line["exception"] for line in lines[:2])
    assert [line["level"] for line in lines] == ["error", "error", "warning"]
    assert all(line["timestamp"] for line in lines)


# --- permissions --------------------------------------------------------------------------------


def test_a_route_without_a_declared_rule_is_found() -> None:
    from fastapi import FastAPI

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    def handler() -> None: ...

    app.get("/ruled")(declare(Permission.CONSUME, Resource.TOPIC, Permission.PRODUCE)(handler))
    app.get("/forgotten")(_other())
    assert rule_of(handler) == Rule(Permission.CONSUME, Resource.TOPIC, (Permission.PRODUCE,))
    assert undeclared(app.routes) == ["/forgotten"]


def _other() -> Callable[[], None]:
    def handler() -> None: ...

    return handler
