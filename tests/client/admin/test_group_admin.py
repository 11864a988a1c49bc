"""Consumer groups as operators see and change them, over two brokers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketq import Client, LocalCluster, Message
from rocketq.admin.groups import GroupAdmin
from rocketq.errors import InvalidConfiguration, QueueNotFound, TopicNotFound
from rocketq.errors.group_errors import GroupNotFound, MembersActive
from rocketq.model import GroupKind, MessageModel, MessageQueue
from rocketq.net.broker_api import BrokerApi, master_of
from rocketq.protocol.documents.broker import CommitOffsetsRequest, GroupOffset
from rocketq.protocol.documents.groups import (
    Heartbeat,
    QueueOfTopic,
    ResetTarget,
    Subscription,
)
from tests.support.patience import PatientClient, patient_transport

MEMBER = "10.0.0.1@7"


@pytest.fixture
def mq(cluster: LocalCluster) -> Iterator[Client]:
    with PatientClient(cluster.nameservers) as made:
        yield made


@pytest.fixture
def brokers(mq: Client, topic: str) -> Iterator[dict[str, BrokerApi]]:
    """The topic with one queue of three messages on each of the two brokers."""
    mq.create_topic(topic, queues=1)
    with mq.producer() as producer:
        for broker in sorted(mq.describe_topic(topic)):
            producer.send_batch(
                topic, [Message(b"a"), Message(b"b"), Message(b"c")], queue=MessageQueue(topic, broker, 0)
            )
    with patient_transport() as transport:
        yield {name: master_of(mq.route(topic), name, transport) for name in sorted(mq.describe_topic(topic))}


def join(broker: BrokerApi, group: str, topic: str) -> None:
    broker.heartbeat(group, MEMBER, Heartbeat(1, (Subscription(topic),), language="python"))
    broker.claim_queues(group, MEMBER, [QueueOfTopic(topic, 0)])


def progress(admin: GroupAdmin, group: str) -> dict[str, int | None]:
    return {each.broker: each.committed for each in admin.progress(group)}


def test_a_group_is_put_together_from_all_brokers(
    mq: Client, brokers: dict[str, BrokerApi], topic: str
) -> None:
    for broker in brokers.values():
        join(broker, topic, topic)
    brokers["broker-a"].commit_offsets(
        f"{topic}-query", CommitOffsetsRequest((GroupOffset(topic, 0, 2),), kind=GroupKind.SPARK)
    )
    found = {each.group: each for each in mq.groups.overviews() if each.group.startswith(topic)}
    mine, query = found[topic], found[f"{topic}-query"]
    assert (mine.kind, mine.members, mine.brokers) == (GroupKind.CONSUMERS, 1, ("broker-a", "broker-b"))
    assert (query.kind, query.members, query.topics) == (GroupKind.SPARK, 0, (topic,))
    [member] = mq.groups.members(topic)
    assert (member.client_id, member.member.language) == (MEMBER, "python")
    assert member.queues == (MessageQueue(topic, "broker-a", 0), MessageQueue(topic, "broker-b", 0))
    assert [each.owner for each in mq.groups.progress(topic)] == [MEMBER, MEMBER]
    [one] = mq.groups.progress(f"{topic}-query")
    assert (one.broker, one.committed, one.max, one.lag, one.owner) == ("broker-a", 2, 3, 1, None)
    for broker in brokers.values():
        broker.leave_group(topic, MEMBER)


def test_a_reset_moves_every_queue_or_none(mq: Client, brokers: dict[str, BrokerApi], topic: str) -> None:
    first = brokers["broker-a"]
    first.commit_offsets(topic, CommitOffsetsRequest((GroupOffset(topic, 0, 2),)))
    preview = mq.groups.reset(topic, topic, "latest", dry_run=True)
    assert [(each.broker, each.before, each.after) for each in preview] == [
        ("broker-a", 2, 3),
        ("broker-b", None, 3),
    ]
    assert progress(mq.groups, topic) == {"broker-a": 2}
    join(brokers["broker-b"], topic, topic)
    with pytest.raises(MembersActive):
        mq.groups.reset(topic, topic, ResetTarget.LATEST)
    assert progress(mq.groups, topic) == {"broker-a": 2, "broker-b": None}
    brokers["broker-b"].leave_group(topic, MEMBER)
    assert mq.groups.reset(topic, topic, ResetTarget.LATEST) == preview
    assert progress(mq.groups, topic) == {"broker-a": 3, "broker-b": 3}
    queue = MessageQueue(topic, "broker-b", 0)
    mq.groups.reset(topic, topic, ResetTarget.OFFSET, offset=1, queues=[queue])
    assert progress(mq.groups, topic) == {"broker-a": 3, "broker-b": 1}


def test_a_reset_of_what_is_not_there_is_refused(
    mq: Client, brokers: dict[str, BrokerApi], topic: str
) -> None:
    with pytest.raises(GroupNotFound):
        mq.groups.reset(topic, topic, ResetTarget.LATEST)
    mq.groups.set(topic)
    with pytest.raises(InvalidConfiguration, match="earliest"):
        mq.groups.reset(topic, topic, "soon")
    with pytest.raises(TopicNotFound):
        mq.groups.reset(topic, f"{topic}-other", ResetTarget.LATEST)
    for wrong in (MessageQueue(topic, "broker-z", 0), MessageQueue(topic, "broker-a", 1)):
        with pytest.raises(QueueNotFound):
            mq.groups.reset(topic, topic, ResetTarget.LATEST, queues=[wrong])
    assert mq.groups.progress(topic) == []


def test_a_group_is_set_cloned_and_deleted_everywhere(
    mq: Client, brokers: dict[str, BrokerApi], topic: str
) -> None:
    made = mq.groups.set(topic, retries_max=4, model=MessageModel.CLUSTERING)
    assert {broker: each.retries_max for broker, each in made.items()} == {"broker-a": 4, "broker-b": 4}
    mq.groups.reset(topic, topic, ResetTarget.OFFSET, offset=2)
    copy = f"{topic}-copy"
    assert [each.after for each in mq.groups.clone(topic, copy, dry_run=True)] == [2, 2]
    mq.groups.clone(topic, copy)
    assert progress(mq.groups, copy) == {"broker-a": 2, "broker-b": 2}
    join(brokers["broker-a"], copy, topic)
    with pytest.raises(MembersActive):
        mq.groups.delete(copy)
    assert mq.groups.delete(copy, force=True) == ["broker-a", "broker-b"]
    with pytest.raises(GroupNotFound):
        mq.groups.describe(copy)
    assert mq.groups.delete(topic) == ["broker-a", "broker-b"]
