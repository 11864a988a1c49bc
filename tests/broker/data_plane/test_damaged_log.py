"""The log of a running broker is damaged: each reader is told which frame, where, and which messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from rocketq.model import Message
from rocketq.protocol.documents.broker import ARROW_STREAM, JSON, NEXT_OFFSET_HEADER
from rocketq.protocol.frame import HEADER_BYTES
from rocketq.protocol.frame_slices import open_frames
from tests.broker.conftest import StartBroker
from tests.support.conditions import wait_until
from tests.support.http_client import Answer, Http, stream

SEGMENT = "commitlog/00000000000000000000"
SQL = quote("amount >= 0")
#: Of a frame: a byte of its body, of its magic number, of its queue offset, of its own log offset.
BYTES = [HEADER_BYTES + 100, 4, 25, 32]


def messages(frame: int) -> list[Message]:
    return [
        Message(b"%d" % (5 * frame + row), key=f"k{5 * frame + row}", tag="paid", properties={"amount": "7"})
        for row in range(5)
    ]


@pytest.fixture
def rotten(start_broker: StartBroker, tmp_path: Path) -> tuple[Http, Callable[[int], int]]:
    """A broker with three frames of five messages in queue 1, and a function that damages the second.

    The function takes the byte of the frame to damage and returns the frame's log offset.
    """
    broker = start_broker(name="broker-a", data_dir=tmp_path)
    broker.create("orders", read_queues=2, write_queues=2)
    for frame in range(3):
        assert broker.send("orders", stream(messages(frame)), "?queue=1").status == 200
    [second] = [each for each in open_frames(broker.pull("orders", 1, 0).body, 0) if each.offset == 5]

    def damage(byte: int) -> int:
        with (tmp_path / SEGMENT).open("r+b", buffering=0) as file:
            file.seek(second.header.log_offset + byte)
            [sound] = file.read(1)
            file.seek(second.header.log_offset + byte)
            file.write(bytes([sound ^ 4]))
        return second.header.log_offset

    return broker, damage


def check(answer: Answer, log_offset: int) -> None:
    assert (answer.status, answer.code) == (422, "CORRUPT_FRAME")
    facts: dict[str, Any] = answer.json["facts"]
    why = facts.pop("why")
    assert facts == {
        "offset": log_offset, "broker": "broker-a", "topic": "orders", "queue": 1, "segment": SEGMENT,
        "log_offset": log_offset, "first_offset": 5, "last_offset": 9,
    }  # fmt: skip
    for told in (why, SEGMENT, f"log offset {log_offset}", "messages 5 to 9 of queue 1 of topic orders"):
        assert told in answer.json["message"]
    assert "docs/salvage.md" in answer.json["hint"]


@pytest.mark.parametrize("byte", BYTES)
@pytest.mark.parametrize("offset", [5, 7])
@pytest.mark.parametrize(
    "query",
    [
        {"accept": JSON},
        {"accept": ARROW_STREAM},
        {"tag": "paid"},
        {"sql": SQL},
        {"tag": "paid", "accept": JSON},
    ],
    ids=["json", "arrow", "tag", "sql", "tag as json"],
)
def test_a_pull_that_opens_frames_names_the_damage(
    rotten: tuple[Http, Callable[[int], int]], query: dict[str, str], offset: int, byte: int
) -> None:
    broker, damage = rotten
    check_at = damage(byte)
    check(broker.pull("orders", 1, offset, **query), check_at)


@pytest.mark.parametrize("byte", BYTES)
@pytest.mark.parametrize("query", [{}, {"tag": "paid"}, {"sql": SQL}], ids=["plain", "tag", "sql"])
def test_messages_before_the_damage_are_still_answered(
    rotten: tuple[Http, Callable[[int], int]], query: dict[str, str], byte: int
) -> None:
    broker, damage = rotten
    damage(byte)
    answer = broker.pull("orders", 1, 0, accept=JSON, **query)
    assert [each["offset"] for each in answer.json["messages"]] == list(range(5))
    assert answer.header(NEXT_OFFSET_HEADER) == "5"
    behind = broker.pull("orders", 1, 10, accept=JSON, **query)
    assert [each["offset"] for each in behind.json["messages"]] == list(range(10, 15))


@pytest.mark.parametrize("byte", BYTES)
def test_a_message_by_its_id_names_the_damage(rotten: tuple[Http, Callable[[int], int]], byte: int) -> None:
    broker, damage = rotten
    at = damage(byte)
    check(broker.get("/v1/messages/broker-a:orders:1:8"), at)


def test_an_offset_by_time_names_the_damage_that_it_meets(
    rotten: tuple[Http, Callable[[int], int]],
) -> None:
    broker, damage = rotten
    at = damage(4)
    check(broker.get("/v1/topics/orders/offsets?at=0"), at)


def test_finding_a_message_names_the_damage(rotten: tuple[Http, Callable[[int], int]]) -> None:
    broker, damage = rotten
    wait_until(lambda: not broker.get("/v1/topics/orders/messages?key=k6").json["lag_bytes"])
    at = damage(HEADER_BYTES + 100)
    found = broker.get("/v1/topics/orders/messages?key=k6").json
    assert found["messages"] == []
    (uncovered,) = found["uncovered"]
    assert uncovered["log_begin"] == at
    assert uncovered["queues"] == [{"queue": 1, "first": 5, "end": 10}]
    check(broker.get("/v1/messages/broker-a:orders:1:6"), at)


def test_a_damaged_consume_queue_is_rebuilt_and_counted(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker(name="broker-a", data_dir=tmp_path)
    broker.create("orders", read_queues=1, write_queues=1)
    for frame in range(3):
        assert broker.send("orders", stream(messages(frame)), "?queue=0").status == 200
    path = tmp_path / "consumequeue/0/0/00000000000000000000"
    for query in ({}, {"tag": "paid"}, {"sql": SQL}):
        path.write_bytes(bytes(path.stat().st_size))
        answer = broker.pull("orders", 0, 0, accept=JSON, **query)
        assert [each["offset"] for each in answer.json["messages"]] == list(range(15))
    assert "rocketq_consume_queue_blocks_rebuilt_total 3.0" in broker.get("/metrics").body.decode()


def test_a_receive_goes_on_with_other_queues_and_then_says_what_is_damaged(
    rotten: tuple[Http, Callable[[int], int]],
) -> None:
    broker, damage = rotten
    at = damage(HEADER_BYTES + 100)

    def receive() -> Answer:
        wanted = b'{"topic": "orders", "max_messages": 100}'
        return broker.call("POST", "/v1/groups/g/receives", wanted, {"content-type": JSON})

    assert len(receive().json["messages"]) == 5
    check(receive(), at)
    broker.send("orders", stream(messages(3)), "?queue=0")
    assert len(receive().json["messages"]) == 5
    check(receive(), at)
