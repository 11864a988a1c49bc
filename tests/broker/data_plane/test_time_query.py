"""Listing the messages of an interval over HTTP, page by page."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocketq.model import Message
from rocketq.protocol.message_schema import from_messages
from tests.support.http_client import Http, stream

PATH = "/v1/topics/orders/messages"


def pages(broker: Http, query: str, limit: int) -> list[list[dict[str, Any]]]:
    """All pages of a search, as far as the broker names a next one."""
    found, page = [], ""
    while True:
        answer = broker.get(f"{PATH}?{query}&limit={limit}{page}")
        assert answer.status == 200, answer.body
        found.append(answer.json["messages"])
        if answer.json["next_page"] is None:
            return found
        page = f"&page={answer.json['next_page']}"


def placed(messages: list[dict[str, Any]]) -> list[tuple[int, int, int]]:
    return [(each["stored_at_us"], each["queue"], each["offset"]) for each in messages]


def everything(broker: Http, queues: int = 4) -> list[dict[str, Any]]:
    pulled = [broker.pull("orders", queue, 0, "application/json").json["messages"] for queue in range(queues)]
    return sorted((each for some in pulled for each in some), key=lambda one: placed([one])[0])


@pytest.fixture
def filled(broker: Http) -> Http:
    """Seven sends to three of the four queues, the body of each message its number."""
    first = 0
    for queue, count in ((0, 3), (2, 1), (0, 5), (1, 2), (2, 4), (1, 1), (0, 2)):
        batch = from_messages([Message(b"%d" % number) for number in range(first, first + count)])
        assert broker.send("orders", stream(batch), f"?queue={queue}").status == 200
        first += count
    return broker


def test_the_messages_of_all_queues_come_in_the_order_of_their_times(filled: Http) -> None:
    [messages] = pages(filled, "begin=0", 1_000)
    assert [int(each["body"]) for each in messages] == list(range(18))
    assert messages == everything(filled)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(limit=st.integers(1, 19), first=st.integers(0, 17), last=st.integers(0, 17))
def test_pages_of_any_size_hold_each_message_of_the_interval_once(
    filled: Http, limit: int, first: int, last: int
) -> None:
    stored = everything(filled)
    begin, end = stored[first]["stored_at_us"], stored[last]["stored_at_us"]
    found = pages(filled, f"begin={begin}&end={end}", limit)
    expected = [each for each in stored if begin <= each["stored_at_us"] <= end]
    assert [message for page in found for message in page] == expected
    assert all(len(page) == limit for page in found[:-1])


def test_a_page_has_four_megabytes_of_messages_at_most(broker: Http) -> None:
    for _ in range(5):
        assert broker.send("orders", stream([Message(bytes(1_500_000))]), "?queue=0").status == 200
    found = pages(broker, "begin=0", 1_000)
    assert [len(page) for page in found] == [2, 2, 1]
    assert [each["offset"] for page in found for each in page] == list(range(5))


def test_a_frame_that_inflates_to_much_is_shared_out_over_pages(broker: Http) -> None:
    large = [Message(bytes(1_000_000)) for _ in range(10)]
    assert broker.send("orders", stream(large, codec="zstd"), "?queue=1").status == 200
    found = pages(broker, "begin=0", 1_000)
    assert [each["offset"] for page in found for each in page] == list(range(10))
    assert max(len(page) for page in found) <= 4


def test_a_message_larger_than_a_page_is_a_page(broker: Http) -> None:
    broker.create("large", read_queues=1, write_queues=1, message_bytes_max=8_000_000)
    assert broker.send("large", stream([Message(bytes(6_000_000))] * 2)).status == 200
    answer = broker.get("/v1/topics/large/messages?begin=0").json
    assert [each["offset"] for each in answer["messages"]] == [0]
    rest = broker.get(f"/v1/topics/large/messages?begin=0&page={answer['next_page']}").json
    assert [each["offset"] for each in rest["messages"]] == [1]
    assert rest["next_page"] is None


def test_an_interval_without_messages_has_one_empty_page(filled: Http) -> None:
    assert pages(filled, "begin=1&end=2", 10) == [[]]
    assert pages(filled, f"begin={1 << 62}", 10) == [[]]


@pytest.mark.parametrize(
    ("query", "where"),
    [
        ("", "the query"),
        ("end=5", "the query"),
        ("limit=5", "the query"),
        ("begin=x", "parameter begin"),
        ("begin=0&limit=1001", "parameter limit"),
        ("begin=0&limit=0", "parameter limit"),
        ("begin=0&page=1-2", "parameter page"),
        ("begin=0&page=1-2-x", "the offset of parameter page"),
        ("key=a&page=1-2-3", "parameter page"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(refusing: Http, query: str, where: str) -> None:
    answer = refusing.get(f"{PATH}?{query}")
    assert (answer.status, answer.code) == (400, "INVALID_REQUEST")
    assert answer.json["facts"]["where"] == where


def test_a_topic_that_may_not_be_read_is_not_listed(broker: Http) -> None:
    broker.create("write-only", perm=2)
    assert broker.get("/v1/topics/write-only/messages?begin=0").code == "NO_PERMISSION"
    assert broker.get("/v1/topics/unknown/messages?begin=0").code == "TOPIC_NOT_FOUND"
