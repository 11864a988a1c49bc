"""A real broker on port 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from rocketq.http_server.runner import ServerThread
from rocketq_broker.app import create_app
from rocketq_broker.config import BrokerConfig
from tests.support.conditions import WAIT_MS
from tests.support.http_client import Http

StartBroker = Callable[..., Http]

#: A broker on a busy machine refuses no call because it waited.
PATIENT: Final = {
    "queue_wait_ms_max": WAIT_MS,
    "decoded_wait_ms_max": WAIT_MS,
    "flush_timeout_ms": WAIT_MS,
    "lease_ms": WAIT_MS,
}


@contextmanager
def starting(directory: Path) -> Iterator[StartBroker]:
    """Start brokers with a configuration in this process; all are stopped in the end."""
    running: list[ServerThread] = []

    def start(**fields: Any) -> Http:
        name = fields.pop("name", f"broker-{len(running)}")
        data_dir = fields.pop("data_dir", directory / name)
        config = BrokerConfig(name=name, data_dir=data_dir, port=0, **{**PATIENT, **fields})
        app = create_app(config)
        server = ServerThread(app)
        app.bound(server.address)
        server.__enter__()
        running.append(server)
        return Http(server.address)

    yield start
    for server in reversed(running):
        server.__exit__(None, None, None)


def orders(start: StartBroker) -> Http:
    """Start a broker that does not create topics by itself, with the topic `orders` of four queues."""
    started = start(auto_create_topics=False)
    started.create("orders", read_queues=4, write_queues=4)
    return started


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[StartBroker]:
    with starting(tmp_path) as start:
        yield start


@pytest.fixture
def broker(start_broker: StartBroker) -> Http:
    """A broker of `orders` for one test."""
    return orders(start_broker)


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    """A broker of `orders` for all tests of a file whose calls are refused: they leave nothing behind."""
    with starting(tmp_path_factory.mktemp("refusing")) as start:
        yield orders(start)
