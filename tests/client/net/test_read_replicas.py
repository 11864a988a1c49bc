"""Whom a reader asks for each queue, from what answers suggest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketq.clock import ManualClock
from rocketq.model import MessageQueue, PullStatus
from rocketq.net.pulled import Pulled
from rocketq.net.read_replicas import AVOID_MS, ReadReplicas
from rocketq.net.transport import Transport
from rocketq.protocol.documents.nameserver import BrokerData, TopicRoute

FIRST, SECOND = (MessageQueue("orders", "broker-a", queue) for queue in range(2))
ADDRESSES = {0: "http://master", 2: "http://two", 3: "http://three"}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def replicas(clock: ManualClock) -> Iterator[ReadReplicas]:
    transport = Transport()
    yield ReadReplicas(transport, clock)
    transport.close()


def route(addresses: dict[int, str] | None = None) -> TopicRoute:
    return TopicRoute("orders", 1, (), (BrokerData("default", "broker-a", addresses or ADDRESSES),))


def suggesting(number: int) -> Pulled:
    return Pulled(PullStatus.FOUND, 0, 1, 0, 1, "first", b"", number)


def asked(replicas: ReadReplicas, queue: MessageQueue) -> str:
    slave = replicas.slave(queue, route)
    return ADDRESSES[0] if slave is None else slave.address


def test_a_reader_follows_a_suggestion_and_comes_back(replicas: ReadReplicas) -> None:
    assert asked(replicas, FIRST) == "http://master"
    replicas.heard(FIRST, suggesting(2))
    assert asked(replicas, FIRST) == "http://two"
    assert asked(replicas, SECOND) == "http://master"
    replicas.heard(FIRST, suggesting(0))
    assert asked(replicas, FIRST) == "http://master"


def test_a_slave_that_fails_is_asked_for_no_queue_for_a_while(
    replicas: ReadReplicas, clock: ManualClock
) -> None:
    for queue in (FIRST, SECOND):
        replicas.heard(queue, suggesting(2))
    slave = replicas.slave(FIRST, route)
    assert slave is not None
    replicas.failed(FIRST, slave)
    replicas.heard(FIRST, suggesting(2))
    assert [asked(replicas, each) for each in (FIRST, SECOND)] == ["http://master"] * 2
    replicas.heard(FIRST, suggesting(3))
    assert asked(replicas, FIRST) == "http://three"
    clock.advance(AVOID_MS)
    assert asked(replicas, SECOND) == "http://two"


def test_a_slave_that_is_in_no_route_is_not_asked(replicas: ReadReplicas) -> None:
    """It went, or it is the master now."""
    replicas.heard(FIRST, suggesting(2))
    assert replicas.slave(FIRST, lambda: route({0: "http://two", 3: "http://three"})) is None
    assert replicas.slave(FIRST, lambda: TopicRoute("orders", 1, (), ())) is None
