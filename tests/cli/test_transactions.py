"""`rocketq tx`: what operators see of undecided transactions, and deciding one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketq import LocalCluster, TransactionState
from tests.cli.test_commands import Shell
from tests.support.patience import PatientClient


@pytest.fixture
def rocketq(cluster: LocalCluster) -> Shell:
    return Shell(cluster.nameservers)


@pytest.fixture
def undecided(cluster: LocalCluster, topic: str) -> Iterator[str]:
    """The id of a transaction of one message that nobody decides but the test."""
    with PatientClient(cluster.nameservers) as mq:
        mq.create_topic(topic, queues=1)
        with mq.transactions(f"g-{topic}", check=lambda message: TransactionState.UNKNOWN) as tp:
            with tp.transaction(topic, "order", key="o-1", tag="paid", properties={"a": "b"}) as t:
                t.leave_to_check()
            yield t.id


def test_an_undecided_transaction_is_listed_and_shown(rocketq: Shell, undecided: str, topic: str) -> None:
    [listed] = rocketq("tx", "list", "--group", f"g-{topic}", "-o", "jsonl").lines
    assert (listed["transaction"], listed["topics"], listed["messages"], listed["parked_at"]) == (
        undecided, [topic], 1, None,
    )  # fmt: skip
    assert rocketq("tx", "list", "--group", f"g-{topic}", "--parked", "-o", "json").json == []
    shown = rocketq("tx", "show", undecided, "-o", "json").json
    assert {**shown, "half_messages": None, "checks": 0, "next_check_at": None} == {
        **listed, "half_messages": None, "checks": 0, "next_check_at": None,
    }  # fmt: skip
    [message] = shown["half_messages"]
    assert (message["key"], message["tag"], message["properties"], message["body"]) == (
        "o-1", "paid", {"a": "b"}, "order",
    )  # fmt: skip
    assert "order" in rocketq("tx", "show", undecided).out


def test_an_operator_commits_or_rolls_back(rocketq: Shell, undecided: str, topic: str) -> None:
    assert rocketq("tx", "commit", undecided, stdin="another\n").code != 0
    done = rocketq("tx", "commit", undecided, "-o", "json", stdin=f"{undecided}\n")
    assert (done.code, done.json["state"]) == (0, "COMMIT")
    assert rocketq("consume", topic, "-n", "1", "-f", "%s").out.strip() == "order"
    for arguments in (("show", undecided), ("rollback", undecided, "--yes")):
        assert rocketq("tx", *arguments).code == 3


def test_a_transaction_that_is_not_known_is_exit_code_3(rocketq: Shell) -> None:
    for command in ("show", "commit", "rollback"):
        missing = rocketq("tx", command, "never", "-o", "json")
        assert missing.code == 3
        assert "TRANSACTION_NOT_FOUND" in missing.err
