"""A real broker on port 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketq.http_server.runner import ServerThread
from rocketq_broker.app import create_app
from rocketq_broker.config import BrokerConfig
from tests.support.http_client import Http

StartBroker = Callable[..., Http]


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[StartBroker]:
    """Start a broker with this configuration in this process; all are stopped in the end."""
    running: list[ServerThread] = []

    def start(**fields: Any) -> Http:
        name = fields.pop("name", f"broker-{len(running)}")
        config = BrokerConfig(name=name, data_dir=fields.pop("data_dir", tmp_path / name), port=0, **fields)
        app = create_app(config)
        server = ServerThread(app)
        app.bound(server.address)
        server.__enter__()
        running.append(server)
        return Http(server.address)

    yield start
    for server in reversed(running):
        server.__exit__(None, None, None)


@pytest.fixture
def broker(start_broker: StartBroker) -> Http:
    """A broker that does not create topics by itself, with the topic `orders` of four queues."""
    started = start_broker(auto_create_topics=False)
    started.create("orders", read_queues=4, write_queues=4)
    return started
