"""Starting a broker: what answers before it has started, and what `Broker.start` returns."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from rocketq.clock import SystemClock
from rocketq.http_server.longpoll.long_poll import LongPoll
from rocketq_broker.app import create_app
from rocketq_broker.broker import Broker, Phase
from rocketq_broker.config import BrokerConfig
from rocketq_broker.runtime import wait_keys
from rocketq_broker.runtime.loop_bridge import Completions
from rocketq_broker.runtime.store_events import StoreEvents
from rocketq_broker.store.config import StoreConfig
from rocketq_broker.store.errors import LogFailed
from rocketq_broker.store.store import MessageStore


@pytest.mark.parametrize("path", ["/v1/topics", "/v1/topics/orders/offsets", "/readyz"])
def test_a_call_before_the_broker_has_started_is_answered_503(tmp_path: Path, path: str) -> None:
    app = create_app(BrokerConfig(name="broker-a", data_dir=tmp_path))
    sent: list[dict[str, Any]] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 503
    assert json.loads(sent[1]["body"])["code"] == "BROKER_UNAVAILABLE"
    assert app.exit_code == 0


def test_a_started_broker_takes_calls_and_has_its_store_open(tmp_path: Path) -> None:
    async def run() -> None:
        broker = await Broker.start(BrokerConfig(name="broker-a", data_dir=tmp_path), "http://127.0.0.1:1")
        broker.enter()
        broker.leave()
        assert (broker.phase, await broker.problems(), broker.store.topics()) == (Phase.RUNNING, {}, ())
        await broker.stop()

    asyncio.run(run())
    MessageStore.open(StoreConfig(tmp_path, "broker-a")).close()


def test_a_broker_that_cannot_be_made_leaves_its_store_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(data_dir: Path) -> str:
        raise OSError(f"{data_dir} is gone")

    monkeypatch.setattr("rocketq_broker.broker.locked_store", failing)
    with pytest.raises(OSError, match="is gone"):
        asyncio.run(Broker.start(BrokerConfig(name="broker-a", data_dir=tmp_path), "http://127.0.0.1:1"))
    MessageStore.open(StoreConfig(tmp_path, "broker-a")).close()


def test_a_fault_of_the_log_is_kept_for_a_broker_that_is_not_made_yet() -> None:
    async def run() -> None:
        completions = Completions(asyncio.get_running_loop())
        held = LongPoll[wait_keys.Key](SystemClock(), 10, "messages")
        events = StoreEvents("broker-a", completions, held)
        faults = [LogFailed("be synced", "the disk is gone"), LogFailed("be synced", "again")]
        teller = threading.Thread(target=lambda: [events.faulted(each) for each in faults])
        teller.start()
        assert await events.failed is faults[0]
        teller.join()

    asyncio.run(run())
