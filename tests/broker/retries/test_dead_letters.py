"""Dead letters are sent to their original topics again, each once unless it is asked for again."""

from __future__ import annotations

from typing import Any

import pytest

from rocketq.errors import InvalidRequest
from rocketq.protocol.documents.broker import AlterTopicRequest
from rocketq.protocol.documents.send_backs import OffsetRange, ResendAnswer, ResendOutcome, ResendRequest
from tests.broker.retries.conftest import DEAD, FailingMember
from tests.support.http_client import Http


def outcomes(answer: ResendAnswer) -> list[tuple[int, ResendOutcome]]:
    return [(each.offset, each.outcome) for each in answer.letters]


def resend(member: FailingMember, *offsets: int, **said: Any) -> ResendAnswer:
    return member.api.resend_letters("billing", ResendRequest(offsets, **said))


@pytest.fixture
def three(member: FailingMember) -> FailingMember:
    """All three messages of `orders` are dead letters."""
    member.send_back(*(member.failed(each) for each in range(3)), retries_max=0)
    return member


def test_a_group_without_dead_letters_has_none(member: FailingMember) -> None:
    marks = member.api.dead_letters("billing")
    assert (marks.min, marks.max, marks.resent) == (0, 0, ())


def test_a_letter_is_sent_as_a_new_message_with_its_own_id(three: FailingMember) -> None:
    [told] = resend(three, 1).letters
    assert (told.outcome, told.topic, told.queue, told.offset_sent) == ("sent", "orders", 0, 3)
    [again] = three.read("orders", 3)
    assert (again["body"], again["key"], again["tag"]) == (b"1", b"k-1", "paid")
    assert again["properties"] == {"own": "1", "UNIQ_KEY": "broker-0:orders:0:1"}


def test_a_letter_is_sent_once_unless_it_is_asked_for_again(broker: Http, three: FailingMember) -> None:
    before = broker.total("orders")
    assert outcomes(resend(three, 2, 0)) == [(0, "sent"), (2, "sent")]
    assert three.api.dead_letters("billing").resent == (OffsetRange(0, 1), OffsetRange(2, 3))
    assert outcomes(resend(three, 0, 1, 2)) == [(0, "sent_before"), (1, "sent"), (2, "sent_before")]
    assert three.api.dead_letters("billing").resent == (OffsetRange(0, 3),)
    assert broker.total("orders") == before + 3
    assert outcomes(resend(three, 0, again=True)) == [(0, "sent")]
    assert broker.total("orders") == before + 4
    assert broker.total("%25DLQ%25billing") == 3, "letters stay where they are"


def test_a_dry_run_sends_nothing(broker: Http, three: FailingMember) -> None:
    answer = resend(three, 0, 9, dry_run=True)
    assert answer.dry_run
    assert outcomes(answer) == [(0, "sent"), (9, "not_found")]
    assert three.api.dead_letters("billing").resent == ()
    assert broker.total("orders") == 3


def test_a_letter_whose_topic_takes_nothing_stays(three: FailingMember) -> None:
    three.api.alter_topic("orders", AlterTopicRequest(perm=4))
    assert outcomes(resend(three, 0)) == [(0, "no_topic")]
    three.api.delete_topic("orders")
    assert outcomes(resend(three, 0)) == [(0, "no_topic")]
    assert three.api.dead_letters("billing").resent == ()


def test_the_marks_go_with_the_letters(three: FailingMember) -> None:
    resend(three, 0)
    three.api.delete_topic(DEAD)
    three.send_back(three.failed(1), retries_max=0)
    marks = three.api.dead_letters("billing")
    assert (marks.max, marks.resent) == (1, ())


def test_offsets_that_nobody_can_mean_are_refused(three: FailingMember) -> None:
    for offsets in ((), (1, 1), tuple(range(1_001))):
        with pytest.raises(InvalidRequest, match="offsets"):
            resend(three, *offsets)
