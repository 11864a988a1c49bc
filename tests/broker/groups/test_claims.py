"""Members claim queues, hand them over, and cannot move progress that is not theirs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rocketq.errors import (
    ClaimLost,
    Conflict,
    GroupNotFound,
    InvalidRequest,
    MembersActive,
    MemberUnknown,
    QueuesOwned,
)
from rocketq.model import GroupKind, MessageModel, StartFrom
from rocketq.protocol.documents.broker import CommitOffsetsRequest, GroupOffset
from rocketq.protocol.documents.groups import (
    CloneRequest,
    QueueOfTopic,
    ResetRequest,
    ResetTarget,
    SetGroupRequest,
    StartRule,
)
from tests.broker.data_plane.test_pull import wait_until_held
from tests.broker.groups.conftest import NewMember
from tests.broker.groups.scripted_member import owners
from tests.support.http_client import JSON, Http, numbered, stream


@pytest.fixture
def filled(broker: Http) -> Http:
    """Nine messages in each queue of `orders`."""
    for queue in range(4):
        broker.send("orders", stream(numbered(9)), f"?queue={queue}")
    return broker


def reset(**fields: Any) -> ResetRequest:
    return ResetRequest("orders", **{"to": ResetTarget.EARLIEST, **fields})


def test_a_queue_has_one_owner_and_it_is_visible(filled: Http, new_member: NewMember) -> None:
    first, second = new_member(1), new_member(2)
    first.join()
    second.join()
    granted = first.claim(0, 1).granted
    assert [(each.queue, each.client_id, each.offset) for each in granted] == [
        (0, first.client_id, None),
        (1, first.client_id, None),
    ]
    answer = second.claim(1, 2)
    assert [each.queue for each in answer.granted] == [2]
    assert [(each.queue, each.reason, each.owner) for each in answer.refused] == [
        (1, "owned", first.client_id)
    ]
    assert owners(first.api) == {
        ("orders", 0): first.client_id,
        ("orders", 1): first.client_id,
        ("orders", 2): second.client_id,
    }
    assert [(each.member.client_id, each.queues) for each in first.api.group("billing").members] == [
        (first.client_id, 2),
        (second.client_id, 1),
    ]
    assert first.epochs(0, 1) == {0: granted[0].epoch, 1: granted[1].epoch}, (
        "a repeated claim changes nothing"
    )


def test_a_member_is_told_when_a_queue_it_asked_for_is_free(filled: Http, new_member: NewMember) -> None:
    first, second = new_member(1), new_member(2)
    first.join()
    version = second.join().members_version
    [mine, _] = first.claim(0, 1).granted
    assert second.claim(0).granted == ()
    watch = second.watch(version)
    first.api.release_queues("billing", first.client_id, [QueueOfTopic("orders", 1)])
    assert first.commit((0, mine.epoch, 7), release=True) == {0: 7}
    assert watch.result().version != version
    [theirs] = second.claim(0).granted
    assert theirs.offset == 7
    assert theirs.epoch > mine.epoch
    with pytest.raises(ClaimLost):
        first.commit((0, mine.epoch, 8))
    assert first.api.group_offsets("billing").offsets == (GroupOffset("orders", 0, 7),)


def test_a_member_s_pull_is_refused_once_it_lost_the_queue(filled: Http, new_member: NewMember) -> None:
    first, second = new_member(1), new_member(2)
    first.join()
    second.join()
    epoch = first.epochs(0)[0]
    pull = {"group": "billing", "client_id": first.client_id, "epoch": epoch}
    assert first.api.pull("orders", 0, 0, **pull).next_offset == 9
    held = second.watch(None)
    held.result()
    first.leave()
    with pytest.raises(ClaimLost):
        first.api.pull("orders", 0, 0, **pull)
    for missing in pull:
        with pytest.raises(InvalidRequest):
            first.api.pull("orders", 0, 0, **{**pull, missing: None})


def test_a_held_pull_does_not_give_messages_to_an_owner_of_old(filled: Http, new_member: NewMember) -> None:
    member = new_member(1)
    member.join()
    epoch = member.epochs(0)[0]

    def pull() -> Any:
        return member.api.pull(
            "orders", 0, 9, wait_ms=60_000, group="billing", client_id=member.client_id, epoch=epoch
        )

    held = member.run(pull)
    wait_until_held(filled, 1)
    member.api.release_queues("billing", member.client_id, [QueueOfTopic("orders", 0)])
    filled.send("orders", stream(numbered(1)), "?queue=0")
    with pytest.raises(ClaimLost):
        held.result()


def test_a_claim_needs_a_member_of_a_clustering_group(new_member: NewMember) -> None:
    member, reader = new_member(1), new_member(2, "screens")
    with pytest.raises(MemberUnknown):
        member.claim(0)
    member.join()
    with pytest.raises(MemberUnknown):
        member.api.claim_queues("billing", "somebody", [QueueOfTopic("orders", 0)])
    assert [each.reason for each in member.claim(3, 4).refused] == ["no_such_queue"]
    stranger = member.api.claim_queues("billing", member.client_id, [QueueOfTopic("refunds", 0)])
    assert [each.reason for each in stranger.refused] == ["no_such_queue"]
    assert reader.join(model=MessageModel.BROADCASTING).model is MessageModel.BROADCASTING
    with pytest.raises(Conflict):
        reader.claim(0)


def test_who_is_no_member_commits_only_where_nobody_owns_the_queue(
    filled: Http, new_member: NewMember
) -> None:
    member = new_member(1)
    member.join()
    epoch = member.epochs(0)[0]
    outside = (GroupOffset("orders", 0, 4), GroupOffset("orders", 1, 4))
    with pytest.raises(QueuesOwned):
        member.api.commit_offsets("billing", CommitOffsetsRequest(outside))
    assert member.api.group_offsets("billing").offsets == ()
    member.api.commit_offsets("billing", CommitOffsetsRequest(outside[1:]))
    member.api.commit_offsets("billing", CommitOffsetsRequest(outside, force=True))
    with pytest.raises(ClaimLost):
        member.commit((0, epoch, 5))
    assert [each.offset for each in member.claim(0).granted] == [4]


# --- progress -----------------------------------------------------------------------------


def test_the_lag_counts_messages_and_time_and_unknown_is_null(filled: Http, new_member: NewMember) -> None:
    member = new_member(1)
    member.join()
    epochs = member.epochs(0, 1, 2)
    member.commit((0, epochs[0], 4), (1, epochs[1], 9))
    behind, ready, unknown = member.api.group("billing").queues
    assert (behind.committed, behind.min, behind.max, behind.lag) == (4, 0, 9, 5)
    assert behind.lag_ms is not None
    assert behind.lag_ms >= 0
    assert (ready.lag, ready.lag_ms) == (0, 0)
    assert (unknown.committed, unknown.lag, unknown.lag_ms, unknown.max) == (None, None, None, 9)
    assert unknown.owner == member.client_id


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (reset(), {0: 0, 1: 0, 2: 0, 3: 0}),
        (reset(to=ResetTarget.LATEST), {0: 9, 1: 9, 2: 9, 3: 9}),
        (reset(to=ResetTarget.OFFSET, offset=3, queues=(1, 2)), {0: 5, 1: 3, 2: 3}),
        (reset(to=ResetTarget.TIME, at_us=1), {0: 0, 1: 0, 2: 0, 3: 0}),
        (reset(to=ResetTarget.TIME, at_us=2**62), {0: 9, 1: 9, 2: 9, 3: 9}),
    ],
)
def test_a_reset_is_previewed_and_then_done(
    filled: Http, new_member: NewMember, request_: ResetRequest, expected: dict[int, int]
) -> None:
    api = new_member(1).api
    api.commit_offsets("billing", CommitOffsetsRequest((GroupOffset("orders", 0, 5),)))

    def progress() -> dict[int, int]:
        return {each.queue: each.offset for each in api.group_offsets("billing").offsets}

    fields = {name: getattr(request_, name) for name in ("topic", "to", "offset", "at_us", "queues")}
    preview = api.reset_group("billing", ResetRequest(**fields, dry_run=True))
    assert progress() == {0: 5}
    done = api.reset_group("billing", request_)
    assert (preview.moves, preview.dry_run, done.dry_run) == (done.moves, True, False)
    assert progress() == expected


def test_a_reset_under_members_is_refused_unless_forced(filled: Http, new_member: NewMember) -> None:
    member = new_member(1)
    version = member.join().members_version
    epoch = member.epochs(0)[0]
    member.commit((0, epoch, 8))
    with pytest.raises(MembersActive) as refused:
        member.api.reset_group("billing", reset())
    assert refused.value.facts["client_ids"] == [member.client_id]
    assert member.api.reset_group("billing", reset(dry_run=True)).moves[0].before == 8
    watch = member.watch(version)
    member.api.reset_group("billing", reset(force=True))
    assert watch.result().version != version
    with pytest.raises(ClaimLost):
        member.commit((0, epoch, 9))
    assert [each.offset for each in member.claim(0).granted] == [0]


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ({"topic": "unknown", "to": "latest"}, "TOPIC_NOT_FOUND"),
        ({"topic": "orders", "to": "latest", "queues": [4]}, "QUEUE_NOT_FOUND"),
        ({"topic": "orders", "to": "latest", "queues": []}, "INVALID_REQUEST"),
        ({"topic": "orders", "to": "offset"}, "INVALID_REQUEST"),
        ({"topic": "orders", "to": "offset", "offset": 10}, "OFFSET_OUT_OF_RANGE"),
        ({"topic": "orders", "to": "latest", "offset": 1}, "INVALID_REQUEST"),
        ({"topic": "orders", "to": "time"}, "INVALID_REQUEST"),
        ({"topic": "orders", "to": "soon"}, "INVALID_REQUEST"),
    ],
)
def test_a_reset_that_cannot_be_moves_nothing(filled: Http, request_: dict[str, Any], code: str) -> None:
    filled.put("/v1/groups/billing", {})
    for dry_run in (True, False):
        assert (
            filled.call(
                "POST", "/v1/groups/billing/reset", json.dumps({**request_, "dry_run": dry_run}), JSON
            ).code
            == code
        )
    assert filled.get("/v1/groups/billing/offsets").json["offsets"] == []


def test_a_reset_of_an_unknown_group_creates_none_unless_asked(filled: Http, new_member: NewMember) -> None:
    api = new_member(1).api
    with pytest.raises(GroupNotFound):
        api.reset_group("typo", reset())
    assert api.groups().groups == ()
    api.reset_group("meant", reset(to=ResetTarget.LATEST, create=True))
    assert {each.offset for each in api.group_offsets("meant").offsets} == {9}


def test_a_clone_takes_one_topic_or_all(filled: Http, new_member: NewMember) -> None:
    filled.create("refunds", read_queues=1, write_queues=1)
    api = new_member(1).api
    offsets = (GroupOffset("orders", 0, 5), GroupOffset("refunds", 0, 0))
    api.commit_offsets("billing", CommitOffsetsRequest(offsets))
    moves = api.clone_group("audit", CloneRequest("billing", topic="orders", dry_run=True)).moves
    assert [(each.topic, each.before, each.after) for each in moves] == [("orders", None, 5)]
    with pytest.raises(GroupNotFound):
        api.group("audit")
    api.clone_group("audit", CloneRequest("billing", topic="orders"))
    assert api.group_offsets("audit").offsets == offsets[:1]
    api.clone_group("audit", CloneRequest("billing"))
    assert api.group_offsets("audit").offsets == offsets
    with pytest.raises(InvalidRequest):
        api.clone_group("audit", CloneRequest("audit"))


def test_a_group_is_deleted_with_its_progress(filled: Http, new_member: NewMember) -> None:
    member = new_member(1)
    member.join()
    epoch = member.epochs(0)[0]
    member.commit((0, epoch, 5))
    with pytest.raises(MembersActive):
        member.api.delete_group("billing")
    member.api.delete_group("billing", force=True)
    with pytest.raises(GroupNotFound):
        member.api.group("billing")
    with pytest.raises(ClaimLost):
        member.commit((0, epoch, 6))
    assert member.join().claims == ()
    assert member.epochs(0)[0] > epoch


# --- listing and settings -----------------------------------------------------------------


def test_groups_are_listed_and_a_query_of_spark_is_marked(filled: Http, new_member: NewMember) -> None:
    member = new_member(1)
    member.join()
    place = (GroupOffset("orders", 0, 5),)
    member.api.commit_offsets("query", CommitOffsetsRequest(place, kind=GroupKind.SPARK))
    member.api.commit_offsets("query", CommitOffsetsRequest((GroupOffset("orders", 0, 6),)))
    found = member.api.groups().groups
    assert [(each.group, each.kind, each.members, each.topics) for each in found] == [
        ("billing", GroupKind.CONSUMERS, (member.client_id,), ()),
        ("query", GroupKind.SPARK, (), ("orders",)),
    ]


def test_settings_keep_what_a_change_does_not_name(new_member: NewMember) -> None:
    api = new_member(1).api
    api.set_group("billing", SetGroupRequest(retries_max=3))
    made = api.set_group("billing", SetGroupRequest(model=MessageModel.BROADCASTING)).settings
    assert (made.retries_max, made.model, made.enabled) == (3, MessageModel.BROADCASTING, True)
    assert api.set_group("billing", SetGroupRequest(unset=("model",))).settings.model is None


@pytest.mark.parametrize(
    "request_",
    [
        SetGroupRequest(retries_max=-1),
        SetGroupRequest(retries_max=10_001),
        SetGroupRequest(start=StartRule(StartFrom.TIME)),
        SetGroupRequest(start=StartRule(StartFrom.FIRST, 5)),
        SetGroupRequest(unset=("retries_max",)),
        SetGroupRequest(model=MessageModel.CLUSTERING, unset=("model",)),
    ],
)
def test_settings_that_cannot_be_create_nothing(new_member: NewMember, request_: SetGroupRequest) -> None:
    api = new_member(1).api
    with pytest.raises(InvalidRequest):
        api.set_group("billing", request_)
    assert api.groups().groups == ()


def test_an_operator_s_changes_of_an_owned_topic_end_its_claims(filled: Http, new_member: NewMember) -> None:
    member = new_member(1)
    member.join()
    epoch = member.epochs(0)[0]
    filled.call("DELETE", "/v1/topics/orders")
    with pytest.raises(ClaimLost):
        member.commit((0, epoch, 1))
    assert member.join().claims == ()
