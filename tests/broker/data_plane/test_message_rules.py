"""Tags, properties, names and empty bodies: the same answer on every way into the broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketq.model import Message
from tests.broker.conftest import StartBroker
from tests.support.http_client import ARROW, Answer, Http, stream
from tests.support.store_driver import config, opened

STAGE = "?sink=s&batch=0&run=r&coordinator=broker-0"
Send = Callable[[Http, str, Message], Answer]


def by_json(broker: Http, topic: str, message: Message) -> Answer:
    fields: dict[str, Any] = {"body": message.body.decode(), "tag": message.tag}
    return broker.send_json(topic, fields | {"properties": message.properties})


WAYS: dict[str, Send] = {
    "alone": lambda broker, topic, m: broker.send(topic, stream([m]), "?queue=0"),
    "a small batch": lambda broker, topic, m: broker.send(topic, stream([m, m]), "?queue=0"),
    "several batches": lambda broker, topic, m: broker.send(topic, stream([Message(b"x")], [m])),
    "compressed": lambda broker, topic, m: broker.send(topic, stream([m] * 9, codec="lz4")),
    "staged": lambda broker, topic, m: broker.send(topic, stream([m]), STAGE),
    "json": by_json,
    "the usual way": lambda broker, topic, m: broker.send(
        topic, stream([m]), "?queue=0", {**ARROW, "content-encoding": "identity"}
    ),
}
ways = pytest.mark.parametrize("send", WAYS.values(), ids=WAYS)


@ways
@pytest.mark.parametrize(
    ("message", "field", "value"),
    [
        (Message(b"x", properties={"a": "b", "TRAN_MSG": "true"}), "property", "TRAN_MSG"),
        (Message(b"x", properties={"TIMER_DEL_UNIQKEY": "1"}), "property", "TIMER_DEL_UNIQKEY"),
        (Message(b"x", properties={"DELAY": "soon"}), "property", "DELAY"),
        (Message(b"x", properties={"TIMER_DELAY_SEC": "9999999"}), "property", "TIMER_DELAY_SEC"),
        (Message(b"x", properties={"WAIT": "false"}), "property", "WAIT"),
        (Message(b"x", tag="A B"), "tag", "A B"),
        (Message(b"x", tag="A||B"), "tag", "A||B"),
        (Message(b"x", tag="*"), "tag", "*"),
        (Message(b"x", tag=""), "tag", ""),
    ],
)
def test_what_no_message_may_have_is_refused_and_nothing_is_stored(
    refusing: Http, send: Send, message: Message, field: str, value: str
) -> None:
    answer = send(refusing, "orders", message)
    assert (answer.status, answer.code) == (400, "INVALID_MESSAGE")
    assert (answer.json["facts"]["field"], answer.json["facts"]["value"]) == (field, value)
    assert refusing.total("orders") == 0


def test_the_row_of_a_refused_message_counts_over_the_whole_body(broker: Http) -> None:
    good, bad = Message(b"x"), Message(b"x", properties={"TRAN_MSG": "true"})
    answer = broker.send("orders", stream([good] * 3, [good, bad]))
    assert answer.json["facts"]["row"] == 4
    answer = broker.send_json("orders", {"body": "x"}, {"body": "x", "properties": {"TRAN_MSG": "true"}})
    assert answer.json["facts"]["row"] == 1
    assert "'TRAN_MSG' in row 1 is written by" in answer.json["message"]


@ways
@pytest.mark.parametrize("topic", ["%25RETRY%25billing", "%25DLQ%25billing", "TBW102", "rmq_sys_x"])
def test_nobody_sends_to_a_reserved_topic(refusing: Http, send: Send, topic: str) -> None:
    answer = send(refusing, topic, Message(b"x"))
    assert (answer.status, answer.code) == (403, "RESERVED_NAME")
    assert [each["name"] for each in refusing.get("/v1/topics").json["topics"]] == ["orders"]


def test_nobody_creates_a_reserved_topic_or_commits_for_a_reserved_group(broker: Http) -> None:
    for document in ({}, {"automatic": True}):
        answer = broker.put("/v1/topics/SCHEDULE_TOPIC_XXXX", document)
        assert (answer.status, answer.code) == (403, "RESERVED_NAME")
    answer = broker.put("/v1/groups/CID_RMQ_SYS_TRANS/offsets", {"offsets": []})
    assert (answer.status, answer.code) == (403, "RESERVED_NAME")
    assert [each["name"] for each in broker.get("/v1/topics").json["topics"]] == ["orders"]


@ways
def test_an_empty_body_is_a_message(broker: Http, send: Send) -> None:
    answer = send(broker, "orders", Message(b"", tag="marker", properties={"region": "eu", "KEYS": "a b"}))
    assert answer.status == 200


def test_what_was_stored_before_these_rules_can_be_read(start_broker: StartBroker, tmp_path: Path) -> None:
    old, topic = Message(b"x", tag="A B", properties={"TRAN_MSG": "true"}), "%25RETRY%25billing"
    with opened(config(tmp_path / "data")) as driver:
        driver.create("%RETRY%billing", 1)
        driver.send("%RETRY%billing", 0, [old])
    broker = start_broker(data_dir=tmp_path / "data")
    (message,) = broker.pull(topic, 0, 0, "application/json", group="billing").json["messages"]
    assert (message["tag"], message["properties"]) == ("A B", {"TRAN_MSG": "true"})
    assert broker.send(topic, stream([Message(b"x")]), "?queue=0").code == "RESERVED_NAME"
    assert broker.call("DELETE", f"/v1/topics/{topic}").status == 200
