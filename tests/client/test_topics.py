"""Topics over the whole cluster: the same on every master, usable when the call returns."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketq import Client, Conflict, InvalidName, RouteNotFound, TopicNotFound
from rocketq.local import LocalCluster


@pytest.fixture(scope="module")
def mq(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster.nameservers) as client:
        yield client


def test_a_topic_is_made_on_every_master_and_its_route_is_there_at_once(mq: Client, topic: str) -> None:
    made = mq.create_topic(topic, queues=3, read_queues=5, retention_ms=60_000)
    assert set(made) == {"broker-a", "broker-b"}
    assert {(c.write_queues, c.read_queues, c.retention_ms) for c in made.values()} == {(3, 5, 60_000)}
    route = mq.route(topic)
    assert (len(route.write_queues()), len(route.read_queues())) == (6, 10)
    assert topic in mq.topics()


def test_a_topic_that_exists_is_a_conflict_unless_that_is_fine(mq: Client, topic: str) -> None:
    made = mq.create_topic(topic, queues=2)
    with pytest.raises(Conflict):
        mq.create_topic(topic, queues=2)
    again = mq.create_topic(topic, queues=7, if_absent=True)
    assert again == made, "it stays as it is"


def test_an_altered_topic_is_altered_everywhere(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=1)
    changed = mq.alter_topic(topic, write_queues=2, read_queues=2)
    assert {c.write_queues for c in changed.values()} == {2}
    described = mq.describe_topic(topic)
    assert {len(d.queues) for d in described.values()} == {2}


def test_a_deleted_topic_is_gone_everywhere_and_may_be_made_anew(mq: Client, topic: str) -> None:
    first = mq.create_topic(topic)
    mq.delete_topic(topic)
    with pytest.raises(TopicNotFound):
        mq.describe_topic(topic)
    second = mq.create_topic(topic)
    for broker, config in second.items():
        assert config.incarnation != first[broker].incarnation


def test_a_topic_that_is_nowhere_is_not_found(mq: Client, topic: str) -> None:
    for call in (mq.delete_topic, mq.describe_topic):
        with pytest.raises(TopicNotFound):
            call(topic)
    with pytest.raises(RouteNotFound):
        mq.route(topic)
    with pytest.raises(InvalidName):
        mq.create_topic("no spaces")


def test_the_cluster_view_names_the_live_masters(mq: Client) -> None:
    view = mq.cluster()
    assert set(view.clusters["default"]) == {"broker-a", "broker-b"}
    assert {broker.identity.broker_id for broker in view.brokers} == {0}
