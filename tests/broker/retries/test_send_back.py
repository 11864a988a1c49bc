"""A member sends messages back: they come again in the retry topic, and at last as dead letters."""

from __future__ import annotations

import pytest

from rocketq.errors import ClaimLost, GroupNotFound, InvalidRequest, NoPermission, TopicNotFound
from rocketq.protocol.documents.groups import SetGroupRequest, Subscription
from rocketq.protocol.documents.send_backs import SendBackRequest
from tests.broker.retries.conftest import DEAD, RETRY, FailingMember
from tests.support.http_client import Http


def test_a_message_that_failed_comes_again_and_says_where_it_comes_from(member: FailingMember) -> None:
    assert member.outcomes(member.failed(1, reason="ValueError: no")) == ["retry"]
    member.own(RETRY)
    [again] = member.read(RETRY)
    assert (again["body"], again["key"], again["tag"]) == (b"1", b"k-1", "paid")
    due = again["properties"].pop("TIMER_DELIVER_MS")
    assert int(due) > 0
    assert again["properties"] == {
        "own": "1",
        "RECONSUME_TIME": "1",
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": "broker-0:orders:0:1",
        "UNIQ_KEY": "broker-0:orders:0:1",
        "FAILURE_REASON": "ValueError: no",
    }


def test_a_copy_that_fails_again_keeps_its_origin_and_counts(member: FailingMember) -> None:
    member.send_back(member.failed(1, reason="first"))
    member.own(RETRY)
    member.read(RETRY)
    member.send_back(member.failed(0, RETRY))
    [again] = member.read(RETRY, 1)
    found = again["properties"]
    assert (found["RECONSUME_TIME"], found["RETRY_TOPIC"]) == ("2", "orders")
    assert found["ORIGIN_MESSAGE_ID"] == "broker-0:orders:0:1"
    assert "FAILURE_REASON" not in found, "the last failure counts, and it gave no reason"


def test_after_the_last_attempt_a_message_is_a_dead_letter(broker: Http, member: FailingMember) -> None:
    member.api.set_group("billing", SetGroupRequest(retries_max=1))
    assert member.outcomes(member.failed(0)) == ["retry"]
    member.own(RETRY)
    member.read(RETRY)
    assert member.outcomes(member.failed(0, RETRY, reason="KeyError: 'x'")) == ["dead_letter"]
    [letter] = member.read(DEAD)
    assert letter["body"] == b"0"
    assert letter["properties"]["RECONSUME_TIME"] == "2"
    assert letter["properties"]["FAILURE_REASON"] == "KeyError: 'x'"
    assert "TIMER_DELIVER_MS" not in letter["properties"], "it is not to be delivered at any time"
    metrics = broker.get("/metrics").body.decode()
    [line] = [each for each in metrics.splitlines() if "send_to_dlq_messages_total{" in each]
    assert 'consumer_group="billing"' in line
    assert line.endswith(" 1.0")


def test_the_member_may_say_how_many_retries_there_are(member: FailingMember) -> None:
    assert member.outcomes(member.failed(0), member.failed(1), retries_max=0) == ["dead_letter"] * 2
    assert member.outcomes(member.failed(2, attempt=3), retries_max=3) == ["retry"]
    member.own(RETRY)
    [again] = member.read(RETRY)
    assert again["properties"]["RECONSUME_TIME"] == "3", "attempts of the member itself count"


def test_one_call_takes_what_is_tried_again_and_what_is_given_up(member: FailingMember) -> None:
    told = member.outcomes(member.failed(2, attempt=17), member.failed(0), member.failed(1, attempt=16))
    assert told == ["dead_letter", "retry", "retry"]
    member.own(RETRY)
    bodies = {each["body"]: each["properties"]["RECONSUME_TIME"] for each in member.read(RETRY, count=2)}
    assert bodies == {b"0": "1", b"1": "16"}
    assert [each["body"] for each in member.read(DEAD)] == [b"2"]


def test_what_is_not_stored_is_not_taken(member: FailingMember) -> None:
    assert member.outcomes(member.failed(7), member.failed(0)) == ["unreadable", "retry"]


def test_only_the_owner_of_a_queue_gives_its_messages_back(broker: Http, member: FailingMember) -> None:
    stranger = FailingMember(broker.address, 2)
    stranger.join()
    stranger.epoch = member.epoch
    with pytest.raises(ClaimLost) as refused:
        stranger.send_back(stranger.failed(0))
    assert refused.value.lost[0]["owner"] == member.client_id
    stranger.close()
    with pytest.raises(TopicNotFound):
        member.api.topic(RETRY)


def test_a_call_that_nobody_can_mean_is_refused(member: FailingMember) -> None:
    for messages in (
        (), (member.failed(0), member.failed(0)), (member.failed(-1),), (member.failed(0, delay_ms=-1),),
        (member.failed(0, attempt=0),), tuple(member.failed(each) for each in range(1_001)),
    ):  # fmt: skip
        with pytest.raises(InvalidRequest):
            member.send_back(*messages)
    with pytest.raises(InvalidRequest, match="retries_max"):
        member.send_back(member.failed(0), retries_max=-1)
    with pytest.raises(GroupNotFound):
        member.api.send_back("nobody", SendBackRequest(member.client_id, (member.failed(0),)))


def test_a_retry_topic_is_for_its_group_alone(member: FailingMember) -> None:
    member.send_back(member.failed(0))
    member.own(RETRY)
    member.read(RETRY)
    for group in (None, "audit"):
        with pytest.raises(NoPermission, match="retry topic"):
            member.api.pull(RETRY, 0, 0, group=group)
    for group in ("audit", "billing"):
        other = FailingMember(member.api.address, 5, group)
        with pytest.raises(InvalidRequest, match="is a retry topic"):
            other.join(Subscription(RETRY))
        other.close()


def test_members_are_told_of_the_retry_topic_and_share_it(broker: Http, member: FailingMember) -> None:
    other = FailingMember(broker.address, 2)
    known = other.join().members_version
    watch = other.watch(other.watch_now().version or known)
    member.send_back(member.failed(0))
    found = {each.topic: each.client_ids for each in watch.result().topics}
    assert found[RETRY] == (member.client_id, other.client_id)
    other.close()


def test_a_member_that_wants_less_than_others_gets_no_retries(broker: Http, member: FailingMember) -> None:
    broker.create("refunds", read_queues=1, write_queues=1)
    both = FailingMember(broker.address, 2)
    both.join("orders", "refunds")
    member.send_back(member.failed(0))
    found = {each.topic: each.client_ids for each in both.watch_now().topics}
    assert found[RETRY] == (both.client_id,)
    assert found["orders"] == (member.client_id, both.client_id)
    both.close()


def test_a_wait_that_was_asked_for_is_kept(member: FailingMember) -> None:
    assert member.outcomes(member.failed(0, delay_ms=60_000), member.failed(1)) == ["retry", "retry"]
    member.own(RETRY)
    assert [each["body"] for each in member.read(RETRY)] == [b"1"]
    assert [each.key for each in member.api.timers(RETRY, limit=10).timers] == ["k-0"]


def test_a_wait_is_no_longer_than_the_broker_holds_messages(member: FailingMember) -> None:
    assert member.outcomes(member.failed(0, delay_ms=10**15)) == ["retry"]
    assert [each.key for each in member.api.timers(RETRY, limit=10).timers] == ["k-0"]
