"""Producers that name a group: who lists them, and until when."""

from __future__ import annotations

import pytest

from rocketq import Client, LocalCluster, TransactionState
from rocketq.errors import InvalidName, ReservedName
from tests.cli.test_commands import Shell
from tests.support.conditions import wait_until


def ids(mq: Client, group: str) -> list[str]:
    return [each.client_id for each in mq.groups.producers(group)]


def is_known_to_all(mq: Client, group: str, cluster: LocalCluster) -> bool:
    found = mq.groups.producers(group)
    return bool(found) and all(set(each.brokers) == set(cluster.brokers) for each in found)


def test_every_broker_lists_a_producer_until_it_is_closed(
    mq: Client, cluster: LocalCluster, topic: str
) -> None:
    assert ids(mq, topic) == []
    with mq.producer(group=topic), mq.producer(group=topic), mq.producer():
        wait_until(lambda: len(ids(mq, topic)) == 2 and is_known_to_all(mq, topic, cluster))
        [first, _] = mq.groups.producers(topic)
        assert first.member.language == "python"
        rows = Shell(cluster.nameservers)("group", "producers", topic, "-o", "json").json
        assert [row["client_id"] for row in rows] == ids(mq, topic)
    assert ids(mq, topic) == []


def test_a_producer_of_transactions_is_a_member_of_its_group(
    mq: Client, cluster: LocalCluster, topic: str
) -> None:
    with mq.transactions(topic, check=lambda _: TransactionState.UNKNOWN):
        wait_until(lambda: is_known_to_all(mq, topic, cluster))
    assert ids(mq, topic) == []


def test_a_client_that_closes_says_goodbye_for_its_producers(
    mq: Client, cluster: LocalCluster, topic: str
) -> None:
    with Client(cluster.nameservers) as other:
        other.producer(group=topic)
        wait_until(lambda: is_known_to_all(mq, topic, cluster))
    assert ids(mq, topic) == []


@pytest.mark.parametrize(("name", "error"), [("no name", InvalidName), ("CID_RMQ_SYS_x", ReservedName)])
def test_a_name_that_no_group_may_have_is_refused(mq: Client, name: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        mq.producer(group=name)
