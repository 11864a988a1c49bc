"""A broker whose store is in trouble says so, and goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from rocketq_broker.runtime.trouble_watch import TroubleWatch
from tests.broker.conftest import StartBroker
from tests.support.http_client import Http, numbered, stream


def delay_a_message(broker: Http) -> None:
    broker.create("orders")
    sent = broker.call(
        "POST", "/v1/topics/orders/messages?queue=0&property.TIMER_DELAY_MS=100000000", b"later",
        {"content-type": "application/octet-stream"},
    )  # fmt: skip
    assert sent.status == 200


def test_a_damaged_timer_file_makes_a_broker_degraded_and_not_unready(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker(data_dir=tmp_path / "data")
    delay_a_message(broker)
    assert broker.get("/readyz").json == {"status": "ready", "missing": {}, "troubles": {}}
    assert "rocketq_store_troubles{" not in broker.get("/metrics").body.decode()
    (path,) = (tmp_path / "data" / "timers").iterdir()
    path.write_bytes(bytes(path.stat().st_size))
    assert len(broker.get("/v1/topics/orders/timers").json["timers"]) == 1
    ready = broker.get("/readyz")
    assert (ready.status, ready.json["status"]) == (200, "degraded")
    assert "timer index" in ready.json["troubles"]["timers"]
    assert 'rocketq_store_troubles{task="timers"} 1.0' in broker.get("/metrics").body.decode()
    assert broker.send("orders", stream(numbered(1)), "?queue=0").status == 200


def test_a_trouble_is_logged_when_it_comes_and_when_it_is_over() -> None:
    troubles = {"index": "one"}
    watch = TroubleWatch("broker-a", lambda: troubles)
    with structlog.testing.capture_logs() as lines:
        for found in ({"index": "one"}, {"index": "one"}, {"index": "two"}, {}):
            troubles = found
            assert asyncio.run(watch.look()) == found
    assert [(line["event"], line.get("why")) for line in lines] == [
        ("store_troubled", "one"), ("store_troubled", "two"), ("store_trouble_over", None),
    ]  # fmt: skip


def test_a_broker_looks_for_troubles_by_itself() -> None:
    async def run() -> list[int]:
        looks: list[int] = []

        def count() -> dict[str, str]:
            looks.append(1)
            return {}

        watch = TroubleWatch("broker-a", count)
        watch.start()
        while not looks:
            await asyncio.sleep(0)
        await watch.stop()
        return looks

    assert asyncio.run(run())
