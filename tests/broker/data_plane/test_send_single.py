"""A small message takes a quicker way, and nobody can tell by the answer or by what is stored."""

from __future__ import annotations

from typing import Any

import pytest

from rocketq.model import Message
from rocketq.protocol.frame_slices import open_frames
from rocketq_broker.data_plane import send_single as quick_sends
from tests.broker.conftest import StartBroker
from tests.support.http_client import ARROW, Answer, Http, stream

#: With it a send is not plain, and takes the usual way.
USUAL = {**ARROW, "content-encoding": "identity"}

FULL = Message(b"body", key=b"k", tag="größer", properties={"a": "b", "KEYS": "x y"}, born_at_us=17)
GOOD = {
    "plain": Message(b"plain"),
    "empty": Message(b"", key=b"", properties={}),
    "full": FULL,
    "the longest tag": Message(b"x", tag="t" * 255),
    "the largest": Message(bytes(1_000)),
}
BAD: dict[str, tuple[bytes, str]] = {
    "too large a body": (stream([Message(bytes(1_001))]), "?queue=1"),
    "too long a key": (stream([Message(b"x", key=bytes(32_768))]), "?queue=1"),
    "too long a tag": (stream([Message(b"x", tag="t" * 256)]), "?queue=1"),
    "a tag of too many bytes": (stream([Message(b"x", tag="🚀" * 64)]), "?queue=1"),
    "too many properties": (stream([Message(b"x", properties={"p" * 20_000: "v" * 20_000})]), "?queue=1"),
    "a tag that no expression can name": (stream([Message(b"x", tag="A B")]), "?queue=1"),
    "an empty tag": (stream([Message(b"x", tag="")]), "?queue=1"),
    "a delay": (stream([Message(b"x", properties={"a": "b", "DELAY": "3"})]), "?queue=1"),
    "no such queue": (stream([FULL]), "?queue=4"),
    "no number": (stream([FULL]), "?queue=x"),
    "an unknown parameter": (stream([FULL]), "?queue=1&colour=red"),
    "nothing": (b"", "?queue=1"),
    "no batch": (stream(), "?queue=1"),
    "damaged text": (stream([FULL]).replace("größer".encode(), b"gr\xff\xffer\xff"), "?queue=1"),
}


class Counted:
    """Calls that were taken by the quick way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken = 0
        real = quick_sends.QuickSends.take

        def take(sends: quick_sends.QuickSends, call: Any) -> bool:
            taken = real(sends, call)
            self.taken += taken
            return taken

        monkeypatch.setattr(quick_sends.QuickSends, "take", take)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


@pytest.fixture
def limited(start_broker: StartBroker) -> Http:
    broker = start_broker(auto_create_topics=False, message_bytes_max=1_000)
    broker.create("orders", read_queues=4, write_queues=4)
    return broker


def messages(broker: Http, queue: int) -> list[dict[str, Any]]:
    answer = broker.pull("orders", queue, 0)
    return [row for piece in open_frames(answer.body, 0) for row in piece.batch.to_pylist()]


def told(answer: Answer) -> tuple[int, str | None, Any]:
    return answer.status, answer.headers.get("content-type"), answer.json


def test_both_ways_store_and_answer_the_same(limited: Http, counted: Counted) -> None:
    for at, message in enumerate(GOOD.values()):
        data = stream([message])
        quick, usual = (
            limited.send("orders", data, "?queue=1"),
            limited.send("orders", data, "?queue=2", USUAL),
        )
        assert told(quick)[:2] == told(usual)[:2] == (200, "application/json")
        assert quick.json["appended"] == [{"queue": 1, "offset": at, "count": 1}]
        assert usual.json == quick.json | {"appended": [{"queue": 2, "offset": at, "count": 1}]}
    assert counted.taken == len(GOOD)
    assert messages(limited, 1) == messages(limited, 2)
    assert len(messages(limited, 1)) == len(GOOD)
    found = limited.get("/v1/topics/orders/messages?key=y").json
    while found["lag_bytes"]:
        found = limited.get("/v1/topics/orders/messages?key=y").json
    assert {(each["queue"], each["offset"]) for each in found["messages"]} == {(1, 2), (2, 2)}


def test_a_small_batch_takes_the_quick_way_too(limited: Http, counted: Counted) -> None:
    data = stream(list(GOOD.values()) * 3)
    quick, usual = limited.send("orders", data, "?queue=1"), limited.send("orders", data, "?queue=2", USUAL)
    assert counted.taken == 1
    assert quick.json == usual.json | {"appended": [{"queue": 1, "offset": 0, "count": 15}]}
    assert messages(limited, 1) == messages(limited, 2) == messages(limited, 1)
    too_large = stream([FULL, Message(bytes(1_001))])
    quick, usual = (
        limited.send("orders", too_large, "?queue=1"),
        limited.send("orders", too_large, "?queue=2", USUAL),
    )
    assert told(quick) == told(usual)
    assert quick.code == "TOO_LARGE"


@pytest.mark.parametrize(("data", "query"), BAD.values(), ids=BAD)
def test_what_may_not_be_appended_is_refused_as_ever(
    limited: Http, counted: Counted, data: bytes, query: str
) -> None:
    quick, usual = limited.send("orders", data, query), limited.send("orders", data, query, USUAL)
    assert quick.status >= 400
    assert told(quick) == told(usual)
    assert counted.taken == 0
    assert limited.total("orders") == 0


def test_a_send_that_is_not_plain_takes_the_usual_way(limited: Http, counted: Counted) -> None:
    for body, query, headers in (
        (stream([FULL]), "", ARROW),
        (stream([FULL], [FULL]), "?queue=1", ARROW),
        (stream([FULL], codec="lz4"), "?queue=1", ARROW),
        (b'{"messages": [{"body": "x"}]}', "?queue=1", {"content-type": "application/json"}),
    ):
        assert limited.send("orders", body, query, headers).status == 200
    assert counted.taken == 0
    assert limited.total("orders") == 5


def test_a_single_send_to_a_missing_or_unwritable_topic_takes_the_usual_way(
    start_broker: StartBroker, counted: Counted
) -> None:
    broker = start_broker(auto_create_topics=True)
    data = stream([FULL])
    assert broker.send("fresh", data, "?queue=0").status == 200
    assert counted.taken == 0
    assert broker.send("fresh", data, "?queue=0").status == 200
    assert counted.taken == 1
    assert (
        broker.call("PATCH", "/v1/topics/fresh", b'{"perm": 4}', {"content-type": "application/json"}).status
        == 200
    )
    assert broker.send("fresh", data, "?queue=0").code == "NO_PERMISSION"
    assert broker.send("fr%2Fesh", data, "?queue=0").code == "INVALID_NAME"
    assert counted.taken == 1


def test_a_full_broker_and_a_drained_one_refuse_as_ever(start_broker: StartBroker, counted: Counted) -> None:
    data = stream([FULL])
    full = start_broker(in_flight_bytes_max=len(data) - 1, request_bytes_max=len(data) - 1)
    full.create("orders", read_queues=1, write_queues=1)
    assert full.send("orders", data, "?queue=0").status in (413, 429)
    assert counted.taken == 0
    drained = start_broker()
    drained.create("orders", read_queues=1, write_queues=1)
    drained.put("/v1/drain", {"draining": True})
    quick, usual = (drained.send("orders", data, "?queue=0", headers) for headers in (ARROW, USUAL))
    assert told(quick) == told(usual)
    assert (quick.status, quick.headers["retry-after"]) == (503, usual.headers["retry-after"])


def test_what_takes_the_quick_way_is_counted(limited: Http, counted: Counted) -> None:
    for _ in range(3):
        limited.send("orders", stream([Message(b"12345")]), "?queue=1")
    assert counted.taken == 3
    lines = limited.get("/metrics").body.decode().splitlines()
    values = {
        line.split("{")[0].split(" ")[0]: float(line.rsplit(" ", 1)[1])
        for line in lines
        if not line.startswith("#")
    }
    assert values["rocketmq_messages_in_total"] == 3
    assert values["rocketmq_throughput_in_total"] == 15
    assert values["rocketq_in_flight_bytes"] == 0
