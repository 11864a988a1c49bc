"""Members of a group while a broker hangs: the queues of the others are shared out all the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from rocketq import Client, LocalCluster, MessageQueue
from tests.client.consuming.groups_support import wait_for_shares
from tests.support.conditions import wait_until
from tests.support.patience import PatientClient

BROKERS: Final = ("broker-a", "broker-b")
#: Far shorter than the calls of the client may take.
SESSION_MS: Final = 1_000


@pytest.fixture
def own_cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2) as cluster:
        yield cluster


@pytest.fixture
def mq(own_cluster: LocalCluster) -> Iterator[Client]:
    """Its calls may take as long as the test waits: longer than the test could wait for one that hangs."""
    with PatientClient(own_cluster.nameservers) as client:
        yield client


def test_a_member_takes_over_queues_of_one_broker_while_another_hangs(
    own_cluster: LocalCluster, mq: Client, topic: str
) -> None:
    mq.create_topic(topic, queues=2)
    of_a, of_b = ({MessageQueue(topic, each, number) for number in range(2)} for each in BROKERS)
    with (
        mq.consumer(topic, topic, session_timeout_ms=SESSION_MS) as staying,
        mq.consumer(topic, topic, session_timeout_ms=SESSION_MS) as leaving,
    ):
        wait_for_shares([staying, leaving], 4)
        own_cluster.pause(BROKERS[0])
        try:
            # It has asked the broker that hangs, in vain, and has not given up the one that answers.
            wait_until(lambda: staying.owned() and not of_a & staying.owned().keys())
            leaving.close()
            wait_until(lambda: staying.owned().keys() == of_b)
        finally:
            own_cluster.resume(BROKERS[0])
        wait_until(lambda: staying.owned().keys() == of_a | of_b)
