"""Delayed messages over HTTP: listed page by page, looked at, cancelled."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

import pytest

from rocketq.model import Message
from tests.support.conditions import wait_until
from tests.support.http_client import Http, stream


def schedule(broker: Http, *delays_ms: int, queue: int = 0, key: bytes | None = None) -> list[str]:
    """Send a message for each delay, each alone; return their timer ids."""
    sent = [
        Message(b"after %d" % delay, key, properties={"TIMER_DELAY_MS": str(delay)}) for delay in delays_ms
    ]
    return [broker.send("orders", stream([each]), f"?queue={queue}").json["timers"][0] for each in sent]


def show(broker: Http, timer: str) -> dict[str, object]:
    document: dict[str, object] = broker.get(f"/v1/timers/{quote(timer, safe='')}").json
    return document


def cancel(broker: Http, timer: str) -> int:
    return broker.call("DELETE", f"/v1/timers/{quote(timer, safe='')}").status


def test_a_topic_s_timers_are_listed_in_the_order_of_delivery(broker: Http) -> None:
    broker.create("others", read_queues=1, write_queues=1)
    last, first = schedule(broker, 7_200_000, 3_600_000, key=b"k")
    (middle,) = schedule(broker, 5_400_000, queue=2)
    broker.send("others", stream([Message(b"x", properties={"DELAY": "18"})]), "?queue=0")
    listed = broker.get("/v1/topics/orders/timers").json
    assert [each["timer_id"] for each in listed["timers"]] == [first, middle, last]
    assert (listed["broker"], listed["topic"], listed["next_page"]) == ("broker-0", "orders", None)
    one = listed["timers"][0]
    assert (one["key"], one["status"], one["body"]) == ("k", "pending", None)
    assert one["properties"] == {"TIMER_DELIVER_MS": str(one["deliver_at_ms"])}


def test_pages_join_without_gaps_also_within_a_frame(broker: Http) -> None:
    many = [Message(b"%d" % n, properties={"TIMER_DELAY_MS": str(10**6 * (n % 5))}) for n in range(5, 42)]
    many = [each for each in many if each.properties != {"TIMER_DELAY_MS": "0"}]
    broker.send("orders", stream(many), "?queue=0")
    found: list[str] = []
    page = ""
    while page is not None:
        answer = broker.get(f"/v1/topics/orders/timers?limit=4{page and '&page=' + page}").json
        found += [each["timer_id"] for each in answer["timers"]]
        page = answer["next_page"]
    assert len(found) == len(set(found)) == len(many)
    assert found == [each["timer_id"] for each in broker.get("/v1/topics/orders/timers").json["timers"]]


def test_a_cancelled_message_is_not_delivered(broker: Http) -> None:
    stays, goes = schedule(broker, 400, 400)
    assert cancel(broker, goes) == 200
    assert cancel(broker, goes) == 200
    assert (show(broker, goes)["status"], show(broker, goes)["body"]) == ("cancelled", "after 400")
    assert [each["timer_id"] for each in broker.get("/v1/topics/orders/timers").json["timers"]] == [stays]
    answer = broker.pull("orders", 0, 0, "application/json", wait_ms=60_000).json
    assert [each["body"] for each in answer["messages"]] == ["after 400"]
    assert broker.total("orders") == 1
    assert show(broker, stays)["status"] == "past"
    wait_until(lambda: show(broker, goes)["status"] == "past")
    answer = broker.call("DELETE", f"/v1/timers/{quote(stays, safe='')}")
    assert (answer.status, answer.json["code"]) == (409, "CONFLICT")
    assert "its time has passed" in answer.json["message"]


@pytest.mark.parametrize("change", [
    lambda timer: timer.replace("broker-0", "broker-9"),
    lambda timer: timer.replace(":0:", ":3:"),
    lambda timer: timer + "7",
    lambda timer: timer.replace("@", "@1"),
    lambda timer: timer.replace("@", ""),
    lambda timer: "broker-0:orders:0:@0.0",
    lambda timer: "nonsense",
])  # fmt: skip
def test_an_id_that_names_no_delayed_message_is_not_found(broker: Http, change: Callable[[str], str]) -> None:
    (timer,) = schedule(broker, 3_600_000)
    wrong = change(timer)
    assert show(broker, wrong)["code"] == "NOT_FOUND"
    assert cancel(broker, wrong) == 404
    assert show(broker, timer)["status"] == "pending"


def test_wrong_parameters_of_a_list_are_refused(broker: Http) -> None:
    for query in ("limit=0", "limit=x", "limit=1001", "page=x", "page=1-2", "page=1-2-x"):
        assert broker.get(f"/v1/topics/orders/timers?{query}").status in (400, 422)
    assert broker.get("/v1/topics/nowhere/timers").code == "TOPIC_NOT_FOUND"
