"""`rocketq dlq …` as a person and a script use it."""

from __future__ import annotations

import pytest

from rocketq import Client, LocalCluster
from tests.cli.test_commands import Shell
from tests.client.consuming.groups_support import one_queue, take
from tests.support.conditions import wait_until


@pytest.fixture
def rocketq(cluster: LocalCluster) -> Shell:
    return Shell(cluster.nameservers)


def test_dead_letters_are_listed_shown_and_sent_again(
    rocketq: Shell, cluster: LocalCluster, topic: str
) -> None:
    with Client(cluster.nameservers) as mq:
        one_queue(mq, topic, 3)
        with mq.consumer(topic, topic, ack="manual", max_attempts=1) as consumer:
            for message in take(consumer, 3):
                message.nack(reason="no stock")
            wait_until(lambda: sum(mq.dead_letters(topic).count().values()) == 3)
    listed = rocketq("dlq", "list", topic, "-o", "json").json
    assert [(row["body"], row["reason"], row["attempts"], row["resent"]) for row in listed] == [
        (f"{n}", "no stock", 1, False) for n in range(3)
    ]
    first = listed[0]["letter_id"]
    table = rocketq("dlq", "list", topic, "-n", "2")
    assert "no stock" in table.out
    assert "2 letter(s); there are more" in table.err
    assert rocketq("dlq", "show", topic, first, "-o", "json").json == listed[0]
    tried = rocketq("dlq", "resend", topic, "--all", "--dry-run", "-o", "json")
    assert ([row["outcome"] for row in tried.json], tried.code) == (["sent"] * 3, 0)
    [sent] = rocketq("dlq", "resend", topic, first, "--yes", "-o", "json").json
    assert (sent["outcome"], sent["message_id"]) == ("sent", f"broker-a:{topic}:0:3")
    assert [row["resent"] for row in rocketq("dlq", "list", topic, "-o", "json").json] == [True, False, False]
    rest = rocketq("dlq", "resend", topic, "--topic", topic, "--yes")
    assert "sent 2 of 2 letter(s)" in rest.err
    assert rocketq("dlq", "resend", topic, "--all", "--yes", "-o", "json").json == []
    told = rocketq("group", "describe", topic)
    assert "dead letters 3" in told.err


def test_what_cannot_be_sent_again_is_refused_or_told(rocketq: Shell, topic: str) -> None:
    assert rocketq("dlq", "resend", topic).code == 2, "neither letters nor a filter"
    assert rocketq("dlq", "resend", topic, "--all", "--topic", "x").code == 2
    assert rocketq("dlq", "show", topic, "17").code == 2
    gone = rocketq("dlq", "resend", topic, f"broker-a:%DLQ%{topic}:0:9", "--yes", "-o", "json")
    assert ([row["outcome"] for row in gone.json], gone.code) == (["not_found"], 1)
