"""What counts when members of a group say different things."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rocketq.model import MessageModel, StartFrom
from rocketq.protocol.documents.groups import (
    DifferenceKind,
    GroupSettings,
    Heartbeat,
    StartRule,
    Subscription,
    TopicMembers,
)
from rocketq_broker.groups.agreement import agree, meaning
from rocketq_broker.groups.sessions import Session

SUBSCRIPTIONS = st.dictionaries(
    st.sampled_from(["orders", "refunds", "users"]), st.sampled_from(["*", "a || b", "b||a", "c"]), min_size=1
)
BEATS = st.builds(
    lambda age, said, model, ordered: Heartbeat(
        age, tuple(Subscription(topic, tag=tag) for topic, tag in said.items()), model, ordered=ordered
    ),
    st.integers(0, 3), SUBSCRIPTIONS, st.sampled_from(list(MessageModel)), st.booleans(),
)  # fmt: skip


def session(client_id: str, beat: Heartbeat | None, *topics: str) -> Session[Heartbeat]:
    return Session(client_id, beat, topics, "", 120_000, 0)


def beat(age: int, *subscriptions: Subscription | str) -> Heartbeat:
    return Heartbeat(age, tuple(Subscription(s) if isinstance(s, str) else s for s in subscriptions))


@given(st.dictionaries(st.sampled_from("abcdef"), BEATS, max_size=6), st.randoms())
def test_who_shares_a_topic_wants_the_same_of_it(beats: dict[str, Heartbeat], random: object) -> None:
    members = [session(client_id, said) for client_id, said in beats.items()]
    found = agree(GroupSettings(), members)
    assert agree(GroupSettings(), members[::-1]) == found, "all brokers decide the same"
    for topic in found.topics:
        wanted = {
            meaning(each)
            for client_id in topic.client_ids
            for each in beats[client_id].subscriptions
            if each.topic == topic.topic
        }
        assert len(wanted) == 1
        assert {beats[client_id].model for client_id in topic.client_ids} == {found.model}
        assert {beats[client_id].ordered for client_id in topic.client_ids} == {found.ordered}
    named = {(each.client_id, each.topic) for each in found.differences}
    for client_id, said in beats.items():
        for each in said.subscriptions:
            excluded = (client_id, each.topic) in named or (client_id, "") in named
            assert found.shares(each.topic, client_id) or excluded, "who shares nothing is told why"


@given(st.dictionaries(st.sampled_from("abcdef"), BEATS, min_size=1, max_size=6))
def test_every_topic_of_a_member_that_fits_is_shared_by_somebody(beats: dict[str, Heartbeat]) -> None:
    found = agree(GroupSettings(), [session(client_id, said) for client_id, said in beats.items()])
    fitting = [each for each in beats.values() if (each.model, each.ordered) == (found.model, found.ordered)]
    wanted = {each.topic for said in fitting for each in said.subscriptions}
    assert {each.topic for each in found.topics} == wanted
    assert all(each.client_ids for each in found.topics)


def test_the_oldest_member_decides_and_then_the_client_id() -> None:
    members = [
        session("b", beat(1, Subscription("orders", tag="x"))),
        session("a", beat(2, Subscription("orders", tag="y"))),
        session("c", beat(1, Subscription("orders", tag="z"))),
    ]
    assert agree(GroupSettings(), members).topics == (TopicMembers("orders", ("b",)),)


def test_members_with_other_topics_share_what_they_want() -> None:
    found = agree(
        GroupSettings(), [session("a", beat(1, "orders")), session("b", beat(2, "orders", "users"))]
    )
    assert found.topics == (TopicMembers("orders", ("a", "b")), TopicMembers("users", ("b",)))
    assert [(each.client_id, each.kind, each.topic) for each in found.differences] == [
        ("a", DifferenceKind.TOPIC, "users")
    ]


def test_a_member_known_by_its_queues_alone_keeps_its_place() -> None:
    found = agree(GroupSettings(), [session("a", None, "orders"), session("b", beat(2, "orders"))])
    assert found.topics == (TopicMembers("orders", ("a", "b")),)
    assert found.differences == ()


def test_a_setting_counts_before_the_oldest_member() -> None:
    start = StartRule(StartFrom.TIME, 7)
    settings = GroupSettings(model=MessageModel.BROADCASTING, start=start, ordered=True)
    found = agree(settings, [session("a", beat(1, "orders"))])
    assert (found.model, found.start, found.ordered) == (MessageModel.BROADCASTING, start, True)
    assert [(each.kind, each.value, each.counts, each.theirs) for each in found.differences] == [
        (DifferenceKind.MODEL, "clustering", "broadcasting", ""),
        (DifferenceKind.ORDERED, "false", "true", ""),
        (DifferenceKind.START, "first", "time 7", ""),
    ]
    assert found.topics == ()


def test_filters_are_compared_by_what_they_mean() -> None:
    same = [("a || b", "b||a"), (None, "*"), ("", "*")]
    for one, other in same:
        assert meaning(Subscription("t", tag=one)) == meaning(Subscription("t", tag=other))
    assert meaning(Subscription("t", sql="a = 1  AND b = 2")) == meaning(
        Subscription("t", sql="a = 1 AND b=2")
    )
    assert meaning(Subscription("t", sql="a = 1")) != meaning(Subscription("t", sql="a = 2"))
    assert meaning(Subscription("t", tag="a")) != meaning(Subscription("t", tag="a || b"))
