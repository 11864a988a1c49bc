"""`rocketq produce --delay` and `rocketq timer`: scheduling, listing, showing and cancelling from a shell."""

from __future__ import annotations

import pytest

from rocketq import LocalCluster
from tests.cli.test_commands import Shell


@pytest.fixture
def rocketq(cluster: LocalCluster) -> Shell:
    return Shell(cluster.nameservers)


def test_a_delayed_line_can_be_listed_shown_and_cancelled(rocketq: Shell, topic: str) -> None:
    ran = rocketq("produce", topic, "--delay", "1h", "-k", "k-1", stdin="later\n")
    assert (ran.code, ran.err) == (0, f"sent 1 message(s) to 1 queue(s) of {topic}, delayed\n")
    (listed,) = rocketq("timer", "list", topic, "-o", "jsonl").lines
    assert (listed["key"], listed["status"], listed["topic"]) == ("k-1", "pending", topic)
    assert "body" not in listed
    table = rocketq("timer", "list", topic)
    assert table.out.splitlines()[0].split() == ["DELIVER_AT", "TIMER_ID", "KEY", "TAG"]
    assert listed["timer_id"] in table.out
    assert rocketq("timer", "show", listed["timer_id"], "-o", "json").json["body"] == "later"
    assert rocketq("timer", "cancel", listed["timer_id"], listed["timer_id"]).code == 0
    assert rocketq("timer", "show", listed["timer_id"], "-o", "json").json["status"] == "cancelled"
    assert rocketq("timer", "list", topic, "-o", "json").json == []


def test_a_time_of_delivery_is_given_with_its_zone_or_in_milliseconds(rocketq: Shell, topic: str) -> None:
    for at in ("2020-01-01T00:00Z", "1577836800000"):
        assert rocketq("produce", topic, "--deliver-at", at, stdin="past\n").code == 0
    found = rocketq("consume", topic, "--follow", "-n", "2", "-o", "jsonl").lines
    assert [each["properties"]["TIMER_DELIVER_MS"] for each in found] == ["1577836800000"] * 2


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--delay", "soon"], "not a duration"),
        (["--deliver-at", "2027-01-01T00:00"], "neither a time with its zone"),
        (["--delay", "1s", "--deliver-at", "5"], "contradicts deliver_at"),
        (["--delay", "400d"], "beyond the broker's horizon"),
    ],
)
def test_a_wrong_delay_is_exit_code_2(rocketq: Shell, topic: str, arguments: list[str], what: str) -> None:
    ran = rocketq("produce", topic, *arguments, stdin="x\n")
    assert ran.code == 2
    assert what in " ".join(ran.err.replace("│", " ").split())


def test_an_unknown_timer_is_not_found(rocketq: Shell, topic: str) -> None:
    rocketq("produce", topic, stdin="x\n")
    ran = rocketq("timer", "show", f"broker-a:{topic}:0:@77.0")
    assert ran.code == 3
    assert rocketq("timer", "cancel", "nonsense").code == 2
