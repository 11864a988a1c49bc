"""Real NameServers on port 0, with a clock that only moves when the test moves it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rocketq.clock import ManualClock
from rocketq.http_server.runner import ServerThread
from rocketq.net.nameserver_api import NameServerApi
from rocketq.net.transport import Transport
from rocketq_nameserver.app import NameServerApp, create_app
from rocketq_nameserver.config import NameServerConfig
from tests.support.conditions import wait_until
from tests.support.http_client import JSON, Answer, Http
from tests.support.patience import patient_transport


class Running:
    """A NameServer in this process: the client's calls to it, and calls nobody's client would make."""

    def __init__(self, server: ServerThread, app: NameServerApp, clock: Any, transport: Transport) -> None:
        self.server, self.app, self.clock = server, app, clock
        self.address = server.address
        self.api = NameServerApi(transport, server.address)
        self.http = Http(server.address)

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Make a call whose body is JSON: an object to encode, or the bytes as they are."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        return self.http.call(method, path, data, ({} if data is None else JSON) | headers)

    def scan(self) -> list[str]:
        """Look for brokers whose lease has ended, now; return their addresses."""
        return [dead.address for dead in self.server.call(self.app.nameserver.scan)]

    def held(self) -> int:
        return self.server.call(lambda: len(self.app.nameserver.waiting))

    def wait_until_held(self, calls: int) -> None:
        """Return once this many calls are held."""
        wait_until(lambda: self.held() == calls)


StartNameServer = Callable[..., Running]


@pytest.fixture
def start_nameserver() -> Iterator[StartNameServer]:
    """Start a NameServer with this configuration; all are stopped in the end."""
    running: list[ServerThread] = []
    with patient_transport() as transport:

        def start(clock: Any = None, **fields: Any) -> Running:
            clock = clock or ManualClock()
            # Scans are asked for by the tests, so that none of them depends on when one happens.
            config = NameServerConfig(**{"scan_interval_ms": 600_000, "port": 0} | fields)
            app = create_app(config, clock)
            server = ServerThread(app).__enter__()
            running.append(server)
            return Running(server, app, clock, transport)

        yield start
        for server in running:
            server.__exit__(None, None, None)


@pytest.fixture
def nameserver(start_nameserver: StartNameServer) -> Running:
    return start_nameserver()
