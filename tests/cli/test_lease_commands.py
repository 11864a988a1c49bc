"""`rocketq receive` and `rocketq ack` from a shell."""

from __future__ import annotations

import pytest

from rocketq import LocalCluster
from tests.cli.test_commands import Shell


@pytest.fixture
def rocketq(cluster: LocalCluster) -> Shell:
    return Shell(cluster.nameservers)


def test_messages_are_received_and_acknowledged_by_their_handles(rocketq: Shell, topic: str) -> None:
    rocketq("produce", topic, stdin="one\ntwo\nthree\n")
    group = ("-g", f"{topic}-g")
    found = [line for _ in range(3) for line in rocketq("receive", topic, *group, "-o", "jsonl").lines]
    assert sorted(each["body"] for each in found) == ["one", "three", "two"]
    handles = [each["receipt_handle"] for each in found]
    ran = rocketq("ack", *group, *handles)
    assert (ran.code, ran.err) == (0, "acknowledged 3 message(s)\n")
    assert rocketq("ack", *group, handles[0]).err == "acknowledged 0 message(s)\n"
    ran = rocketq("ack", *group, f"{handles[0]}9999")
    assert (ran.code, "unknown" in ran.err) == (5, True)
    assert rocketq("ack", *group, "x").code == 1
    table = rocketq("receive", topic, *group)
    assert table.out.split() == ["RECEIPT_HANDLE", "ATTEMPT", "KEY", "TAG", "BODY"]


def test_what_is_shown_may_be_acknowledged_at_once(rocketq: Shell, topic: str) -> None:
    rocketq("produce", topic, stdin="one\n")
    ran = rocketq("receive", topic, "-g", f"{topic}-g", "--ack", "--wait-ms", "5000")
    assert (ran.code, ran.err) == (0, "1 message(s), acknowledged\n")
    assert "one" in ran.out
