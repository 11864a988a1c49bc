"""Topics as ends of a pipe: what is consumed can be produced again, and nothing is lost."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketq import Client, LocalCluster, Message, MessageQueue, StoredMessage
from rocketq.cli.messages.json_lines import document, table_of
from rocketq.message_query import microseconds
from tests.cli.test_commands import Shell
from tests.support.command_line import all_commands, leaves

NAMES = st.text(st.characters(codec="ascii", categories=["L"]), min_size=1, max_size=5).map("own-{}".format)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
MESSAGES = st.builds(
    Message,
    body=st.binary(max_size=20) | TEXTS.map(str.encode),
    key=st.none() | st.binary(max_size=8) | TEXTS.map(str.encode),
    tag=st.none() | st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=5),
    properties=st.none() | st.dictionaries(NAMES, TEXTS, max_size=3),
    born_at_us=st.none() | st.integers(0, 1 << 52),
)


@pytest.fixture
def rocketq(cluster: LocalCluster) -> Shell:
    return Shell(cluster.nameservers)


def content(row: dict[str, Any]) -> dict[str, Any]:
    """Return what a message says, without where it is."""
    place = {"message_id", "topic", "broker", "queue", "offset", "stored_at_us"}
    return {name: value for name, value in row.items() if name not in place}


@given(messages=st.lists(MESSAGES, min_size=1, max_size=5))
def test_a_message_survives_being_a_json_line(messages: list[Message]) -> None:
    queue = MessageQueue("orders", "broker-a", 3)
    stored = [
        StoredMessage(queue, n, m.body, m.key, m.tag, m.properties, m.born_at_us, 7)
        for n, m in enumerate(messages)
    ]
    lines = [json.dumps(document(each), ensure_ascii=False).encode() for each in stored]
    assert not any(b"\n" in line for line in lines)
    rows = table_of(lines, 1, keep_order=True).to_pylist()
    for sent, row in zip(messages, rows, strict=True):
        assert (row["body"], row["key"], row["tag"]) == (sent.body, sent.key, sent.tag)
        assert dict(row["properties"]) == (sent.properties or {})
        born_at = row["born_at"]
        assert (None if born_at is None else microseconds("born_at", born_at)) == sent.born_at_us
        assert row["ordering_key"] == b"broker-a/3"


def test_consuming_into_producing_loses_nothing(rocketq: Shell, cluster: LocalCluster, topic: str) -> None:
    messages = [
        Message(b"text", b"key", "paid", {"amount": "42", "name": "größe"}, 1_000_000),
        Message(b"\xff\x00binary\n", b"\x80", None, None),
        Message(b"", b"", None, {}),
        Message("line\nseparator\u2028".encode(), None, "t", {"empty": ""}),
    ]
    with Client(cluster.nameservers) as client, client.producer() as producer:
        producer.send_batch(topic, messages, ordering_key=pa.array([b"one"] * 4), unique_ids=True)
        first = rocketq("consume", topic, "-o", "jsonl")
        copied = rocketq("produce", f"{topic}-2", "--jsonl", "--keep-order", stdin=first.out)
        assert copied.code == 0, copied.err
        second = rocketq("consume", f"{topic}-2", "-o", "jsonl")
    assert len(first.lines) == 4
    assert [content(row) for row in second.lines] == [content(row) for row in first.lines]
    assert len({row["queue"] for row in second.lines}) == 1


def test_the_order_of_each_queue_is_kept_where_that_is_asked_for(rocketq: Shell, topic: str) -> None:
    lines = "".join(json.dumps({"body": f"{n}", "ordering_key": f"k-{n % 5}"}) + "\n" for n in range(60))
    assert rocketq("produce", topic, "--jsonl", stdin=lines).code == 0
    consumed = rocketq("consume", topic, "-o", "jsonl")
    assert rocketq("produce", f"{topic}-2", "--jsonl", "--keep-order", stdin=consumed.out).code == 0
    copied = rocketq("consume", f"{topic}-2", "-o", "jsonl").lines
    for key in range(5):
        mine = [row for row in copied if int(row["body"]) % 5 == key]
        assert len({(row["broker"], row["queue"]) for row in mine}) == 1
        assert [int(row["body"]) for row in mine] == list(range(key, 60, 5))
    unplaced = rocketq("produce", topic, "--jsonl", "--keep-order", stdin='{"body": "x"}\n')
    assert (unplaced.code, "line 1" in unplaced.err) == (1, True)
    assert rocketq("produce", topic, "--keep-order", stdin="x\n").code == 2


def test_a_delivery_time_travels_with_its_message(rocketq: Shell, cluster: LocalCluster, topic: str) -> None:
    rows = [
        {"body": "now", "delay": "0s"},
        {"body": "past", "deliver_at": "2020-01-01T00:00Z", "properties": {"DELAY": "18", "a": 1, "b": True}},
    ]
    given_lines = "".join(json.dumps(row) + "\n" for row in rows)
    done = rocketq("produce", topic, "--jsonl", "-o", "json", stdin=given_lines)
    assert (done.json["sent"], done.json["delayed"]) == (2, True), done.err
    first = rocketq("consume", topic, "--follow", "-n", "2", "-o", "jsonl")
    (past,) = [row for row in first.lines if row["body"] == "past"]
    assert (past["properties"]["a"], past["properties"]["b"]) == ("1", "true")
    assert past["properties"]["TIMER_DELIVER_MS"] == "1577836800000"
    assert rocketq("produce", f"{topic}-2", "--jsonl", stdin=first.out).code == 0
    second = rocketq("consume", f"{topic}-2", "--follow", "-n", "2", "-o", "jsonl")

    def contents(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(map(content, lines), key=lambda row: str(row["body"]))

    assert contents(second.lines) == contents(first.lines)
    with Client(cluster.nameservers) as client:
        later = rocketq("produce", topic, "--jsonl", stdin='{"body": "x", "delay": "1h"}\n')
        assert later.code == 0
        assert len(list(client.timers.list(topic))) == 1


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ({"body_base64": "?"}, "no base64"),
        ({"body": "a", "body_base64": "YQ=="}, "both body and body_base64"),
        ({"body": "a", "key": "k", "key_base64": "YQ=="}, "both key and key_base64"),
        ({"body": "a", "properties": {"p": [1]}}, "neither text nor a number"),
        ({"body": "a", "properties": []}, None),
        ({"body": "a", "properties": [1]}, "no object"),
        ({"body": "a", "tag": 1}, "no text"),
        ({"body": "a", "deliver_at": "tomorrow"}, "a time with its zone"),
        ({"body": "a", "delay": "soon"}, "not a duration"),
        ({"body": "a", "delay": "1s", "deliver_at": 5}, "contradicts"),
        ({"body": "a", "born_at_us": "now"}, "microseconds since 1970"),
        ({"body": "\ud800"}, "no text"),
        ({"colour": 1, "body": "a"}, "'colour'"),
    ],
)
def test_what_is_wrong_with_a_line_is_said(
    rocketq: Shell, topic: str, line: dict[str, Any], what: str | None
) -> None:
    done = rocketq("produce", topic, "--jsonl", stdin='{"body": "good"}\n' + json.dumps(line) + "\n")
    if what is None:
        assert done.code == 0
        return
    assert done.code == 1
    assert "line 2" in done.err
    assert what in done.err.replace("\n", " ").replace("│", "").replace("  ", " ")


def test_formats_are_those_of_kcat(rocketq: Shell, topic: str) -> None:
    rocketq("produce", topic, "-k", "k", "-t", "t", "-p", "a=1", "--ordering-key", "o", stdin="hello\n")
    (row,) = rocketq("consume", topic, "-o", "jsonl").lines
    shown = rocketq("consume", topic, "-f", r"%t %p %o %k %K %s %v %S %g %b %T%% \x41\t\\n\n")
    place, at_ms = f"{topic} {row['queue']} 0", row["stored_at_us"] // 1000
    assert shown.out == f"{place} k 1 hello hello 5 t {row['broker']} {at_ms}% A\t\\n\n"
    assert rocketq("consume", topic, "-f", "%i|%h").out.startswith(f"{row['message_id']}|a=1,UNIQ_KEY=")
    rocketq("produce", topic, stdin="no key\n")
    assert "-1|" in rocketq("consume", topic, "-f", "%K|").out
    unknown = rocketq("consume", topic, "-f", "%z")
    assert (unknown.code, "%z is unknown" in unknown.err) == (2, True)


def test_reading_begins_and_ends_where_it_is_said(rocketq: Shell, topic: str) -> None:
    for body in ("a", "b", "c", "d"):
        assert rocketq("produce", topic, "--ordering-key", "k", stdin=f"{body}\n").code == 0
    at = {row["body"]: row["stored_at_us"] for row in rocketq("consume", topic, "-o", "jsonl").lines}
    assert rocketq("consume", topic, "--from", "-3").out == "b\nc\nd\n"
    assert rocketq("consume", topic, "--from", "-99").out == "a\nb\nc\nd\n"
    assert rocketq("consume", topic, "--from", "latest").out == ""
    assert rocketq("consume", topic, "--from", f"@{at['c']}").out == "c\nd\n"
    assert rocketq("consume", topic, "--from", f"@{at['b']}..@{at['d']}").out == "b\nc\n"
    assert rocketq("consume", topic, "--from", "@1h").out == "a\nb\nc\nd\n"
    assert rocketq("consume", topic, "--from", "@1h", "-g", f"g-{topic}", "--follow", "-n", "1").out == "a\n"
    assert rocketq("consume", topic, "--from", "-2", "--follow", "-n", "2").out == "c\nd\n"


@pytest.mark.parametrize(
    "options",
    [
        ["--from", "yesterday"],
        ["--from", "-0"],
        ["--from", "@5..@4"],
        ["--from", "@5..9"],
        ["--from", "@1h..@1m", "--follow"],
        ["--from", "-5", "-g", "g"],
        ["--from", "@1h", "-g", "g"],
    ],
)
def test_a_position_that_cannot_be_is_wrong_use(rocketq: Shell, options: list[str]) -> None:
    assert rocketq("consume", "t", *options).code == 2


def test_messages_are_found_by_their_offset(rocketq: Shell, topic: str) -> None:
    rocketq("produce", topic, "--ordering-key", "k", stdin="a\nb\nc\n")
    (row,) = rocketq("consume", topic, "-n", "1", "-o", "jsonl").lines
    place = [topic, row["broker"], str(row["queue"])]
    assert rocketq("query", "offset", *place, "0", "-o", "json").json == [row]
    assert [
        each["body"] for each in rocketq("query", "offset", *place, "1", "-n", "9", "-o", "jsonl").lines
    ] == [
        "b",
        "c",
    ]
    assert rocketq("query", "offset", *place, "3").code == 3


@pytest.mark.parametrize(
    ("arguments", "code", "name"),
    [
        (["consume", "-o", "json"], 2, "USAGE"),
        (["consume", "t", "--colour", "red", "-o", "json"], 2, "USAGE"),
        (["frobnicate", "--output=jsonl"], 2, "USAGE"),
        (["produce", "t", "-p", "novalue", "-ojson"], 2, "USAGE"),
    ],
)
def test_wrong_use_is_told_as_json_where_that_is_asked_for(
    arguments: list[str], code: int, name: str
) -> None:
    done = Shell(["http://127.0.0.1:9"])(*arguments)
    assert (done.code, json.loads(done.err)["code"], done.out) == (code, name, "")
    assert "--help" in json.loads(done.err)["hint"]


def test_every_command_that_answers_can_do_it_as_json() -> None:
    assert {
        path
        for path, command in leaves(all_commands())
        if not any(one.name == "output" for one in command.params)
    } == {
        ("up",), ("demo",), ("console",), ("completion",), ("nameserver", "run"), ("broker", "run"),
    }  # fmt: skip


def test_the_version_is_an_option_too() -> None:
    shell = Shell([])
    assert shell("--version").out == shell("version").out
    assert shell("version", "-o", "json").json["version"] in shell("--version").out
