"""`rocketq query` as scripts use it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rocketq import BrokerUnreachable, LocalCluster, MessageQueue
from rocketq.protocol.documents.broker import QueueSpan
from tests.cli.test_commands import Shell
from tests.support.conditions import wait_until
from tests.support.patience import PatientClient


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
    assert [row["body"] for row in found.json["messages"]] == ["third", "first"]
    assert (found.json["complete"], found.json["uncovered"], found.json["missing"]) == (True, {}, [])
    shown = filled("query", "time", topic).out.splitlines()
    assert shown[0].split() == ["STORED", "ID", "KEY", "TAG", "BODY"]
    assert [line.split()[-1] for line in shown[1:]] == ["first", "second", "third"]


def test_a_message_is_found_by_its_own_id(filled: Shell, topic: str) -> None:
    assert filled("produce", topic, "--key", "mine", stdin="own").code == 0
    listed = filled("query", "time", topic, "--begin", "1h", "-o", "jsonl")
    mine = next(row for row in listed.lines if row["key"] == "mine")
    unique_id = mine["properties"]["UNIQ_KEY"]
    found = filled("query", "id", unique_id, "--topic", topic, "-o", "jsonl")
    while "still to index" in found.err:
        found = filled("query", "id", unique_id, "--topic", topic, "-o", "jsonl")
    assert found.lines == [mine]
    without = filled("query", "id", unique_id)
    assert without.code == 2
    assert "--topic TOPIC" in without.err


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
    assert filled("query", "key", topic, "absent", "-o", "json").json["messages"] == []


def test_damage_and_brokers_that_are_away_are_named_by_a_search(tmp_path: Path, topic: str) -> None:
    with LocalCluster(brokers=2, data_dir=tmp_path) as own:
        shell = Shell(own.nameservers)
        with PatientClient(own.nameservers) as mq, mq.producer() as producer:
            mq.create_topic(topic, queues=1)
            for number in range(3):
                queue = MessageQueue(topic, "broker-a", 0)
                producer.send(topic, b"body %d" % number, key="k", queue=queue)
            wait_until(lambda: not any(mq.query.by_key(topic, "k").lag_bytes.values()))
            damage(tmp_path, b"body 1")
            found = mq.query.by_key(topic, "k")
            assert [message.body for message in found.messages] == [b"body 2", b"body 0"]
            [uncovered] = found.uncovered["broker-a"]
            assert uncovered.queues == (QueueSpan(0, 1, 2),)
            assert (list(found.uncovered), found.missing, found.complete) == (["broker-a"], (), False)
        own.stop("broker-b")
        with PatientClient(own.nameservers) as mq:
            with pytest.raises(BrokerUnreachable, match=r"broker-b.*record.*--remove-broker"):
                mq.query.by_key(topic, "k")
            with pytest.raises(BrokerUnreachable, match=r"broker-b.*record"):
                mq.query.by_time(topic, 0)
            assert mq.query.by_key(topic, "k", allow_missing=True).missing == ("broker-b",)
        assert shell("query", "key", topic, "k").code == 4
        shown = shell("query", "key", topic, "k", "--allow-missing", "-o", "json")
        assert (shown.json["complete"], shown.json["missing"]) == (False, ["broker-b"])
        [part] = shown.json["uncovered"]["broker-a"]
        assert part["log_begin"] == uncovered.log_begin
        warnings = [line for line in shown.err.splitlines() if line.startswith("WARNING: ")]
        assert f"[{uncovered.log_begin}, {uncovered.log_end})" in warnings[0]
        assert "queue 0 [1, 2)" in warnings[0]
        assert "broker-b" in warnings[1]


def damage(data_dir: Path, body: bytes) -> None:
    """Change the body of the one stored message that has it, behind the broker's back."""
    for log in data_dir.glob("**/broker-a/**/commitlog/*"):
        place = log.read_bytes().find(body)
        if place >= 0:
            with log.open("r+b") as file:
                file.seek(place)
                file.write(body.upper())
            return
    raise AssertionError(f"no log has {body!r}")
