"""`rocketq query` as scripts use it."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from rocketq import LocalCluster
from tests.cli.test_commands import Shell


@pytest.fixture
def filled(cluster: LocalCluster, topic: str) -> Shell:
    """A shell whose topic has three messages."""
    shell = Shell(cluster.nameservers)
    messages = [{"body": "first", "key": "k", "tag": "t"}, {"body": "second"}, {"body": "third", "key": "k"}]
    for message in messages:
        assert shell("produce", topic, "--jsonl", stdin=json.dumps(message) + "\n").code == 0
    return shell


def test_messages_are_found_by_id_key_and_time(filled: Shell, topic: str) -> None:
    listed = filled("query", "time", topic, "--begin", "1h", "-o", "jsonl")
    assert listed.code == 0, listed.err
    assert [row["body"] for row in listed.lines] == ["first", "second", "third"]
    assert listed.err.strip() == "3 message(s)"
    one = filled("query", "id", listed.lines[0]["message_id"], "-o", "json")
    assert one.json == listed.lines[0]
    found = filled("query", "key", topic, "k", "-n", "5", "-o", "json")
    while "still to index" in found.err:
        found = filled("query", "key", topic, "k", "-n", "5", "-o", "json")
    assert [row["body"] for row in found.json] == ["third", "first"]
    shown = filled("query", "time", topic).out.splitlines()
    assert shown[0].split() == ["STORED", "ID", "KEY", "TAG", "BODY"]
    assert [line.split()[-1] for line in shown[1:]] == ["first", "second", "third"]


def test_an_interval_is_given_as_times_and_cut_to_a_count(filled: Shell, topic: str) -> None:
    times = [row["stored_at_us"] for row in filled("query", "time", topic, "-o", "json").json]
    second = datetime.fromtimestamp(times[1] / 1e6, UTC).isoformat()
    from_second = filled("query", "time", topic, "--begin", second, "-o", "jsonl", "-n", "1")
    assert [row["body"] for row in from_second.lines] == ["second"]
    assert "there are more" in from_second.err
    until = filled("query", "time", topic, "--end", str(times[1]), "-o", "jsonl")
    assert [row["body"] for row in until.lines] == ["first", "second"]
    assert filled("query", "time", topic, "--begin", "yesterday").code == 2


def test_what_is_not_there_is_exit_code_3(filled: Shell, topic: str) -> None:
    absent = filled("query", "id", f"broker-a:{topic}:0:4711", "-o", "json")
    assert absent.code == 3
    assert json.loads(absent.err)["code"] == "NOT_FOUND"
    assert filled("query", "time", "no-such-topic").code == 3
    assert filled("query", "id", "nonsense").code == 2
    assert filled("query", "key", topic, "absent", "-o", "json").json == []
