"""Finding messages by key over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.conftest import StartBroker
from tests.support.http_client import Http


def test_messages_are_found_by_key_newest_first_over_all_queues(broker: Http) -> None:
    for queue in (0, 1, 2):
        answer = broker.send_json(
            "orders",
            {"body": f"first {queue}", "key": "o-1"},
            {"body": f"other {queue}", "key": "o-2"},
            {"body": f"more keys {queue}", "properties": {"KEYS": "o-3 o-1"}},
            query=f"?queue={queue}",
        )
        assert answer.status == 200
    path = "/v1/topics/orders/messages?key=o-1"
    while (document := broker.get(path).json)["lag_bytes"]:
        pass
    found = document["messages"]
    assert [each["queue"] for each in found] == [2, 2, 1, 1, 0, 0]
    assert {each["body"] for each in found} == {
        f"{what} {n}" for n in range(3) for what in ("first", "more keys")
    }
    by_id = broker.get(f"/v1/messages/{found[0]['message_id']}").json
    assert by_id == found[0]
    assert len(broker.get(f"{path}&limit=2").json["messages"]) == 2
    stored_at = found[-1]["stored_at_us"]
    early = broker.get(f"{path}&end={stored_at}").json["messages"]
    assert {each["stored_at_us"] for each in early} == {stored_at}
    assert broker.get("/v1/topics/orders/messages?key_base64=by0y").json["messages"][0]["key"] == "o-2"
    assert broker.get("/v1/topics/orders/messages?key=absent").json["messages"] == []


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/v1/topics/orders/messages", "INVALID_REQUEST"),
        ("/v1/topics/orders/messages?key=", "INVALID_REQUEST"),
        ("/v1/topics/orders/messages?key=a&key_base64=YQ==", "INVALID_REQUEST"),
        ("/v1/topics/orders/messages?key_base64=*", "INVALID_REQUEST"),
        ("/v1/topics/orders/messages?key=a&limit=0", "INVALID_REQUEST"),
        ("/v1/topics/orders/messages?key=a&page=1-2-3", "INVALID_REQUEST"),
        ("/v1/topics/orders/messages?key=a&page=1-x", "INVALID_REQUEST"),
        ("/v1/topics/orders/messages?key=a&begin=now", "INVALID_REQUEST"),
        ("/v1/topics/unknown/messages?key=a", "TOPIC_NOT_FOUND"),
        ("/v1/topics/a.b/messages?key=a", "INVALID_NAME"),
    ],
)
def test_a_query_that_makes_no_sense_is_refused(refusing: Http, path: str, code: str) -> None:
    assert refusing.get(path).code == code


def test_a_topic_that_may_not_be_read_is_not_searched(broker: Http) -> None:
    broker.create("write-only", perm=2)
    assert broker.get("/v1/topics/write-only/messages?key=a").code == "NO_PERMISSION"


def test_a_search_says_which_part_of_the_log_it_could_not_read(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker(name="broker-a")
    for number in range(3):
        broker.send_json("orders", {"body": f"body {number}", "key": "o-1"}, query="?queue=0")
    path = "/v1/topics/orders/messages?key=o-1"
    while (document := broker.get(path).json)["lag_bytes"]:
        pass
    assert document["uncovered"] == []
    [log] = (tmp_path / "broker-a" / "commitlog").iterdir()
    data = log.read_bytes()
    place = data.rindex(b"body 1")
    with log.open("r+b") as file:
        file.seek(place)
        file.write(b"BODY 1")
    document = broker.get(path).json
    assert [each["body"] for each in document["messages"]] == ["body 2", "body 0"]
    [uncovered] = document["uncovered"]
    assert uncovered["log_begin"] <= place < uncovered["log_end"]
    assert (uncovered["stored_from_us"], uncovered["stored_to_us"]) == (None, None)
    assert uncovered["queues"] == [{"queue": 0, "first": 1, "end": 2}]
    statistics = broker.get("/v1/statistics").json
    assert statistics["index_holes"] == 1
    assert statistics["index_hole_bytes"] == uncovered["log_end"] - uncovered["log_begin"]
    assert "rocketq_index_holes 1.0" in broker.get("/metrics").body.decode()


def test_an_answer_is_cut_by_its_bytes_and_the_next_page_goes_on(broker: Http) -> None:
    large = "x" * 1_500_000
    for number in range(5):
        assert broker.send_json("orders", {"body": f"{number}{large}", "key": "o-1"}).status == 200
    path = "/v1/topics/orders/messages?key=o-1"
    while (document := broker.get(path).json)["lag_bytes"]:
        pass
    pages = [[each["body"][0] for each in document["messages"]]]
    while document["next_page"] is not None:
        document = broker.get(f"{path}&page={document['next_page']}").json
        pages.append([each["body"][0] for each in document["messages"]])
    assert pages == [["4", "3"], ["2", "1"], ["0"]]
