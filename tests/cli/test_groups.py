"""`rocketq group …` as a person and a script use it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketq import LocalCluster, Message
from rocketq.net.broker_api import BrokerApi, master_of
from rocketq.protocol.documents.broker import CommitOffsetsRequest, GroupOffset
from rocketq.protocol.documents.groups import Heartbeat, QueueOfTopic, Subscription
from tests.cli.test_commands import Shell
from tests.support.patience import PatientClient, patient_transport


@pytest.fixture
def rocketq(cluster: LocalCluster) -> Shell:
    return Shell(cluster.nameservers)


@pytest.fixture
def broker(cluster: LocalCluster, topic: str) -> Iterator[BrokerApi]:
    """Broker broker-a, alone with the topic: one queue of three messages, of which the group has read one."""
    with PatientClient(cluster.nameservers) as mq, patient_transport() as transport:
        mq.create_topic(topic, queues=1, brokers=["broker-a"])
        with mq.producer() as producer:
            producer.send_batch(topic, [Message(b"a"), Message(b"b"), Message(b"c")])
        found = master_of(mq.route(topic), "broker-a", transport)
        found.commit_offsets(topic, CommitOffsetsRequest((GroupOffset(topic, 0, 1),)))
        yield found


def join(broker: BrokerApi, group: str, client_id: str, age: int, tag: str | None = None) -> None:
    broker.heartbeat(group, client_id, Heartbeat(age, (Subscription(group, tag),), language="python"))


def test_members_and_what_they_disagree_about_are_shown(
    rocketq: Shell, broker: BrokerApi, topic: str
) -> None:
    join(broker, topic, "old@1", 1, "paid")
    join(broker, topic, "new@2", 2, "sent")
    broker.claim_queues(topic, "old@1", [QueueOfTopic(topic, 0)])
    done = rocketq("group", "members", topic, "-o", "json")
    old, new = sorted(done.json, key=lambda row: str(row["client_id"]), reverse=True)
    assert (old["client_id"], old["language"], old["topics"]) == ("old@1", "python", [f"{topic} paid"])
    assert (old["queues"], new["queues"]) == ([f"{topic}/broker-a/0"], [])
    assert new["differences"][0]["kind"] == "filter"
    told = rocketq("group", "describe", topic)
    assert f"new@2: its filter of {topic} is sent, old@1 says paid" in told.err
    assert "old@1" in told.out
    assert "members 2" in told.err
    [row] = rocketq("group", "describe", topic, "-o", "json").json
    assert (row["committed"], row["lag"], row["owner"]) == (1, 2, "old@1")
    assert row["lag_ms"] >= 0
    [row] = [row for row in rocketq("group", "list", "-o", "json").json if row["group"] == topic]
    assert (row["kind"], row["members"], row["topics"], row["enabled"]) == ("consumers", 2, [topic], True)
    refused = rocketq("group", "reset", topic, "--topic", topic, "--to", "latest", "--yes")
    assert (refused.code, "MEMBERS_ACTIVE" in refused.err or "members are active" in refused.err) == (5, True)
    for client_id in ("old@1", "new@2"):
        broker.leave_group(topic, client_id)


def test_a_reset_is_shown_and_asked_about_before_it_is_done(
    rocketq: Shell, broker: BrokerApi, topic: str
) -> None:
    reset = ("group", "reset", topic, "--topic", topic)
    [row] = rocketq(*reset, "--to", "latest", "--dry-run", "-o", "json").json
    assert (row["before"], row["after"]) == (1, 3)
    asked = rocketq(*reset, "--to", "latest", stdin="no\n")
    assert asked.code != 0
    assert "3" in asked.out
    assert broker.group_offsets(topic).offsets == (GroupOffset(topic, 0, 1),)
    assert rocketq(*reset, "--to", "latest", stdin=f"{topic}\n").code == 0
    assert broker.group_offsets(topic).offsets == (GroupOffset(topic, 0, 3),)
    assert rocketq(*reset, "--offset", "2", "--queue", "broker-a/0", "--yes").code == 0
    assert rocketq(*reset, "--time", "1h", "--yes", "-o", "json").json[0]["after"] == 0
    for wrong in ((), ("--to", "latest", "--offset", "1"), ("--offset", "1", "--queue", "broker-a")):
        assert rocketq(*reset, *wrong, "--yes").code == 2


def test_a_group_is_set_cloned_and_deleted(rocketq: Shell, broker: BrokerApi, topic: str) -> None:
    copy = f"{topic}-copy"
    assert rocketq("group", "clone", topic, copy, "--yes", "-o", "json").json[0]["after"] == 1
    rows = rocketq("group", "set", copy, "--retries-max", "3", "--start", "last", "-o", "json").json
    assert {(row["retries_max"], row["start"], row["enabled"]) for row in rows} == {(3, "last", True)}
    rows = rocketq("group", "set", copy, "--disabled", "--unset", "start", "-o", "json").json
    assert {(row["retries_max"], row["start"], row["enabled"]) for row in rows} == {(3, None, False)}
    assert rocketq("group", "delete", copy, stdin="another\n").code != 0
    assert rocketq("group", "delete", copy, "--yes").code == 0
    assert rocketq("group", "describe", copy).code == 3
