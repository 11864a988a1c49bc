"""Topics over the whole cluster: the same on every master, usable when the call returns."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from rocketq import (
    Client,
    Conflict,
    InvalidConfiguration,
    InvalidName,
    LocalCluster,
    Message,
    MessageQueue,
    RouteNotFound,
    TopicNotFound,
)
from rocketq.errors.topic_errors import UnreadMessages
from rocketq.http_server.runner import ServerThread
from rocketq_broker.app import create_app
from rocketq_broker.config import BrokerConfig
from tests.support.conditions import wait_until
from tests.support.patience import PatientClient


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
    more = mq.alter_topic(topic, queues=3)
    assert {(c.write_queues, c.read_queues) for c in more.values()} == {(3, 3)}
    with pytest.raises(InvalidConfiguration, match="beside read_queues"):
        mq.alter_topic(topic, queues=4, read_queues=5)


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


def test_a_topic_is_made_on_the_brokers_that_are_chosen_and_remembers_them(mq: Client, topic: str) -> None:
    made = mq.create_topic(topic, queues=2, brokers=["broker-b"])
    assert {name: config.brokers for name, config in made.items()} == {"broker-b": ("broker-b",)}
    route = mq.route(topic)
    assert [data.broker for data in route.queues] == ["broker-b"]
    assert route.holders == ("broker-b",)
    everywhere = mq.create_topic(f"{topic}-all", cluster="default")
    assert {config.brokers for config in everywhere.values()} == {("broker-a", "broker-b")}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"brokers": ["broker-b", "broker-x"]}, "brokers='broker-x'"),
        ({"brokers": []}, "it names no broker"),
        ({"cluster": "nowhere"}, "cluster='nowhere'"),
        ({"cluster": "nowhere", "brokers": ["broker-a"]}, "cluster='nowhere'"),
    ],
)
def test_unknown_brokers_and_clusters_are_answered_with_those_there_are(
    mq: Client, topic: str, wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=said) as caught:
        mq.create_topic(topic, **wrong)
    assert "broker-a (cluster default), broker-b (cluster default)" in caught.value.hint
    assert topic not in mq.topics()


def test_a_topic_spreads_to_more_brokers_and_all_of_them_remember_it(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=1, brokers=["broker-a"])
    with pytest.raises(Conflict, match="already on broker-a"):
        mq.create_topic(topic, queues=1, brokers=["broker-b"])
    assert set(mq.describe_topic(topic)) == {"broker-a"}, "a conflict changes nothing"
    mq.create_topic(topic, queues=1, brokers=["broker-b"], if_absent=True)
    records = {name: one.config.brokers for name, one in mq.describe_topic(topic).items()}
    assert records == dict.fromkeys(("broker-a", "broker-b"), ("broker-a", "broker-b"))
    mq.create_topic(topic, brokers=["broker-a"], if_absent=True)
    assert {name: one.config.brokers for name, one in mq.describe_topic(topic).items()} == records


def test_automatic_creation_remembers_exactly_the_brokers_that_allowed_it(topic: str) -> None:
    with LocalCluster(brokers=1) as allowing, TemporaryDirectory() as directory:
        refusing = BrokerConfig(
            name="broker-b",
            port=0,
            data_dir=Path(directory),
            nameservers=tuple(allowing.nameservers),
            auto_create_topics=False,
        )
        app = create_app(refusing)
        server = ServerThread(app)
        app.bound(server.address)
        with server, PatientClient(allowing.nameservers) as mq:
            wait_until(lambda: len(mq.cluster().brokers) == 2)
            mq.producer().send(topic, b"first")
            found = mq.describe_topic(topic)
    assert {name: one.config.brokers for name, one in found.items()} == {"broker-a": ("broker-a",)}


def test_fewer_read_queues_are_refused_while_the_others_hold_messages(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=3)
    queue = MessageQueue(topic, "broker-b", 2)
    with mq.producer() as producer:
        producer.send_batch(topic, [Message(b"x")] * 7, queue=queue)
    with pytest.raises(UnreadMessages, match="7 messages") as caught:
        mq.alter_topic(topic, read_queues=2)
    assert caught.value.facts["messages"] == {"broker-b/2": 7}
    assert {one.config.read_queues for one in mq.describe_topic(topic).values()} == {3}
    mq.alter_topic(topic, write_queues=2)
    changed = mq.alter_topic(topic, read_queues=2, force=True)
    assert {config.read_queues for config in changed.values()} == {2}
    assert mq.alter_topic(topic, read_queues=1)["broker-a"].read_queues == 1, "nothing is in queue 1"


def test_a_live_broker_leaves_a_topic_only_if_its_messages_may_go(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=1)
    with mq.producer() as producer:
        producer.send_batch(topic, [Message(b"x")] * 3, queue=MessageQueue(topic, "broker-b", 0))
    with pytest.raises(InvalidConfiguration, match="not have it on record"):
        mq.remove_topic_broker(topic, "broker-x")
    with pytest.raises(UnreadMessages, match="broker-b/0: 3"):
        mq.remove_topic_broker(topic, "broker-b")
    left = mq.remove_topic_broker(topic, "broker-b", force=True)
    assert {name: config.brokers for name, config in left.items()} == {"broker-a": ("broker-a",)}
    assert set(mq.describe_topic(topic)) == {"broker-a"}
    with pytest.raises(Conflict, match="no other broker of it is alive"):
        mq.remove_topic_broker(topic, "broker-a")


def test_changes_say_which_brokers_of_the_topic_they_did_not_reach(
    topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with LocalCluster(brokers=2) as cluster, PatientClient(cluster.nameservers) as mq:
        mq.create_topic(topic, queues=1)
        cluster.stop("broker-b")
        mq.alter_topic(topic, perm=4)
        assert f"Topic {topic} is also on broker-b, by its record" in caplog.text
        caplog.clear()
        mq.delete_topic(topic)
        assert "the topic is not deleted there" in caplog.text
