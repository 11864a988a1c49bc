"""Delayed sends over HTTP, in every form: the answer, what is refused, and what consumers get."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlencode

import pytest

from rocketq.model import NO_OFFSET, Message
from tests.broker.conftest import StartBroker
from tests.support.http_client import Answer, Http, stream

PLAIN = {"content-type": "application/octet-stream"}
SOON = {"TIMER_DELAY_MS": "150"}
LATER = {"TIMER_DELAY_SEC": "3600"}


def alone(broker: Http, properties: dict[str, str], body: bytes = b"x", queue: str = "0") -> Answer:
    query = {"queue": queue, **{f"property.{name}": value for name, value in properties.items()}}
    return broker.send("orders", body, "?" + urlencode(query), PLAIN)


def delivered(broker: Http, queue: int, offset: int) -> dict[str, Any]:
    """The message at an offset, once it is there: a long poll, not a sleep."""
    answer = broker.pull("orders", queue, offset, "application/json", wait_ms=60_000)
    message: dict[str, Any] = answer.json["messages"][0]
    return message


FORMS = {
    "plain": lambda broker, properties: alone(broker, properties),
    "plain, large": lambda broker, properties: alone(broker, properties, bytes(100_000)),
    "arrow": lambda broker, properties: broker.send(
        "orders", stream([Message(b"x", properties=properties)]), "?queue=0"
    ),
    "compressed": lambda broker, properties: broker.send(
        "orders", stream([Message(b"x", properties=properties)], codec="lz4"), "?queue=0"
    ),
    "json": lambda broker, properties: broker.send_json("orders", {"body": "x", "properties": properties}),
}
forms = pytest.mark.parametrize("send", FORMS.values(), ids=FORMS)


@forms
def test_a_delayed_message_has_an_id_and_no_offset_yet(broker: Http, send: Any) -> None:
    answer = send(broker, LATER)
    assert answer.status == 200
    (appended,), (timer,) = answer.json["appended"], answer.json["timers"]
    assert (appended["queue"], appended["offset"], appended["count"]) == (0, NO_OFFSET, 1)
    assert timer.startswith("broker-0:orders:0:@")
    assert broker.total("orders") == 0


@forms
def test_it_is_delivered_with_the_time_that_was_asked_for(broker: Http, send: Any) -> None:
    before = time.time_ns() // 1_000_000
    assert send(broker, SOON | {"region": "eu"}).status == 200
    message = delivered(broker, 0, 0)
    at = int(message["properties"].pop("TIMER_DELIVER_MS"))
    assert message["properties"] == {"region": "eu"}
    assert at >= before + 150
    assert message["stored_at_us"] >= 1000 * at


def test_an_answer_to_a_send_without_delay_is_as_it_was(broker: Http) -> None:
    for answer in (alone(broker, {"a": "b"}), alone(broker, {"DELAY": "0"})):
        assert "timers" not in answer.json
        assert answer.json["appended"][0]["offset"] >= 0


def test_the_answer_speaks_of_batches_in_the_order_they_were_sent(broker: Http) -> None:
    many = [Message(bytes(1_000), properties={"TIMER_DELAY_MS": str(10**7 + n * 1_000)}) for n in range(300)]
    answer = broker.send("orders", stream([Message(b"now")], many, many[:1]), "?queue=0,1,2").json
    assert [(each["queue"], each["offset"], each["count"]) for each in answer["appended"]] == [
        (0, 0, 1), (1, NO_OFFSET, 300), (2, NO_OFFSET, 1),
    ]  # fmt: skip
    assert [bool(timer) for timer in answer["timers"]] == [False, False, True]


def test_a_batch_with_one_delayed_message_is_held_as_a_whole(broker: Http) -> None:
    body = stream([Message(b"a"), Message(b"b", properties=SOON), Message(b"c")])
    answer = broker.send("orders", body, "?queue=0").json
    assert answer["appended"] == [{"queue": 0, "offset": NO_OFFSET, "count": 3}]
    assert [delivered(broker, 0, offset)["body"] for offset in range(3)] == ["a", "c", "b"]


def test_of_a_json_body_only_the_delayed_messages_are_held(broker: Http) -> None:
    answer = broker.send_json(
        "orders", {"body": "a"}, {"body": "b", "properties": LATER}, {"body": "c"}, query="?queue=1"
    ).json
    assert [each["offset"] for each in answer["appended"]] == [0, NO_OFFSET, 1]
    assert [bool(timer) for timer in answer["timers"]] == [False, True, False]


def test_a_time_in_the_past_is_delivered_at_once(broker: Http) -> None:
    alone(broker, {"TIMER_DELIVER_MS": "1"})
    assert delivered(broker, 0, 0)["properties"] == {"TIMER_DELIVER_MS": "1"}


@forms
def test_a_time_beyond_the_horizon_is_refused_and_nothing_is_stored(
    start_broker: StartBroker, send: Any
) -> None:
    broker = start_broker(delay_ms_max=60_000)
    broker.create("orders", read_queues=4, write_queues=4)
    answer = send(broker, {"TIMER_DELAY_MS": "60001"})
    assert (answer.status, answer.code) == (400, "INVALID_MESSAGE")
    assert "within 60000 ms" in answer.json["message"]
    assert send(broker, {"TIMER_DELAY_MS": "60000"}).status == 200


def test_one_bad_time_refuses_the_whole_body(broker: Http) -> None:
    good, bad = Message(b"x", properties=SOON), Message(b"x", properties={"DELAY": "x"})
    answer = broker.send("orders", stream([good] * 3, [good, bad]))
    assert (answer.code, answer.json["facts"]["row"]) == ("INVALID_MESSAGE", 4)
    answer = broker.send_json("orders", {"body": "x"}, {"body": "x", "properties": {"DELAY": "x"}})
    assert (answer.code, answer.json["facts"]["row"]) == ("INVALID_MESSAGE", 1)


def test_the_metrics_count_delayed_messages(broker: Http) -> None:
    alone(broker, LATER)
    alone(broker, SOON)
    delivered(broker, 0, 0)
    metrics = broker.get("/metrics").body.decode()
    node = '{cluster="default",node_id="broker-0",node_type="broker"}'
    values = {line.rsplit(" ", 1)[0]: line.rsplit(" ", 1)[1] for line in metrics.splitlines()}
    assert values[f"rocketmq_timing_messages{node}"] == "1.0"
    assert values[f"rocketmq_timer_enqueue_total{node}"] == "2.0"
    assert values[f"rocketmq_timer_dequeue_total{node}"] == "1.0"
    assert values[f"rocketmq_timer_dequeue_latency{node}"] == "0.0"
