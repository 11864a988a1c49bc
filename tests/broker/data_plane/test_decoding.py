"""What is inflated has one budget: calls wait for room, in order and not for long; memory stays bounded."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rocketq import LocalCluster
from rocketq.errors import SystemBusy
from rocketq.model import Message
from rocketq.protocol.documents.broker import ARROW_STREAM, JSON
from rocketq_broker.data_plane.decoding_memory import (
    ARROW_FACTOR,
    JSON_FACTOR,
    MESSAGE_BYTES,
    DecodingRoom,
    decoded_bytes,
)
from rocketq_broker.store.store import MessageStore
from tests.broker.conftest import StartBroker
from tests.support.http_client import Http, stream

MIB = 1 << 20


# --- the room ---------------------------------------------------------------------------------


def test_calls_get_room_in_the_order_in_which_they_came() -> None:
    async def run() -> list[str]:
        room = DecodingRoom(asyncio.get_running_loop(), 100, 60_000)
        order: list[str] = []

        async def call(name: str, size: int) -> None:
            claim = await room.claim(size)
            order.append(name)
            await asyncio.sleep(0)
            claim.release()

        first = await room.claim(60)
        calls = [asyncio.create_task(call(name, size)) for name, size in (("large", 90), ("small", 10))]
        await asyncio.sleep(0)
        assert order == [], "the small one does not pass the large one"
        first.shrink(20)
        assert room.budget.used == 20
        first.release()
        await asyncio.gather(*calls)
        assert room.budget.used == 0
        return order

    assert asyncio.run(run()) == ["large", "small"]


def test_a_call_larger_than_the_budget_runs_alone() -> None:
    async def run() -> None:
        room = DecodingRoom(asyncio.get_running_loop(), 100, 1)
        claim = await room.claim(1_000)
        assert room.budget.used == 100
        with pytest.raises(SystemBusy, match="decoded messages"):
            await room.claim(1)
        claim.release()
        (await room.claim(1)).release()
        assert room.budget.used == 0

    asyncio.run(run())


def test_a_call_that_is_given_up_while_it_waits_leaves_nothing_behind() -> None:
    async def run() -> None:
        room = DecodingRoom(asyncio.get_running_loop(), 100, 60_000)
        first = await room.claim(100)
        gone, granted = (asyncio.create_task(room.claim(50)) for _ in range(2))
        await asyncio.sleep(0)
        gone.cancel()
        first.release()
        granted.cancel()
        await asyncio.gather(gone, granted, return_exceptions=True)
        assert room.budget.used == 0
        (await room.claim(100)).release()

    asyncio.run(run())


# --- a broker ---------------------------------------------------------------------------------


def bomb(size: int) -> bytes:
    """A send of a few kilobytes that inflates to `size` bytes."""
    return stream([Message(bytes(size // 16))] * 16, codec="zstd")


def test_what_an_answer_takes_is_read_from_the_metadata(broker: Http) -> None:
    assert broker.send("orders", bomb(MIB), "?queue=0").status == 200
    frames = broker.pull("orders", 0, 0).body
    assert len(frames) < 10_000
    for factor in (ARROW_FACTOR, JSON_FACTOR):
        claimed = decoded_bytes([frames], factor, 0, None)
        assert factor * MIB <= claimed < factor * MIB * 1.1 + 16 * MESSAGE_BYTES
    assert decoded_bytes([frames], JSON_FACTOR, 16, None) == 0
    assert len(broker.pull("orders", 0, 0, JSON).body) < decoded_bytes([frames], JSON_FACTOR, 0, None)


def test_calls_that_find_no_room_get_system_busy(start_broker: StartBroker) -> None:
    broker = start_broker(decoded_bytes_max=MIB, decoded_wait_ms_max=0)
    broker.create("orders", read_queues=1, write_queues=1)
    assert broker.send("orders", bomb(8 * MIB), "?queue=0").status == 200
    forms = [JSON, ARROW_STREAM] * 6
    with ThreadPoolExecutor(len(forms)) as pool:
        answers = list(pool.map(lambda form: broker.pull("orders", 0, 0, form), forms))
    assert {answer.status for answer in answers} <= {200, 429}
    assert any(answer.status == 200 for answer in answers)
    for answer in answers:
        if answer.status == 429:
            assert (answer.code, int(answer.header("retry-after"))) == ("SYSTEM_BUSY", 1)
    assert broker.pull("orders", 0, 0, JSON).status == 200
    metrics = broker.get("/metrics").body.decode()
    assert "rocketq_decoded_bytes{" in metrics or "rocketq_decoded_bytes 0" in metrics


def test_a_json_answer_ends_where_its_text_would_be_too_long(broker: Http) -> None:
    # A byte 0 is six characters of JSON: 16 MiB are 96.
    assert broker.send("orders", bomb(16 * MIB), "?queue=0").status == 200
    offset, seen = 0, 0
    while offset < 16:
        answer = broker.pull("orders", 0, offset, JSON)
        assert answer.status == 200
        assert len(answer.body) < 65 * MIB
        seen += len(answer.json["messages"])
        assert (
            answer.json["next_offset"]
            == int(answer.header("x-rocketq-next-offset"))
            == offset + len(answer.json["messages"])
        )
        offset = answer.json["next_offset"]
    assert seen == 16


def resident_bytes(pid: int, what: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) * 1024
    raise AssertionError(what)


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="memory is read from /proc")
def test_ten_pulls_of_an_inflating_frame_share_a_memory_bound() -> None:
    with LocalCluster(brokers=1) as cluster:
        broker = Http(cluster.brokers["broker-a"])
        broker.create("orders", read_queues=1, write_queues=1)
        assert broker.send("orders", bomb(60 * MIB), "?queue=0").status == 200
        before = resident_bytes(cluster.pid("broker-a"), "VmRSS")
        with ThreadPoolExecutor(10) as pool:
            answers = list(pool.map(lambda _: broker.pull("orders", 0, 0, JSON).status, range(10)))
        assert set(answers) <= {200, 429}
        assert 200 in answers
        # The budget is 512 MiB; ten answers at once took more than 4 GiB.
        assert resident_bytes(cluster.pid("broker-a"), "VmHWM") - before < 1024 * MIB


def test_sends_that_inflate_share_the_room(start_broker: StartBroker) -> None:
    broker = start_broker(decoded_bytes_max=MIB, decoded_wait_ms_max=0)
    broker.create("orders", read_queues=1, write_queues=1)
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: broker.send("orders", bomb(16 * MIB), "?queue=0"), range(12)))
    statuses = [answer.status for answer in answers]
    assert set(statuses) <= {200, 429}
    assert 200 in statuses
    assert broker.total("orders") == 16 * statuses.count(200)
    assert broker.send("orders", bomb(16 * MIB), "?queue=0").status == 200


@pytest.mark.parametrize(("search", "query"), [("query_by_key", "key=k"), ("query_by_time", "begin=0")])
def test_a_search_has_room_while_it_runs_and_gives_it_back(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch, search: str, query: str
) -> None:
    broker = start_broker(decoded_bytes_max=MIB, decoded_wait_ms_max=0)
    broker.create("orders", read_queues=1, write_queues=1)
    assert broker.send("orders", stream([Message(b"body", key=b"k")])).status == 200
    searching, go = threading.Event(), threading.Event()
    found = getattr(MessageStore, search)

    def held(store: MessageStore, query: Any) -> Any:
        searching.set()
        assert go.wait(60)
        return found(store, query)

    monkeypatch.setattr(MessageStore, search, held)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(broker.get, f"/v1/topics/orders/messages?{query}")
        assert searching.wait(60)
        assert broker.pull("orders", 0, 0, JSON).code == "SYSTEM_BUSY"
        go.set()
        assert answer.result(60).status == 200
    assert broker.pull("orders", 0, 0, JSON).status == 200
