"""Topics and groups over HTTP."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.broker.conftest import StartBroker
from tests.support.http_client import JSON, Http, numbered, stream


def test_a_topic_is_created_described_altered_and_deleted(broker: Http) -> None:
    created = broker.create("fresh", read_queues=2, write_queues=2, retention_ms=1000)
    config = created.json
    assert (config["name"], config["perm"], config["retention_ms"]) == ("fresh", 6, 1000)
    assert config["incarnation"] != ""
    described = broker.get("/v1/topics/fresh").json
    assert described == {
        "broker": "broker-0",
        "config": config,
        "total": 0,
        "queues": [{"min": 0, "max": 0}] * 2,
    }
    altered = broker.call("PATCH", "/v1/topics/fresh", b'{"read_queues": 3, "perm": 4}', JSON)
    assert altered.status == 200
    assert altered.json == {**config, "read_queues": 3, "perm": 4}
    assert {each["name"] for each in broker.get("/v1/topics").json["topics"]} == {"orders", "fresh"}
    deleted = broker.call("DELETE", "/v1/topics/fresh")
    assert (deleted.status, deleted.json) == (200, {})
    assert broker.get("/v1/topics/fresh").code == "TOPIC_NOT_FOUND"
    assert broker.call("DELETE", "/v1/topics/fresh").code == "TOPIC_NOT_FOUND"


def test_creating_a_topic_twice_is_a_conflict_unless_it_may_exist(broker: Http) -> None:
    again = broker.put("/v1/topics/orders", {"read_queues": 9})
    assert (again.status, again.code) == (409, "CONFLICT")
    tolerated = broker.put("/v1/topics/orders", {"read_queues": 9, "if_absent": True})
    assert (tolerated.status, tolerated.json["read_queues"]) == (200, 4)


def test_an_empty_body_creates_a_topic_with_the_defaults(broker: Http) -> None:
    answer = broker.call("PUT", "/v1/topics/plain")
    assert answer.status == 201
    assert (answer.json["read_queues"], answer.json["write_queues"], answer.json["perm"]) == (4, 4, 6)


def test_automatic_creation_is_refused_where_it_is_not_allowed(
    broker: Http, start_broker: StartBroker
) -> None:
    refused = broker.put("/v1/topics/fresh", {"automatic": True, "if_absent": True})
    assert (refused.status, refused.code) == (403, "NO_PERMISSION")
    allowing = start_broker(auto_create_topics=True)
    assert allowing.put("/v1/topics/fresh", {"automatic": True, "if_absent": True}).status == 201
    # What is there already needs no creating.
    assert broker.put("/v1/topics/orders", {"automatic": True, "if_absent": True}).status == 200


@pytest.mark.parametrize(
    "document",
    [
        {"read_queues": 0},
        {"write_queues": 16_385},
        {"read_queues": "4"},
        {"read_queues": 1.5},
        {"perm": 1},
        {"retention_ms": 0},
        {"retention": 5},
        [],
        None,
    ],
)
def test_a_topic_that_makes_no_sense_is_refused(refusing: Http, document: Any) -> None:
    answer = refusing.put("/v1/topics/fresh", document)
    assert (answer.status, answer.code) == (400, "INVALID_REQUEST")
    assert refusing.get("/v1/topics/fresh").status == 404


def test_a_control_body_must_be_json_and_small(broker: Http) -> None:
    assert broker.call("PUT", "/v1/topics/fresh", b"{", JSON).code == "INVALID_REQUEST"
    text = broker.call("PUT", "/v1/topics/fresh", b"{}", {"content-type": "text/plain"})
    assert (text.status, text.code) == (415, "UNSUPPORTED_MEDIA_TYPE")
    large = broker.call("PUT", "/v1/topics/fresh", b" " * (2 << 20), JSON)
    assert (large.status, large.code) == (413, "TOO_LARGE")


def test_a_topic_made_anew_begins_empty_and_with_another_incarnation(broker: Http) -> None:
    before = broker.get("/v1/topics/orders").json["config"]["incarnation"]
    broker.send("orders", stream(numbered(3)), "?queue=0")
    broker.call("DELETE", "/v1/topics/orders")
    assert broker.pull("orders", 0, 0).code == "TOPIC_NOT_FOUND"
    broker.create("orders")
    answer = broker.pull("orders", 0, 0)
    assert answer.header("x-rocketq-max-offset") == "0"
    assert answer.header("x-rocketq-incarnation") != before


def test_a_group_s_offsets_advance_and_go_back_only_when_reset(broker: Http) -> None:
    broker.send("orders", stream(numbered(9)), "?queue=1")
    path = "/v1/groups/billing/offsets"
    assert broker.get(path).json == {"broker": "broker-0", "group": "billing", "offsets": []}

    def commit(offset: int, **more: Any) -> Any:
        place = {"topic": "orders", "queue": 1, "offset": offset}
        answer = broker.put(path, {"offsets": [place], **more})
        assert answer.status == 200
        return answer.json["offsets"][0]["offset"]

    assert commit(5) == 5
    assert commit(3) == 5
    assert commit(3, reset=True) == 3
    assert broker.get(path).json["offsets"] == [{"topic": "orders", "queue": 1, "offset": 3}]
    assert broker.get(f"{path}?topic=other").json["offsets"] == []


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ({"topic": "unknown", "queue": 0, "offset": 0}, "TOPIC_NOT_FOUND"),
        ({"topic": "orders", "queue": 4, "offset": 0}, "QUEUE_NOT_FOUND"),
        ({"topic": "orders", "queue": 0, "offset": 1}, "OFFSET_OUT_OF_RANGE"),
        ({"topic": "orders", "queue": 0, "offset": -1}, "OFFSET_OUT_OF_RANGE"),
        ({"topic": "orders", "queue": 0}, "INVALID_REQUEST"),
        ({"topic": "orders", "queue": 0, "offset": "1"}, "INVALID_REQUEST"),
    ],
)
def test_an_offset_that_cannot_be_is_not_committed(broker: Http, place: dict[str, Any], code: str) -> None:
    good = {"topic": "orders", "queue": 1, "offset": 0}
    assert broker.put("/v1/groups/billing/offsets", {"offsets": [good, place]}).code == code
    assert broker.get("/v1/groups/billing/offsets").json["offsets"] == []


def test_group_names_and_parameters_are_checked(broker: Http) -> None:
    assert broker.get("/v1/groups/a.b/offsets").code == "INVALID_NAME"
    assert broker.put("/v1/groups/a.b/offsets", {"offsets": []}).code == "INVALID_NAME"
    assert broker.get("/v1/groups/billing/offsets?topics=x").code == "INVALID_REQUEST"


def test_a_message_is_found_by_its_id(broker: Http) -> None:
    broker.send_json("orders", {"body": "first"}, {"body": "second", "key": "k"}, query="?queue=2")
    message = broker.get("/v1/messages/broker-0:orders:2:1").json
    assert (message["body"], message["key"], message["offset"], message["queue"]) == ("second", "k", 1, 2)
    assert message["message_id"] == "broker-0:orders:2:1"


@pytest.mark.parametrize(
    ("identity", "code"),
    [
        ("broker-0:orders:2:2", "NOT_FOUND"),
        ("broker-0:orders:2:99", "NOT_FOUND"),
        ("broker-9:orders:2:0", "NOT_FOUND"),
        ("broker-0:unknown:2:0", "TOPIC_NOT_FOUND"),
        ("broker-0:orders:9:0", "QUEUE_NOT_FOUND"),
        ("broker-0:orders:2", "INVALID_REQUEST"),
        ("broker-0:orders:2:x", "INVALID_REQUEST"),
    ],
)
def test_an_id_of_no_message_is_refused(broker: Http, identity: str, code: str) -> None:
    broker.send_json("orders", {"body": "a"}, {"body": "b"}, query="?queue=2")
    assert broker.get(f"/v1/messages/{identity}").code == code


def test_a_topic_keeps_the_record_of_its_brokers_over_a_restart(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker(name="broker-a", data_dir=tmp_path / "a")
    made = broker.create("orders", brokers=["broker-b", "broker-a", "broker-b"])
    assert made.json["brokers"] == ["broker-a", "broker-b"]
    more = broker.put("/v1/topics/orders", {"if_absent": True, "brokers": ["broker-c", "broker-a"]})
    assert (more.status, more.json["brokers"]) == (200, ["broker-a", "broker-b", "broker-c"])
    less = broker.call("PATCH", "/v1/topics/orders", b'{"remove_brokers": ["broker-b", "broker-x"]}', JSON)
    assert less.json == {**made.json, "brokers": ["broker-a", "broker-c"]}
    again = start_broker(name="broker-a", data_dir=copied(tmp_path / "a", tmp_path / "b"))
    assert again.get("/v1/topics/orders").json["config"]["brokers"] == ["broker-a", "broker-c"]
    assert broker.create("unrecorded").json["brokers"] == []


def copied(directory: Path, to: Path) -> Path:
    """What a crash at this moment would leave."""
    shutil.copytree(directory, to, ignore=shutil.ignore_patterns("lock"))
    return to


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({"brokers": ["broker-1"]}, "INVALID_REQUEST"),
        ({"brokers": ["broker-0", "a.b"]}, "INVALID_NAME"),
        ({"brokers": [f"broker-{n}" for n in range(1_025)]}, "INVALID_REQUEST"),
        ({"brokers": "broker-0"}, "INVALID_REQUEST"),
    ],
)
def test_a_record_that_this_broker_cannot_have_is_refused(broker: Http, document: Any, code: str) -> None:
    assert broker.put("/v1/topics/fresh", document).code == code
    assert broker.put("/v1/topics/orders", {**document, "if_absent": True}).code == code
    assert broker.get("/v1/topics/fresh").status == 404


def test_a_broker_does_not_take_itself_off_a_record(broker: Http) -> None:
    answer = broker.call("PATCH", "/v1/topics/orders", b'{"remove_brokers": ["broker-0"]}', JSON)
    assert (answer.status, answer.code) == (400, "INVALID_REQUEST")


def test_queues_with_messages_are_not_taken_from_the_readers_unless_forced(broker: Http) -> None:
    broker.send("orders", stream(numbered(3)), "?queue=2")
    broker.send("orders", stream(numbered(5)), "?queue=3")

    def alter(document: bytes) -> Any:
        return broker.call("PATCH", "/v1/topics/orders", document, JSON)

    for document in (b'{"read_queues": 1}', b'{"read_queues": 1, "write_queues": 1}'):
        refused = alter(document)
        assert (refused.status, refused.code) == (409, "UNREAD_MESSAGES")
        assert refused.json["facts"]["messages"] == {"broker-0/2": 3, "broker-0/3": 5}
    assert alter(b'{"write_queues": 1}').status == 200
    assert broker.get("/v1/topics/orders").json["config"]["read_queues"] == 4
    assert alter(b'{"read_queues": 1, "force": true}').json["read_queues"] == 1
    described = broker.get("/v1/topics/orders").json
    assert [queue["max"] for queue in described["queues"]] == [0, 0, 3, 5], "they are stored all the same"
    assert broker.get("/v1/topics/orders/offsets").json["total"] == 8
    assert broker.pull("orders", 2, 0).code == "QUEUE_NOT_FOUND"
    alter(b'{"read_queues": 4}')
    assert broker.pull("orders", 3, 0).header("x-rocketq-max-offset") == "5"
