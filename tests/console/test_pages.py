"""What the pages show of a real cluster."""

from __future__ import annotations

import json
from html import unescape

import pytest

from rocketq import Client, Message
from rocketq.console import assets
from tests.console.conftest import Visitor
from tests.support.conditions import wait_until

PAGES = ["/", "/brokers", "/brokers/broker-a", "/topics", "/messages", "/groups", "/delayed", "/transactions",
         "/sinks", "/search?q=a"]  # fmt: skip


@pytest.mark.parametrize("path", PAGES)
def test_each_page_of_the_menu_answers_and_names_where_it_is(looking: Visitor, path: str) -> None:
    page = looking.get(path)
    assert page.status == 200, page.text
    assert "read-only" in page.text
    assert "<h1>" in page.html


@pytest.mark.parametrize("path", PAGES)
def test_a_page_loads_nothing_from_elsewhere_and_holds_no_script(looking: Visitor, path: str) -> None:
    page = looking.get(path)
    assert "//" not in page.html.replace("http://127.0.0.1", "").replace("http://www.w3.org", "")
    assert "<script>" not in page.html
    assert "style=" not in page.html
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_every_asset_that_pages_load_is_there(looking: Visitor) -> None:
    for name, kind in assets.SERVED.items():
        got = looking.get(f"/assets/any/{name}")
        assert (got.status, got.headers["content-type"]) == (200, kind)


def test_the_first_page_names_the_brokers_and_a_group_that_nobody_consumes(
    looking: Visitor, mq: Client, topic: str
) -> None:
    mq.create_topic(topic, 1)
    mq.producer().send(topic, b"waits")
    mq.groups.reset(_grouped(mq, topic), topic, "earliest")
    page = looking.get("/")
    assert "broker-a" in page.text
    assert "broker-b" in page.text
    group = looking.get(f"/groups/{topic}")
    assert "Nobody consumes now" in group.text
    assert "Lag 1 messages" in group.text


def _grouped(mq: Client, topic: str) -> str:
    mq.groups.set(topic)
    return topic


def test_a_topic_shows_its_newest_messages_first(looking: Visitor, mq: Client, topic: str) -> None:
    mq.create_topic(topic, 1, brokers=["broker-a"])
    mq.producer().send_batch(topic, [Message(b"early bird"), Message(b"latecomer")])
    text = looking.get(f"/topics/{topic}").text
    assert text.index("latecomer") < text.index("early bird")
    page = looking.get(f"/topics/{topic}?broker=broker-a&queue=0&offset=1").text
    assert "latecomer" in page
    assert "early bird" not in page


def test_a_message_shows_its_body_as_json_its_properties_and_its_way(
    looking: Visitor, mq: Client, topic: str
) -> None:
    mq.create_topic(topic, 1)
    sent = mq.producer().send(topic, b'{"amount": 42}', key="o-1", tag="paid", properties={"region": "eu"})
    page = looking.get(f"/message?id={sent.message_id}")
    assert "&#34;amount&#34;: 42" in page.html
    for shown in ("JSON, 14 B", "o-1", "paid", "region", "eu", str(sent.unique_id)):
        assert shown in page.text
    wait_until(
        lambda: "SEND_OK" in looking.get(f"/message?id={sent.message_id}").text or "send_ok" in page.text
    )


def test_what_a_message_says_is_never_markup(looking: Visitor, mq: Client, topic: str) -> None:
    evil = b"<script>alert(1)</script>"
    mq.create_topic(topic, 1)
    sent = mq.producer().send(
        topic, evil + "\u202e".encode(), key=evil, tag="<i>", properties={"<u>": "<script>x</script>"}
    )
    for path in (
        f"/topics/{topic}",
        f"/message?id={sent.message_id}",
        f"/messages?by=key&topic={topic}&text=<script>",
    ):
        page = looking.get(path.replace("<", "%3C").replace(">", "%3E"))
        assert page.status == 200
        assert "<script>" not in page.html
        assert "<i>" not in page.html
        assert "\u202e" not in page.html, "a character that turns the text around is shown by its number"
    found = looking.get(f"/search?q=%22%3E%3Cscript%3E{topic}")
    assert "<script>" not in found.html


def test_messages_are_found_by_key_id_and_time(looking: Visitor, mq: Client, topic: str) -> None:
    mq.create_topic(topic, 1)
    sent = mq.producer().send(topic, b"look for me", key="o-7")
    for query in (
        "by=key&text=o-7",
        f"by=id&text={sent.unique_id}",
        f"by=id&text={sent.message_id}",
        "by=time&begin=5m",
    ):
        path = f"/messages?topic={topic}&{query}"
        wait_until(lambda path=path: "look for me" in looking.get(path).text)
    nothing = looking.get(f"/messages?topic={topic}&by=key&text=o-8")
    assert "Nothing was found" in nothing.text
    wrong = looking.get(f"/messages?topic={topic}&by=time&begin=yesterday")
    assert "it is no time" in wrong.text


def test_the_live_tail_shows_what_came_since_and_says_what_it_skipped(
    looking: Visitor, mq: Client, topic: str
) -> None:
    mq.create_topic(topic, 1, brokers=["broker-a"])
    producer = mq.producer()
    producer.send(topic, b"before")
    page = looking.get(f"/topics/{topic}/tail")
    assert "before" not in page.text
    where = _next(page.html)
    producer.send(topic, b"after")
    rows = looking.get(where)
    assert "after" in rows.text
    assert "before" not in rows.text
    producer.send_batch(topic, [Message(b"%d" % number) for number in range(170)])
    burst = looking.get(_next(rows.html))
    assert 'data-rows="50" data-skipped="120"' in burst.html
    assert ">169<" in burst.html
    assert 'data-rows="0" data-skipped="0"' in looking.get(_next(burst.html)).html


def _next(html: str) -> str:
    return unescape(html.split('id="tail-next" hx-get="')[1].split('"')[0])


def test_a_group_shows_its_members_and_who_owns_each_queue(looking: Visitor, mq: Client, topic: str) -> None:
    mq.create_topic(topic, 2, brokers=["broker-a"])
    with mq.consumer(topic, [topic]) as consumer:
        wait_until(lambda: "nobody" not in looking.get(f"/groups/{topic}").text.split("Members")[1])
        text = looking.get(f"/groups/{topic}").text
        assert consumer.client_id in text


def test_a_preview_of_a_reset_changes_nothing(looking: Visitor, mq: Client, topic: str) -> None:
    mq.create_topic(topic, 1, brokers=["broker-a"])
    mq.producer().send_batch(topic, [Message(b"x")] * 5)
    mq.groups.set(topic)
    mq.groups.reset(topic, topic, "latest")
    page = looking.get(f"/groups/{topic}/reset?topic={topic}&to=earliest")
    assert "5 again" in page.text
    assert "What it would do" in page.text
    assert "This console is read-only" in page.text
    assert [each.committed for each in mq.groups.progress(topic)] == [5]


def test_what_does_not_exist_is_not_found_and_says_so(looking: Visitor) -> None:
    kinds = ("topics", "groups", "sinks", "brokers", "transactions")
    others = ("/nope", "/message?id=broker-a:nope:0:1", "/assets/x/../../app.py")
    for path in (*others, *(f"/{kind}/nope" for kind in kinds)):
        page = looking.get(path)
        assert page.status == 404, path
        assert "Not found" in page.text


def test_a_number_that_is_none_is_refused(looking: Visitor) -> None:
    page = looking.get("/topics?first=x")
    assert page.status >= 400
    assert "it is no whole number" in page.text


def test_the_plots_have_the_rates_of_each_broker(looking: Visitor) -> None:
    looking.console.observer.look()
    looking.console.observer.look()
    told = json.loads(looking.get("/plots.json").html)
    assert set(told["brokers"]) == {"broker-a", "broker-b"}
    assert len(told["brokers"]["broker-a"]["messages_in"]) == len(told["seconds"])


def test_the_search_of_messages_names_the_command_that_shows_the_same(looking: Visitor, topic: str) -> None:
    for query, command in (
        ("", "rocketq query key TOPIC KEY"),
        (f"by=key&topic={topic}&text=k-1", f"rocketq query key {topic} k-1"),
        (f"by=id&topic={topic}&text=0A1B", f"rocketq query id 0A1B --topic {topic}"),
        (f"by=time&topic={topic}&begin=5m", f"rocketq query time {topic} --begin 5m"),
    ):
        assert command in looking.get(f"/messages?{query}").text
