"""Pulling through a tag or SQL filter over HTTP."""

from __future__ import annotations

import threading
from typing import Any
from urllib.parse import quote

import pytest

from rocketq.model import Message
from rocketq.protocol.documents import broker as calls
from rocketq.protocol.frame_slices import open_frames
from tests.support.http_client import Answer, Http, stream

SQL = quote("amount > 40 AND region IS NOT NULL")


def orders(count: int) -> list[Message]:
    """Every third is paid; amounts rise; half have no region."""
    return [
        Message(
            b"%d" % number,
            tag="paid" if number % 3 == 0 else "open",
            properties={"amount": str(number), **({"region": "eu"} if number % 2 else {})},
        )
        for number in range(count)
    ]


def offsets(answer: Answer, begin: int = 0) -> list[int]:
    return [int(o) for piece in open_frames(answer.body, begin) for o in piece.offsets()]


def test_only_messages_with_the_tag_cross_the_network(broker: Http) -> None:
    broker.send("orders", stream(orders(90)), "?queue=0")
    answer = broker.pull("orders", 0, 0, tag="paid")
    assert offsets(answer) == list(range(0, 90, 3))
    assert answer.header(calls.NEXT_OFFSET_HEADER) == "90"
    whole = broker.pull("orders", 0, 0)
    assert len(answer.body) < len(whole.body) / 2


@pytest.mark.parametrize("accept", [calls.FRAMES, calls.ARROW_STREAM, calls.JSON])
def test_all_forms_agree_on_what_an_sql_filter_chooses(broker: Http, accept: str) -> None:
    import pyarrow as pa

    broker.send("orders", stream(orders(60)), "?queue=0")
    answer = broker.pull("orders", 0, 0, accept=accept, sql=SQL)
    assert answer.header(calls.NEXT_OFFSET_HEADER) == "60"
    if accept == calls.FRAMES:
        found = offsets(answer)
    elif accept == calls.JSON:
        found = [each["offset"] for each in answer.json["messages"]]
    else:
        found = pa.ipc.open_stream(answer.body).read_all().column("offset").to_pylist()
    assert found == list(range(41, 60, 2))


def test_a_limit_counts_matches_and_the_next_call_goes_on_behind_them(broker: Http) -> None:
    broker.send("orders", stream(orders(90)), "?queue=0")
    first = broker.pull("orders", 0, 0, tag="paid", max_messages=4)
    assert offsets(first) == [0, 3, 6, 9]
    assert first.header(calls.NEXT_OFFSET_HEADER) == "10"
    second = broker.pull("orders", 0, 10, tag="paid", max_messages=2)
    assert offsets(second, 10) == [12, 15]


@pytest.mark.parametrize("end", [1, 29, 45, 90, 200])
def test_a_filtered_pull_does_not_look_beyond_its_end(broker: Http, end: int) -> None:
    broker.send("orders", stream(orders(30)), "?queue=0")
    broker.send("orders", stream(orders(60)), "?queue=0")
    chosen = broker.pull("orders", 0, 0, tag="paid", end=end)
    assert offsets(chosen) == [n for n in range(min(end, 90)) if n % 3 == 0]
    assert chosen.header(calls.NEXT_OFFSET_HEADER) == str(min(end, 90))
    held = broker.pull("orders", 0, 0, tag="absent", end=end, wait_ms=0 if end > 90 else 60_000)
    assert held.header(calls.NEXT_OFFSET_HEADER) == str(min(end, 90))
    whole = broker.pull("orders", 0, 0, accept=calls.JSON, end=end)
    assert [each["offset"] for each in whole.json["messages"]] == list(range(min(end, 90)))
    assert broker.pull("orders", 0, 7, end=7).code == "INVALID_REQUEST"


def test_nothing_that_matches_is_an_answer_that_advances(broker: Http) -> None:
    broker.send("orders", stream(orders(30)), "?queue=0")
    answer = broker.pull("orders", 0, 0, tag="absent")
    assert answer.header(calls.STATUS_HEADER) == "NO_MATCHED_MSG"
    assert answer.header(calls.NEXT_OFFSET_HEADER) == "30"
    assert answer.body == b""


def test_a_held_call_ends_only_with_a_message_that_matches(broker: Http) -> None:
    answers: list[Any] = []
    holding = threading.Thread(
        target=lambda: answers.append(broker.pull("orders", 0, 0, tag="paid", wait_ms=60_000))
    )
    holding.start()
    for number in range(5):
        broker.send("orders", stream([Message(b"%d" % number, tag="open")]), "?queue=0")
    assert not answers
    broker.send("orders", stream([Message(b"yes", tag="paid")]), "?queue=0")
    holding.join(60)
    assert offsets(answers[0]) == [5]


def test_a_filtered_wait_that_ends_without_a_match_says_where_to_go_on(broker: Http) -> None:
    broker.send("orders", stream(orders(10)), "?queue=0")
    answer = broker.pull("orders", 0, 0, tag="absent", wait_ms=50)
    assert answer.status == 200
    assert answer.header(calls.NEXT_OFFSET_HEADER) == "10"


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"sql": quote("amount >")}, "INVALID_FILTER"),
        ({"sql": quote("amount LIKE 'x'")}, "INVALID_FILTER"),
        ({"tag": quote("a || || b")}, "INVALID_FILTER"),
        ({"tag": "a", "sql": quote("a = 1")}, "INVALID_REQUEST"),
    ],
)
def test_a_wrong_filter_is_refused_with_its_place(broker: Http, query: dict[str, str], code: str) -> None:
    answer = broker.pull("orders", 0, 0, **query)
    assert (answer.status, answer.code) == (400, code)
    if code == "INVALID_FILTER":
        assert "position" in answer.json["facts"]
