"""Dead letters are listed, shown and sent again over all brokers of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rocketq import Client, LocalCluster
from rocketq.errors import InvalidConfiguration, NotFound, ReservedName
from tests.client.consuming.groups_support import take
from tests.support.conditions import WAIT_MS, wait_until


@pytest.fixture
def mq(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster.nameservers) as client:
        yield client


@pytest.fixture
def group(mq: Client, topic: str) -> str:
    """A group of which eight messages of the topic, four on each broker, are dead letters."""
    mq.create_topic(topic, queues=1)
    mq.groups.set(topic, retries_max=0)
    with mq.producer() as producer:
        for number in range(8):
            tag = "even" if number % 2 == 0 else "odd"
            producer.send(topic, b"%d" % number, key=f"k-{number}", tag=tag, properties={"own": "1"})
    with mq.consumer(topic, topic, ack="manual") as consumer:
        for message in take(consumer, 8):
            message.nack(reason=f"no {message.body.decode()}")
        wait_until(lambda: sum(mq.dead_letters(topic).count().values()) == 8)
    return topic


def test_letters_say_what_became_of_their_messages(mq: Client, group: str) -> None:
    found = list(mq.dead_letters(group).list(page_messages=3))
    assert sorted(letter.body for letter in found) == [b"%d" % n for n in range(8)]
    for letter in found:
        assert letter.topic == group
        assert (letter.attempts, letter.reason) == (1, f"no {letter.body.decode()}")
        assert mq.query.by_id(letter.message_id).body == letter.body
        assert letter.properties.keys() == {"own", "UNIQ_KEY"}
        assert not letter.is_resent
        assert mq.dead_letters(group).show(letter.letter_id) == letter


def test_letters_are_filtered(mq: Client, group: str) -> None:
    chosen: list[tuple[dict[str, Any], int]] = [
        ({"tag": "odd"}, 4), ({"key": "k-3"}, 1), ({"key": b"k-3", "tag": "even"}, 0),
        ({"topic": "other"}, 0), ({"topic": group}, 8), ({"resent": True}, 0), ({"resent": False}, 8),
        ({"end": 1}, 0), ({"begin": 1}, 8),
    ]  # fmt: skip
    for one, count in chosen:
        assert len(list(mq.dead_letters(group).list(**one))) == count, one


def test_what_is_sent_again_reaches_the_group_once(mq: Client, group: str) -> None:
    letters = mq.dead_letters(group)
    would = letters.resend(tag="odd", dry_run=True)
    assert {(str(each.outcome), each.message_id) for each in would} == {("sent", None)}
    sent = letters.resend(tag="odd")
    assert [str(each.outcome) for each in sent] == ["sent"] * 4
    assert letters.resend(tag="odd") == [], "they are marked"
    assert len(list(letters.list(resent=True))) == 4
    named = letters.resend(sent[0].letter_id)
    assert [str(each.outcome) for each in named] == ["sent_before"]
    ids = {letter.unique_id for letter in letters.list(resent=True)}
    with mq.consumer(group, group) as consumer:
        found = take(consumer, 4)
        assert {message.message_id for message in found} == {each.message_id for each in sent}
        assert {message.unique_id for message in found} == ids
        assert {(message.attempt, message.tag) for message in found} == {(1, "odd")}
        assert consumer.poll(timeout_ms=50) == []
        assert [str(each.outcome) for each in letters.resend([sent[0].letter_id], again=True)] == ["sent"]
        [again] = consumer.poll(timeout_ms=WAIT_MS)
        assert again.unique_id == next(m.unique_id for m in found if m.message_id == sent[0].message_id)


def test_a_group_is_described_with_its_retries_and_dead_letters(mq: Client, group: str) -> None:
    with mq.consumer(group, group, ack="manual", max_attempts=5) as consumer:
        mq.dead_letters(group).resend()
        for message in take(consumer, 8):
            message.nack("1ms")
        take(consumer, 8)
    known = mq.groups.describe(group)
    assert sum(each.dead_letters for each in known.values()) == 8
    retried = mq.groups.progress(group, f"%RETRY%{group}")
    assert [each.lag for each in retried] == [4, 4]


def test_deleting_a_group_deletes_what_it_would_try_again_and_no_letter(mq: Client, group: str) -> None:
    with mq.consumer(group, group, ack="manual", max_attempts=5) as consumer:
        mq.dead_letters(group).resend()
        for message in take(consumer, 8):
            message.nack("1h")
        wait_until(lambda: f"%RETRY%{group}" in mq.topics())
    assert sorted(mq.groups.delete(group)) == ["broker-a", "broker-b"]
    wait_until(lambda: f"%RETRY%{group}" not in mq.topics())
    assert len(list(mq.dead_letters(group).list())) == 8


def test_what_is_no_letter_of_the_group_is_refused(mq: Client, group: str) -> None:
    letters = mq.dead_letters(group)
    for wrong in ("17", f"broker-a:{group}:0:0", "broker-a:%DLQ%other:0:0"):
        with pytest.raises(InvalidConfiguration, match="no dead letter of group"):
            letters.show(wrong)
        with pytest.raises(InvalidConfiguration, match="no dead letter of group"):
            letters.resend(wrong)
    with pytest.raises(NotFound):
        letters.show(f"broker-a:%DLQ%{group}:0:99")
    assert [str(one.outcome) for one in letters.resend(f"broker-a:%DLQ%{group}:0:99")] == ["not_found"]
    with pytest.raises(InvalidConfiguration, match="together with letters"):
        letters.resend(f"broker-a:%DLQ%{group}:0:0", tag="odd")
    with pytest.raises(ReservedName):
        mq.dead_letters("%RETRY%g")


def test_a_group_without_letters_has_none(mq: Client, topic: str) -> None:
    letters = mq.dead_letters(topic)
    assert (list(letters.list()), letters.resend(), sum(letters.count().values())) == ([], [], 0)
