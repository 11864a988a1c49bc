"""Receive, acknowledge and change the invisible time over HTTP, as curl does it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rocketq.errors import LeasesOutstanding, QueuesOwned
from rocketq.http_server.runner import ServerThread
from rocketq.model import Message
from rocketq_broker.app import create_app
from rocketq_broker.config import BrokerConfig
from tests.broker.conftest import StartBroker
from tests.broker.data_plane.test_pull import wait_until_held
from tests.broker.groups.scripted_member import GroupMember
from tests.support.conditions import wait_until
from tests.support.http_client import JSON, Answer, Http, numbered, stream

HOUR_MS = 3_600_000
GROUP = "/v1/groups/billing"


def post(broker: Http, path: str, group: str = GROUP, **document: Any) -> Answer:
    return broker.call("POST", f"{group}/{path}", json.dumps(document), JSON)


def receive(broker: Http, group: str = GROUP, **wanted: Any) -> list[dict[str, Any]]:
    asked = {"topic": "orders", "max_messages": 100, "invisible_ms": HOUR_MS, **wanted}
    answer = post(broker, "receives", group, **asked)
    assert answer.status == 200, answer.json
    found: list[dict[str, Any]] = answer.json["messages"]
    return found


def handles(messages: list[dict[str, Any]]) -> list[str]:
    return [each["receipt_handle"] for each in messages]


def ack(broker: Http, *receipt_handles: str) -> Answer:
    return post(broker, "acks", receipt_handles=receipt_handles)


def change(broker: Http, invisible_ms: int, *receipt_handles: str) -> Answer:
    return post(broker, "invisible-times", receipt_handles=receipt_handles, invisible_ms=invisible_ms)


def make_visible(broker: Http, *receipt_handles: str) -> None:
    assert change(broker, 0, *receipt_handles).status == 200


def offsets(broker: Http) -> dict[int, int]:
    """Where the group stands in each queue."""
    return {each["queue"]: each["offset"] for each in broker.get(f"{GROUP}/offsets").json["offsets"]}


def leased(broker: Http) -> dict[int, int]:
    return {each["queue"]: each["leased"] for each in broker.get(f"{GROUP}/leases").json["queues"]}


@pytest.fixture
def filled(broker: Http) -> Http:
    """Nine messages in each of the four queues of `orders`."""
    for queue in range(4):
        broker.send("orders", stream(numbered(9)), f"?queue={queue}")
    return broker


@pytest.fixture
def single(broker: Http) -> Http:
    """Three messages in one queue of `orders`."""
    broker.send("orders", stream(numbered(3)), "?queue=1")
    return broker


# --- receiving ---------------------------------------------------------------------------


def test_a_receive_takes_messages_of_all_queues_and_shows_each_once(filled: Http) -> None:
    first, second = receive(filled, max_messages=20), receive(filled)
    assert (len(first), len(second), receive(filled)) == (20, 16, [])
    found = sorted((each["queue"], each["offset"]) for each in first + second)
    assert found == [(queue, offset) for queue in range(4) for offset in range(9)]
    one = first[0]
    assert one["receipt_handle"] == f"broker-0:orders:{one['queue']}:{one['offset']}:0"
    assert (one["attempt"], one["body"]) == (1, f"message {one['offset']}")
    assert one["message_id"] == f"broker-0:orders:{one['queue']}:{one['offset']}"


def test_each_receive_begins_with_another_queue(filled: Http) -> None:
    assert [receive(filled, max_messages=1)[0]["queue"] for _ in range(6)] == [0, 1, 2, 3, 0, 1]


def test_groups_do_not_share_leases(filled: Http) -> None:
    assert len(receive(filled)) == len(receive(filled, "/v1/groups/audit")) == 36


def test_acknowledged_messages_move_the_offset_of_the_group_over_what_has_no_gap(single: Http) -> None:
    first, second, third = handles(receive(single))
    assert offsets(single)[1] == 0
    assert ack(single, second).json["acknowledged"] == 1
    assert offsets(single)[1] == 0
    ack(single, first)
    assert offsets(single)[1] == 2
    ack(single, third)
    assert (offsets(single)[1], leased(single)) == (3, {})
    queues = {each["queue"]: each for each in single.get(GROUP).json["queues"]}
    assert (queues[1]["lag"], queues[1]["committed"]) == (0, 3)


def test_receivers_at_the_same_time_get_different_messages(broker: Http) -> None:
    for queue in range(4):
        broker.send("orders", stream(numbered(100)), f"?queue={queue}")

    def work(_: int) -> list[str]:
        own: list[str] = []
        while found := receive(broker, max_messages=7):
            own += handles(found)
            assert ack(broker, *handles(found)).json["acknowledged"] == len(found)
        return own

    with ThreadPoolExecutor(6) as pool:
        found = [handle.rsplit(":", 1)[0] for own in pool.map(work, range(6)) for handle in own]
    assert len(found) == len(set(found)) == 400
    assert offsets(broker) == {0: 100, 1: 100, 2: 100, 3: 100}


def test_a_held_receive_gets_what_arrives(broker: Http) -> None:
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(receive, broker, wait_ms=20_000)
        wait_until_held(broker, 1)
        broker.send("orders", stream(numbered(2)), "?queue=3")
        assert [each["body"] for each in held.result()] == ["message 0", "message 1"]


def test_a_held_receive_gets_what_runs_out(single: Http) -> None:
    assert len(receive(single, invisible_ms=50)) == 3
    assert [each["attempt"] for each in receive(single, wait_ms=20_000)] == [2, 2, 2]


def test_a_held_receive_gets_what_is_made_visible(single: Http) -> None:
    first, *_ = handles(receive(single))
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(receive, single, wait_ms=20_000)
        wait_until_held(single, 1)
        make_visible(single, first)
        (again,) = held.result()
    assert (again["offset"], again["attempt"]) == (0, 2)


def test_a_held_receive_learns_of_a_lease_that_began_meanwhile(single: Http) -> None:
    taken = receive(single)
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(receive, single, wait_ms=20_000)
        wait_until_held(single, 1)
        assert change(single, 300, *handles(taken)).status == 200
        assert [each["attempt"] for each in held.result()] == [2, 2, 2]


def test_a_receive_has_about_four_mebibytes_and_at_least_one_message(broker: Http) -> None:
    bodies = [Message(bytes([65 + number]) * (3 << 20)) for number in range(3)]
    broker.send("orders", stream(bodies[:1], bodies[1:2], bodies[2:]), "?queue=0,0,0")
    assert [each["body"][0] for each in receive(broker)] == ["A"]
    assert [each["body"][0] for each in receive(broker)] == ["B"]


# --- the end of a lease ------------------------------------------------------------------


def test_a_handle_whose_time_is_over_is_refused_and_the_message_comes_again(single: Http) -> None:
    (old,) = handles(receive(single, max_messages=1, invisible_ms=1))
    wait_until(lambda: single.get(f"{GROUP}/leases").json["queues"][0]["next_out_ms"] == 0)
    refused = ack(single, old)
    assert (refused.status, refused.code) == (409, "LEASE_EXPIRED")
    assert refused.json["facts"]["refused"] == [{"receipt_handle": old, "reason": "expired"}]
    assert "invisible time" in refused.json["hint"]
    (new,) = receive(single, max_messages=1)
    assert (new["offset"], new["attempt"]) == (0, 2)
    assert ack(single, old).json["facts"]["refused"][0]["reason"] == "replaced"
    assert change(single, 5_000, old).json["facts"]["refused"][0]["reason"] == "replaced"
    assert ack(single, new["receipt_handle"]).json["acknowledged"] == 1


def test_an_acknowledgement_may_be_repeated(single: Http) -> None:
    some = handles(receive(single))
    assert ack(single, *some).json["acknowledged"] == 3
    again = ack(single, *some).json
    assert (again["acknowledged"], again["settled"], again["refused"]) == (0, 3, [])
    assert change(single, 5_000, some[0]).json["facts"]["refused"][0]["reason"] == "settled"


def test_good_handles_count_beside_bad_ones(single: Http) -> None:
    first, second, _ = handles(receive(single))
    make_visible(single, first)
    answer = ack(single, first, second)
    assert (answer.status, answer.json["acknowledged"]) == (200, 1)
    assert answer.json["refused"] == [{"receipt_handle": first, "reason": "replaced"}]


def test_a_changed_time_gives_a_new_handle(single: Http) -> None:
    (old,) = handles(receive(single, max_messages=1))
    (changed,) = change(single, HOUR_MS, old).json["changed"]
    assert changed["before"] == old != changed["receipt_handle"]
    assert ack(single, changed["receipt_handle"]).json["acknowledged"] == 1


def test_a_message_that_had_its_last_attempt_becomes_a_dead_letter(single: Http) -> None:
    single.put(GROUP, {"retries_max": 1})
    for attempt in (1, 2):
        some = receive(single)
        assert [each["attempt"] for each in some] == [attempt] * 3
        make_visible(single, *handles(some))
    assert receive(single) == []
    answer = single.pull("%25DLQ%25billing", 0, 0, "application/json")
    letters = answer.json["messages"]
    assert [each["body"] for each in letters] == ["message 0", "message 1", "message 2"]
    assert letters[2]["properties"] == {
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": "broker-0:orders:1:2",
        "RECONSUME_TIME": "2",
        "FAILURE_REASON": "its last lease ran out",
        "UNIQ_KEY": "broker-0:orders:1:2",
    }
    assert (offsets(single)[1], leased(single)) == (3, {})


def test_the_limit_of_leased_messages_is_said(start_broker: StartBroker) -> None:
    broker = start_broker(leased_messages_max=5)
    broker.create("orders", read_queues=1, write_queues=1)
    broker.send("orders", stream(numbered(9)), "?queue=0")
    some = receive(broker)
    assert len(some) == 5
    refused = post(broker, "receives", topic="orders")
    assert (refused.status, refused.code) == (429, "TOO_MANY_LEASES")
    assert refused.json["facts"]["leases_max"] == 5
    ack(broker, *handles(some[:2]))
    assert [each["offset"] for each in receive(broker)] == [5, 6]


# --- filters and begins ------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [{"tag": "paid"}, {"sql": "TAGS = 'paid'"}])
def test_a_filter_passes_over_what_does_not_match(broker: Http, wanted: dict[str, str]) -> None:
    tags = ["paid", "open", "paid", "open", "open"]
    broker.send("orders", stream([Message(b"m", tag=tag) for tag in tags]), "?queue=0")
    some = receive(broker, **wanted)
    assert [each["offset"] for each in some] == [0, 2]
    ack(broker, *handles(some))
    assert offsets(broker)[0] == 5
    broker.send("orders", stream([Message(b"m", tag="open")] * 3), "?queue=0")
    assert receive(broker, **wanted) == []
    assert (offsets(broker)[0], leased(broker)) == (8, {})


def test_receivers_of_a_group_have_one_filter(filled: Http) -> None:
    assert receive(filled, tag="paid") == []
    refused = post(filled, "receives", topic="orders")
    assert (refused.status, refused.code) == (409, "RECEIVE_FILTER_DIFFERS")
    assert (refused.json["facts"]["counts"], refused.json["facts"]["wanted"]) == ("tag paid", "")
    filled.send("orders", stream(numbered(2)), "?queue=0")
    assert len(receive(filled, new_filter=True)) == 2
    assert post(filled, "receives", topic="orders", tag="paid").code == "RECEIVE_FILTER_DIFFERS"


def test_a_group_begins_where_the_first_receive_says(filled: Http) -> None:
    assert receive(filled, start={"where": "last"}) == []
    filled.send("orders", stream(numbered(1)), "?queue=2")
    assert [each["offset"] for each in receive(filled, start={"where": "first"})] == [9]
    stored_us = filled.pull("orders", 2, 9, "application/json").json["messages"][0]["stored_at_us"]
    some = receive(filled, "/v1/groups/audit", start={"where": "time", "at_us": stored_us})
    assert [(each["queue"], each["offset"]) for each in some] == [(2, 9)]


# --- beside members and operators ----------------------------------------------------------


def test_a_group_is_not_leased_and_owned_by_members_at_once(single: Http) -> None:
    member = GroupMember(single.address, 1)
    try:
        (first, *_) = handles(receive(single))
        with pytest.raises(LeasesOutstanding, match="orders/broker-0/1: 3"):
            member.join()
        ack(single, *handles(receive(single)), first)
        refused = post(single, "receives", topic="orders")
        assert refused.status == 200
        single.call(
            "POST", f"{GROUP}/reset", json.dumps({"topic": "orders", "to": "latest", "force": True}), JSON
        )
        member.join()
        member.claim(0)
        refused = post(single, "receives", topic="orders")
        assert (refused.status, refused.code) == (409, QueuesOwned.code)
    finally:
        member.close()


def test_progress_is_not_moved_under_leases_unless_it_is_forced(single: Http) -> None:
    some = handles(receive(single))
    reset = {"topic": "orders", "to": "latest"}
    refused = single.call("POST", f"{GROUP}/reset", json.dumps(reset), JSON)
    assert (refused.status, refused.code) == (409, "LEASES_OUTSTANDING")
    outside = single.put(f"{GROUP}/offsets", {"offsets": [{"topic": "orders", "queue": 1, "offset": 2}]})
    assert outside.code == "LEASES_OUTSTANDING"
    assert single.call("DELETE", GROUP).code == "LEASES_OUTSTANDING"
    assert single.call("POST", f"{GROUP}/reset", json.dumps({**reset, "force": True}), JSON).status == 200
    assert (offsets(single)[1], leased(single)) == (3, {})
    assert ack(single, *some).json["settled"] == 3
    single.call("DELETE", f"{GROUP}?force=true")
    assert ack(single, some[0]).json["facts"]["refused"][0]["reason"] == "unknown"
    assert [each["attempt"] for each in receive(single)] == [1, 1, 1]


def test_a_disabled_group_receives_nothing(single: Http) -> None:
    receive(single)
    single.put(GROUP, {"enabled": False})
    assert post(single, "receives", topic="orders").code == "GROUP_DISABLED"


def test_leases_outlive_the_broker(tmp_path: Path) -> None:
    config = BrokerConfig(name="broker-0", data_dir=tmp_path / "data", port=0)
    some: list[str] = []
    for life in range(2):
        app = create_app(config)
        server = ServerThread(app)
        app.bound(server.address)
        with server:
            broker = Http(server.address)
            if not life:
                broker.create("orders", read_queues=1, write_queues=1)
                broker.send("orders", stream(numbered(5)), "?queue=0")
                some = handles(receive(broker))
                ack(broker, some[0], some[3])
            else:
                assert receive(broker) == []
                assert ack(broker, *some).json == {
                    "broker": "broker-0", "group": "billing", "acknowledged": 3, "settled": 2, "refused": [],
                }  # fmt: skip
                assert offsets(broker) == {0: 5}


# --- bad input -----------------------------------------------------------------------------


BAD_RECEIVES: tuple[tuple[dict[str, Any], str], ...] = (
    ({"topic": "orders", "max_messages": 0}, "max_messages: 0 is not from 1 to 1000"),
    ({"topic": "orders", "max_messages": 1001}, "max_messages: 1001 is not from 1 to 1000"),
    ({"topic": "orders", "invisible_ms": 0}, "invisible_ms: 0 is not from 1"),
    ({"topic": "orders", "invisible_ms": 13 * HOUR_MS}, "invisible_ms: 46800000 is not from 1 to 43200000"),
    ({"topic": "orders", "wait_ms": -1}, "wait_ms: -1 is not from 0"),
    ({"topic": "orders", "tag": "a", "sql": "b = 1"}, "only one filter"),
    ({"topic": "orders", "sql": "b = "}, "b = "),
    ({"topic": "orders", "start": {"where": "time"}}, "at_us"),
    ({"topic": "orders", "invisible": 5}, "invisible"),
    ({"topic": "a b"}, "a b"),
    ({}, "topic"),
)
BAD_HANDLES = (
    ([], "is not from 1 to 1000"),
    (["x"], "is not broker:topic:queue:offset:lease"),
    (["broker-9:orders:0:0:0"], "was given by broker broker-9, not by broker-0"),
    (["broker-0:orders:0:0:0"] * 1001, "1001 is not from 1 to 1000"),
)


def test_bad_input_is_told_what_is_wrong(broker: Http) -> None:
    for document, says in BAD_RECEIVES:
        refused = post(broker, "receives", **document)
        assert refused.status == 400, document
        assert says in refused.json["message"]
    for given, says in BAD_HANDLES:
        for refused in (ack(broker, *given), change(broker, 1_000, *given)):
            assert (refused.status, refused.code) == (400, "INVALID_REQUEST")
            assert says in refused.json["message"]
    refused = post(broker, "receives", topic="refunds")
    assert (refused.status, refused.code) == (404, "TOPIC_NOT_FOUND")


def test_a_handle_that_was_never_given_is_unknown(single: Http) -> None:
    receive(single)
    for handle in ("broker-0:orders:1:0:99", "broker-0:refunds:1:0:0", "broker-0:orders:0:0:0"):
        assert ack(single, handle).json["facts"]["refused"][0]["reason"] == "unknown"
    assert leased(single) == {1: 3}


def test_a_broker_that_stops_answers_held_receives(tmp_path: Path) -> None:
    app = create_app(BrokerConfig(name="broker-0", data_dir=tmp_path / "data", port=0))
    server = ServerThread(app)
    app.bound(server.address)
    with ThreadPoolExecutor(1) as pool:
        with server:
            broker = Http(server.address)
            broker.create("orders", read_queues=1, write_queues=1)
            held = pool.submit(receive, broker, wait_ms=20_000)
            wait_until_held(broker, 1)
        assert held.result() == []


def test_metrics_show_what_is_leased_and_what_waits(broker: Http) -> None:
    broker.send("orders", stream(numbered(9)), "?queue=0")
    place = {"topic": "orders", "queue": 0, "offset": 4}
    assert broker.put("/v1/groups/pulling/offsets", {"offsets": [place]}).status == 200
    taken = receive(broker, max_messages=5)
    assert ack(broker, *handles(taken[1:3])).status == 200
    shown = broker.get("/metrics").body.decode().splitlines()
    found = {
        line.split("{")[0]: float(line.rsplit(" ", 1)[1])
        for line in shown
        if line.startswith(("rocketmq_consumer_inflight_messages{", "rocketmq_consumer_ready_messages{"))
        and 'consumer_group="billing"' in line
    }
    assert found == {"rocketmq_consumer_inflight_messages": 3, "rocketmq_consumer_ready_messages": 4}
    assert not [line for line in shown if "inflight" in line and "pulling" in line]
