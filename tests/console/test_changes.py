"""Changes from the console: only where allowed, only from its own pages, and each does what it says."""

from __future__ import annotations

import pytest

from rocketq import Client, Message, TransactionState
from rocketq.model import TimerStatus
from tests.console.conftest import Fields, Visitor
from tests.support.conditions import wait_until


@pytest.fixture
def behind(mq: Client, topic: str) -> str:
    """A topic with five messages, and a group of its name that has committed all of them."""
    mq.create_topic(topic, 1, brokers=["broker-a"])
    mq.producer().send_batch(topic, [Message(b"x")] * 5)
    mq.groups.set(topic)
    mq.groups.reset(topic, topic, "latest")
    return topic


def committed(mq: Client, group: str) -> list[int | None]:
    return [each.committed for each in mq.groups.progress(group)]


def reset_fields(group: str) -> Fields:
    return {"topic": group, "to": "earliest", "offset": "", "time": "", "confirm": group}


def test_a_console_that_only_shows_refuses_every_form(looking: Visitor, mq: Client, behind: str) -> None:
    paths = (
        f"/groups/{behind}/reset",
        f"/groups/{behind}/dead-letters",
        "/delayed/message?id=x",
        "/transactions/x",
    )
    for path in paths:
        answer = looking.post(path, reset_fields(behind), {"origin": looking.address})
        assert answer.status == 403
        assert "--allow-changes" in answer.text
    assert committed(mq, behind) == [5]


def test_a_form_needs_the_token_of_a_page(changing: Visitor, mq: Client, behind: str) -> None:
    for token in ({}, {"token": ""}, {"token": "guessed"}, {"token": "é"}):
        answer = changing.post(f"/groups/{behind}/reset", {**reset_fields(behind), **token})
        assert answer.status == 400
        assert "not from a page of this console" in answer.text
    assert committed(mq, behind) == [5]


def test_a_page_of_another_site_can_neither_send_a_form_nor_be_taken_for_ours(
    changing: Visitor, mq: Client, behind: str
) -> None:
    path = f"/groups/{behind}/reset"
    foreign = changing.post(path, reset_fields(behind), {"origin": "http://evil.example"})
    assert foreign.status == 403
    rebound = changing.get("/", {"host": "evil.example"})
    assert rebound.status == 421
    plain = changing.post(path, reset_fields(behind), {"content-type": "text/plain"})
    assert plain.status == 415
    assert committed(mq, behind) == [5]


def test_a_reset_is_made_once_the_name_is_typed(changing: Visitor, mq: Client, behind: str) -> None:
    preview = f"/groups/{behind}/reset?topic={behind}&to=earliest"
    wrong = changing.send(preview, {**reset_fields(behind), "confirm": "other"}, f"/groups/{behind}/reset")
    assert wrong.status == 400
    assert committed(mq, behind) == [5]
    done = changing.send(preview, reset_fields(behind), f"/groups/{behind}/reset")
    assert "Done." in done.text
    assert "5 again" in done.text
    assert committed(mq, behind) == [0]


def test_a_reset_under_members_is_refused_unless_their_queues_are_taken(
    changing: Visitor, mq: Client, behind: str
) -> None:
    preview = f"/groups/{behind}/reset?topic={behind}&to=earliest"
    with mq.consumer(behind, [behind]):
        wait_until(lambda: mq.groups.members(behind))
        page = changing.get(preview)
        assert "1 member consumes now" in page.text
        refused = changing.send(preview, reset_fields(behind), f"/groups/{behind}/reset")
        assert refused.status == 409
        assert committed(mq, behind) == [5]


def test_chosen_dead_letters_are_sent_again_and_marked(changing: Visitor, mq: Client, topic: str) -> None:
    mq.create_topic(topic, 1, brokers=["broker-a"])
    mq.groups.set(topic, retries_max=0)
    mq.producer().send(topic, b"cannot be handled", key="o-1")
    with mq.consumer(topic, [topic], ack="manual") as consumer:
        for message in consumer:
            message.nack(reason="no such <b>account</b>")
            break
        wait_until(lambda: sum(mq.dead_letters(topic).count().values()) == 1)
    path = f"/groups/{topic}/dead-letters"
    page = changing.get(path)
    assert "cannot be handled" in page.text
    assert "no such <b>account</b>" in page.text
    assert "<b>" not in page.html
    letter = next(iter(mq.dead_letters(topic).list()))
    none = changing.send(path, {})
    assert "no letter is chosen" in none.text
    done = changing.send(path, {"letter": [letter.letter_id]})
    assert "sent again" in done.text
    assert [each.is_resent for each in mq.dead_letters(topic).list()] == [True]


def test_a_delayed_message_is_listed_shown_and_cancelled(changing: Visitor, mq: Client, topic: str) -> None:
    mq.create_topic(topic, 1)
    sent = mq.producer().send(topic, b"much later", key="o-9", delay="10m")
    assert str(sent.timer_id) in changing.get(f"/delayed?topic={topic}").text
    path = f"/delayed/message?id={sent.timer_id}"
    assert "much later" in changing.get(path).text
    assert "It will not be delivered" in changing.send(path, {"id": str(sent.timer_id)}).text
    assert mq.timers.show(str(sent.timer_id)).status is TimerStatus.CANCELLED


@pytest.mark.parametrize(
    ("state", "told", "delivered"), [("COMMIT", "committed", 1), ("ROLLBACK", "rolled back", 0)]
)
def test_an_undecided_transaction_is_listed_shown_and_decided(
    changing: Visitor, mq: Client, topic: str, state: str, told: str, delivered: int
) -> None:
    mq.create_topic(topic, 1, brokers=["broker-a"])
    with mq.transactions(topic, lambda _: TransactionState.UNKNOWN) as producer:
        with producer.transaction(topic, b"half of it", key="tx-1") as begun:
            begun.leave_to_check()
        name = begun.id
        # The producer's first heartbeat may come after its first message.
        wait_until(lambda: "This is a producer group" in changing.get(f"/groups/{topic}").text)
    assert name[:12] in changing.get(f"/transactions?group={topic}").text
    path = f"/transactions/{name}"
    assert "half of it" in changing.get(path).text
    assert changing.send(path, {"state": "MAYBE"}).status == 400
    assert told in changing.send(path, {"state": state}).text
    assert changing.get(path).status == 404
    stored = mq.describe_topic(topic)["broker-a"].queues[0]
    assert stored.max == delivered
