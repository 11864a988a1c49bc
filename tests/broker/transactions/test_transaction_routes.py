"""Transactions over HTTP: half messages in every form, outcomes, checks, parking, and what operators see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest

from rocketq.model import Message
from rocketq_broker.store.config import TransactionPolicy
from tests.broker.conftest import StartBroker
from tests.support.http_client import Answer, Http, stream

GROUP = "orders-tx"
PLAIN = {"content-type": "application/octet-stream"}


def query(transaction: str, part: int = 0, **more: Any) -> str:
    named = {"queue": 0, "transaction": transaction, "group": GROUP, "part": part, **more}
    return "?" + urlencode({name: value for name, value in named.items() if value is not None})


FORMS: dict[str, Callable[[Http, str], Answer]] = {
    "plain": lambda broker, name: broker.send("orders", b"x", query(name), PLAIN),
    "arrow": lambda broker, name: broker.send("orders", stream([Message(b"x")]), query(name)),
    "compressed": lambda broker, name: broker.send(
        "orders", stream([Message(b"x")], codec="lz4"), query(name)
    ),
    "json": lambda broker, name: broker.send_json("orders", {"body": "x"}, query=query(name)),
}
forms = pytest.mark.parametrize("send", FORMS.values(), ids=FORMS)


def half(broker: Http, transaction: str, body: bytes = b"x", part: int = 0) -> None:
    answer = broker.send("orders", body, query(transaction, part), PLAIN)
    assert answer.status == 200, answer.json


def decide(broker: Http, transaction: str, outcome: str, group: str = GROUP) -> Answer:
    return broker.call("POST", f"/v1/groups/{group}/transactions/{transaction}/{outcome}")


def checks(broker: Http, wait_ms: int = 0, group: str = GROUP, **more: int) -> list[dict[str, Any]]:
    asked = urlencode({"wait_ms": wait_ms, **more})
    answer = broker.call("POST", f"/v1/groups/{group}/transactions/checks?{asked}")
    assert answer.status == 200, answer.json
    found: list[dict[str, Any]] = answer.json["checks"]
    return found


def bodies(broker: Http, queue: int = 0, topic: str = "orders", wait_ms: int = 0) -> list[str]:
    answer = broker.pull(topic, queue, 0, "application/json", wait_ms=wait_ms)
    return [each["body"] for each in answer.json["messages"]]


@pytest.fixture
def quick(start_broker: StartBroker) -> Http:
    """A broker that checks after 20 ms, three times, and gives a parked transaction up after an hour."""
    policy = TransactionPolicy(timeout_ms=20, check_interval_ms=20, checks_max=3, kept_ms=3_600_000)
    started = start_broker(transactions=policy, auto_create_topics=False)
    started.create("orders", read_queues=4, write_queues=4)
    return started


def test_an_operator_s_decision_is_final_and_repeats_safely(broker: Http) -> None:
    half(broker, "tx-1")
    path = f"/v1/groups/{GROUP}/transactions/tx-1/outcome"
    undecided = broker.put(path, {"state": "UNKNOWN"})
    assert (undecided.status, undecided.code) == (400, "INVALID_REQUEST")
    assert broker.call("PUT", path).status == 400, "no state"
    for _ in range(2):
        answer = broker.put(path, {"state": "COMMIT"})
        assert (answer.status, answer.json["state"]) == (200, "COMMIT")
    assert bodies(broker) == ["x"]
    assert broker.put(path, {"state": "ROLLBACK"}).code == "TRANSACTION_DECIDED_OTHERWISE"


@forms
def test_a_half_message_is_seen_once_it_is_committed(broker: Http, send: Any) -> None:
    answer = send(broker, "tx-1")
    assert (answer.status, answer.json["transaction"], answer.json["messages"]) == (200, "tx-1", 1)
    assert broker.total("orders") == 0
    assert decide(broker, "tx-1", "commit").json["state"] == "COMMIT"
    assert bodies(broker) == ["x"]


@forms
def test_a_half_message_is_dropped_when_it_is_rolled_back(broker: Http, send: Any) -> None:
    send(broker, "tx-1")
    assert decide(broker, "tx-1", "rollback").json["state"] == "ROLLBACK"
    assert broker.total("orders") == 0
    refused = decide(broker, "tx-1", "commit")
    assert (refused.status, refused.code) == (409, "TRANSACTION_DECIDED_OTHERWISE")


@pytest.mark.parametrize("missing", ["transaction", "group", "part"])
def test_a_half_message_names_transaction_group_and_part(broker: Http, missing: str) -> None:
    named: dict[str, Any] = {"transaction": "tx-1", "group": GROUP, "part": 0}
    del named[missing]
    answer = broker.send("orders", b"x", "?" + urlencode({"queue": 0, **named}), PLAIN)
    assert (answer.status, answer.code) == (400, "INVALID_REQUEST")
    assert missing in answer.json["message"]


@pytest.mark.parametrize("name", ["DELAY", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
def test_a_half_message_cannot_be_delayed(broker: Http, name: str) -> None:
    answer = broker.send("orders", b"x", query("tx-1", **{f"property.{name}": "5"}), PLAIN)
    assert (answer.status, answer.code) == (400, "INVALID_REQUEST")
    assert "delayed" in answer.json["message"]
    assert broker.get("/v1/transactions").json["transactions"] == []


def test_a_part_has_one_batch_for_one_queue(broker: Http) -> None:
    two = stream([Message(b"a")], [Message(b"b")])
    answer = broker.send("orders", two, query("tx-1", queue="0,1"))
    assert (answer.status, answer.code) == (400, "INVALID_REQUEST")
    assert "2 batches" in answer.json["message"]


def test_a_send_is_staged_or_half_and_not_both(broker: Http) -> None:
    both = query("tx-1", sink="s", batch=0, run="r", coordinator="broker-0")
    answer = broker.send("orders", stream([Message(b"x")]), both)
    assert (answer.status, answer.code) == (400, "INVALID_REQUEST")


def test_a_group_may_not_decide_for_another(broker: Http) -> None:
    half(broker, "tx-1")
    answer = decide(broker, "tx-1", "commit", group="thief")
    assert (answer.status, answer.code) == (403, "NOT_TRANSACTION_OWNER")
    assert answer.json["facts"]["owner"] == GROUP


def test_a_transaction_that_is_not_known_is_not_found(broker: Http) -> None:
    for answer in (decide(broker, "never", "commit"), broker.get("/v1/transactions/never")):
        assert (answer.status, answer.code) == (404, "TRANSACTION_NOT_FOUND")


def test_a_check_comes_with_the_first_message(quick: Http) -> None:
    key = "property.region=eu&key=o-1&tag=paid"
    quick.send("orders", b"\xff\x00", query("tx-1") + "&" + key, PLAIN)
    (check,) = checks(quick, wait_ms=60_000)
    message = check["message"]
    assert (check["transaction"], check["check"]) == ("tx-1", 1)
    assert (message["topic"], message["queue"], message["key"], message["tag"]) == (
        "orders",
        0,
        "o-1",
        "paid",
    )
    assert (message["body_base64"], message["properties"]) == ("/wA=", {"region": "eu"})


def test_a_check_is_for_its_own_group_and_for_one_call(quick: Http) -> None:
    half(quick, "tx-1")
    (check,) = checks(quick, wait_ms=60_000)
    assert check["transaction"] == "tx-1"
    assert checks(quick, group="another") == []


def test_no_check_is_due_before_its_time(broker: Http) -> None:
    half(broker, "tx-1")
    assert checks(broker) == []


def test_no_check_is_made_of_what_is_decided(quick: Http) -> None:
    half(quick, "tx-1")
    half(quick, "tx-2")
    decide(quick, "tx-1", "commit")
    assert [each["transaction"] for each in checks(quick, wait_ms=60_000)] == ["tx-2"]


def parked(broker: Http, transaction: str) -> dict[str, Any]:
    """Take every check of a transaction; return its message from the parking topic once it is there."""
    seen = 0
    while seen < 3:
        seen += len(checks(broker, wait_ms=60_000, limit=1))
    answer = broker.pull("orders", 0, 0)
    assert answer.status == 200
    topic = "TRANS_CHECK_MAX_TIME_TOPIC"
    while broker.get(f"/v1/topics/{topic}").status == 404:
        # A held call of 20 ms instead of a sleep: nothing is due any more.
        assert checks(broker, wait_ms=20) == []
    found: dict[str, Any] = broker.pull(topic, 0, 0, "application/json", wait_ms=60_000).json["messages"][0]
    return found


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_what_stays_undecided_is_parked_and_can_be_decided(quick: Http, outcome: str) -> None:
    half(quick, "tx-1", b"order")
    message = parked(quick, "tx-1")
    assert (message["body"], message["properties"]) == (
        "order",
        {
            "REAL_TOPIC": "orders",
            "REAL_QID": "0",
            "PGROUP": GROUP,
            "__transactionId__": "tx-1",
            "TRANSACTION_CHECK_TIMES": "3",
        },
    )
    (told,) = quick.get("/v1/transactions").json["transactions"]
    assert (told["checks"], told["next_check_at_ms"]) == (3, None)
    assert told["parked_at_ms"] > 0
    assert checks(quick) == []
    decide(quick, "tx-1", outcome)
    assert quick.total("orders") == (1 if outcome == "commit" else 0)
    assert quick.get("/v1/transactions").json["transactions"] == []


def test_a_parked_transaction_is_given_up_in_the_end(start_broker: StartBroker) -> None:
    policy = TransactionPolicy(timeout_ms=10, check_interval_ms=10, checks_max=1, kept_ms=100)
    broker = start_broker(transactions=policy)
    broker.create("orders", read_queues=1, write_queues=1)
    half(broker, "tx-1")
    while broker.get("/v1/transactions").json["transactions"]:
        checks(broker, wait_ms=10)
    assert decide(broker, "tx-1", "rollback").status == 200
    assert decide(broker, "tx-1", "commit").code == "TRANSACTION_DECIDED_OTHERWISE"


def test_operators_see_what_is_undecided(broker: Http) -> None:
    half(broker, "tx-1", b"a")
    half(broker, "tx-1", b"b", part=1)
    half(broker, "tx-2", b"c")
    listed = broker.get("/v1/transactions?limit=1").json
    (first,) = listed["transactions"]
    assert (first["transaction"], first["group"], first["topics"]) == ("tx-1", GROUP, {"orders": 2})
    assert first["next_check_at_ms"] == first["begun_at_ms"] + 6_000
    (second,) = broker.get(f"/v1/transactions?page={listed['next_page']}").json["transactions"]
    assert second["transaction"] == "tx-2"
    assert broker.get("/v1/transactions?group=nobody").json["transactions"] == []
    shown = broker.get("/v1/transactions/tx-1").json
    assert [each["body"] for each in shown["messages"]] == ["a", "b"]
    assert shown["description"] == first


def test_metrics_bear_the_names_of_rocketmq(broker: Http) -> None:
    for name in ("tx-1", "tx-2", "tx-3"):
        half(broker, name)
    decide(broker, "tx-1", "commit")
    decide(broker, "tx-2", "rollback")
    text = broker.get("/metrics").body.decode()
    lines = {line.split("{")[0]: line for line in text.splitlines() if not line.startswith("#")}
    assert lines["rocketmq_half_messages"].endswith(" 1.0")
    for name in ("rocketmq_commit_messages_total", "rocketmq_rollback_messages_total"):
        assert 'topic="orders"' in lines[name]
        assert lines[name].endswith(" 1.0")
