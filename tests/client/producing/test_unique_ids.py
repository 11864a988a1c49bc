"""Each message has an id of its own, which its copies share and no other message has."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketq import LocalCluster, Message, SendFailed
from rocketq.producing.accumulation.message_columns import MessageColumns
from rocketq.producing.unique_ids import ID_CHARACTERS, UNIQUE_IDS, IdRange, identified
from rocketq.protocol.message_schema import from_messages
from tests.support.patience import PatientClient
from tests.support.small_cluster import TOPIC, SmallCluster
from tests.support.small_server import Answer


def stored_ids(small: SmallCluster) -> list[str]:
    """Return the ids of all messages, by broker and in their order."""
    return [
        dict(properties or ())["UNIQ_KEY"]
        for broker in small.brokers
        for log in broker.queues
        for _, batch in log.batches
        for properties in batch.column("properties").to_pylist()
    ]


@pytest.fixture
def small() -> Iterator[SmallCluster]:
    with SmallCluster() as cluster:
        yield cluster


def test_ids_of_many_threads_are_all_different_and_have_one_form() -> None:
    ids: list[str] = []

    def make() -> None:
        ids.extend(UNIQUE_IDS.one() for _ in range(500))
        ids.extend(UNIQUE_IDS.many(500).column(500).to_pylist())

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 4_000
    assert all(re.fullmatch(f"[0-9A-F]{{{ID_CHARACTERS}}}", each) for each in ids)


def test_the_column_of_a_range_has_the_ids_of_its_rows() -> None:
    some = IdRange("A" * 25, 0x00000FFFF0E)
    assert some.column(1_000).to_pylist() == [some.id_of(row) for row in range(1_000)]


def test_a_child_of_a_fork_makes_other_ids() -> None:
    receive, send = os.pipe()
    before = UNIQUE_IDS.one()
    child = os.fork()
    if child == 0:
        os.write(send, UNIQUE_IDS.one().encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(receive, 100).decode() not in {before, UNIQUE_IDS.one()}
    os.close(receive)
    os.close(send)


def test_a_message_keeps_its_id_when_its_answer_is_lost(small: SmallCluster) -> None:
    for broker in small.brokers:
        broker.script["send"] = [lambda _: Answer(hang_up=True)]
    with (
        PatientClient(small.nameserver) as mq,
        mq.producer(retries=4, idempotent=False) as producer,
    ):
        sent = producer.send(TOPIC, b"x")
    assert stored_ids(small) == [sent.unique_id] * 3, "two answers were lost, and each copy is stored"


def test_a_send_that_failed_tells_the_id_for_another_one(small: SmallCluster) -> None:
    for broker in small.brokers:
        broker.script["send"] = [lambda _: Answer(hang_up=True)]
    with PatientClient(small.nameserver) as mq, mq.producer(retries=1) as producer:
        with pytest.raises(SendFailed) as caught:
            producer.send(TOPIC, b"x")
        unique_id = caught.value.facts["unique_id"]
        producer.send(TOPIC, b"x", properties={"UNIQ_KEY": unique_id})
    assert stored_ids(small) == [unique_id] * 3


def test_submitted_messages_keep_their_ids_when_their_answer_is_lost(small: SmallCluster) -> None:
    for broker in small.brokers:
        broker.script["send"] = [lambda _: Answer(hang_up=True)]
    with (
        PatientClient(small.nameserver) as mq,
        mq.producer(retries=4, linger_ms=60_000, idempotent=False) as producer,
    ):
        futures = [producer.submit(TOPIC, b"x", properties={"n": "1"} if n == 1 else None) for n in range(3)]
        producer.flush()
        ids = [future.result().unique_id for future in futures]
    assert len(set(ids)) == 3
    assert stored_ids(small) == ids * 3


def test_a_message_that_is_sent_again_by_its_owner_keeps_the_id_it_has(small: SmallCluster) -> None:
    with PatientClient(small.nameserver) as mq, mq.producer(linger_ms=60_000) as producer:
        first = producer.send(TOPIC, b"x")
        again = {"UNIQ_KEY": first.unique_id or ""}
        second = producer.send(TOPIC, b"x", properties=again)
        third = producer.submit(TOPIC, b"x", properties=again)
        dropped, other = producer.submit(TOPIC, b"y"), producer.submit(TOPIC, b"z")
        assert dropped.cancel()
        producer.flush()
        assert first.unique_id == second.unique_id == third.result().unique_id
        kept = [first.unique_id] * 3 + [other.result().unique_id]
    assert sorted(stored_ids(small)) == sorted(kept)


TEXTS = st.sampled_from(["", "a", "bü", "UNIQ_KEY", "TRACE_ON"])
PROPERTIES = st.none() | st.dictionaries(
    st.sampled_from(["a", "b", "UNIQ_KEY"]), st.text(min_size=1, max_size=3), max_size=3
)


@given(rows=st.lists(PROPERTIES, min_size=1, max_size=12), data=st.data())
def test_each_message_of_a_batch_gets_an_id_unless_it_has_one(
    rows: list[dict[str, str] | None], data: st.DataObject
) -> None:
    whole = from_messages([Message(b"x", properties=row) for row in rows])
    begin = data.draw(st.integers(0, len(rows) - 1))
    part = whole.slice(begin, data.draw(st.integers(1, len(rows) - begin)))
    ids = IdRange("A" * 25, 7)
    made = identified(part, ids)
    made.validate(full=True)
    expected = [
        list({**(row or {}), **({} if row and "UNIQ_KEY" in row else {"UNIQ_KEY": ids.id_of(at)})}.items())
        for at, row in enumerate(rows[begin : begin + part.num_rows])
    ]
    assert made.column("properties").to_pylist() == expected
    assert made.drop_columns(["properties"]).equals(part.drop_columns(["properties"]))


def test_messages_that_are_sent_as_a_batch_have_ids_if_they_are_asked_for(small: SmallCluster) -> None:
    with PatientClient(small.nameserver) as mq, mq.producer() as producer:
        producer.send_batch(TOPIC, [Message(b"x")] * 3, unique_ids=True)
        with producer.batch_sender(unique_ids=True) as sender:
            sender.add(TOPIC, [Message(b"x")])
            sender.finish()
    assert len(set(stored_ids(small))) == 4


def test_messages_that_are_sent_as_a_batch_stay_as_they_are(small: SmallCluster) -> None:
    with PatientClient(small.nameserver) as mq, mq.producer() as producer:
        (sent,) = producer.send_batch(TOPIC, [Message(b"x")])
    assert sent.unique_id is None
    (stored,) = [batch for broker in small.brokers for _, batch in broker.queues[0].batches]
    assert stored.column("properties").to_pylist() == [None]


def test_a_message_and_its_copies_are_found_by_their_id(cluster: LocalCluster, topic: str) -> None:
    with PatientClient(cluster.nameservers) as mq, mq.producer() as producer:
        mq.create_topic(topic, queues=1)
        sent = producer.send(topic, b"x", key="other")
        assert sent.unique_id is not None
        copy = producer.submit(topic, b"x", properties={"UNIQ_KEY": sent.unique_id, "KEYS": "a b"}).result()
        producer.send(topic, b"no copy", key=sent.unique_id)
        while any((found := mq.query.by_unique_id(topic, sent.unique_id)).lag_bytes.values()):
            pass
        assert {each.message_id for each in found.messages} == {sent.message_id, copy.message_id}
        assert found.complete


@given(rows=st.lists(st.none() | st.dictionaries(TEXTS, st.none() | TEXTS, max_size=3), max_size=12))
def test_a_batch_of_submitted_messages_has_the_ids_that_any_batch_would_get(
    rows: list[dict[str, str] | None],
) -> None:
    columns = MessageColumns()
    for row in rows:
        columns.add(b"x", 7, properties=row)
    ids = IdRange("A" * 25, 7)
    made = columns.to_batch(ids)
    made.validate(full=True)
    assert made.to_pylist() == identified(columns.to_batch(), ids).to_pylist()
