"""Producing to a real cluster: every message once, where it belongs, in order."""

from __future__ import annotations

import itertools
import threading
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocketq import (
    Client,
    Closed,
    InvalidBatch,
    InvalidConfiguration,
    InvalidMessage,
    InvalidName,
    Message,
    MessageQueue,
    QueueNotFound,
    ReservedName,
    RouteNotFound,
    SendResult,
    SendStatus,
    TooLarge,
)
from rocketq.config import Compression
from rocketq.protocol.hashing import hash_value
from rocketq.protocol.message_schema import from_messages

_fresh = itertools.count()


def read_all(mq: Client, topic: str, count: int) -> pa.Table:
    """Return the first `count` messages of a topic, from the beginning of all its queues."""
    batches: list[pa.RecordBatch] = []
    with mq.pull_consumer(topic, start="earliest") as consumer:
        while sum(batch.num_rows for batch in batches) < count:
            batch = consumer.poll_arrow(timeout_ms=60_000)
            assert batch.num_rows, "the rest never came"
            batches.append(batch)
    return pa.Table.from_batches(batches)


def test_a_sent_message_comes_back_as_it_was(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=1)
    with mq.producer() as producer:
        sent = producer.send(
            topic, b"\x00body", key=b"k\xff", tag="paid", properties={"region": "eu", "n": "1"}
        )
    assert sent.status is SendStatus.SEND_OK
    with mq.pull_consumer(topic, start="earliest") as consumer:
        (message,) = consumer.poll(timeout_ms=60_000)
    assert (message.queue, message.offset) == (sent.queue, sent.offset)
    assert message.message_id == sent.message_id
    assert (message.body, message.key, message.tag) == (b"\x00body", b"k\xff", "paid")
    assert message.properties == {"region": "eu", "n": "1", "UNIQ_KEY": sent.unique_id}
    assert message.born_at_us is not None
    assert message.born_at_us <= message.stored_at_us


def test_text_is_sent_as_utf8_and_an_empty_body_is_a_message(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=1)
    with mq.producer() as producer:
        producer.send(topic, "grüße", key="ключ")
        producer.send(topic, b"")
        producer.submit(topic, "").result()
        producer.send_batch(topic, [Message(b"", tag="marker")])
    table = read_all(mq, topic, 4)
    assert sorted(table["body"].to_pylist()) == [b"", b"", b"", "grüße".encode()]
    assert "ключ".encode() in table["key"].to_pylist()


@pytest.mark.parametrize(
    ("given", "compression"),
    [
        ({"key": b"\xff\x00", "tag": "größer", "properties": {"a=b": "c&d", "": "ü"}}, None),
        ({"properties": {}}, None),
        ({"properties": {"long": "x" * 20_000}}, None),
        ({"key": "k"}, "lz4"),
    ],
    ids=["plain", "no property at all", "too long for a query", "compressed"],
)
def test_a_message_comes_back_as_it_was_whatever_its_form(
    mq: Client, topic: str, given: dict[str, Any], compression: Compression | None
) -> None:
    mq.create_topic(topic, queues=1)
    with mq.producer(compression=compression, unique_ids=False) as producer:
        assert producer.send(topic, b"body", **given).unique_id is None
    (row,) = read_all(mq, topic, 1).to_pylist()
    key = given.get("key")
    assert row["key"] == (key.encode() if isinstance(key, str) else key)
    assert row["tag"] == given.get("tag")
    properties = given.get("properties")
    assert row["properties"] == (None if properties is None else list(properties.items()))


def test_sends_go_round_all_queues_of_all_brokers(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=3)
    with mq.producer() as producer:
        queues = [producer.send(topic, b"x").queue for _ in range(12)]
    assert Counter(queues) == dict.fromkeys(mq.route(topic).write_queues(), 2)
    assert {queue.broker for queue in queues} == {"broker-a", "broker-b"}


def test_messages_of_one_ordering_key_share_a_queue_and_keep_their_order(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=4)
    with mq.producer() as producer:
        futures = [
            producer.submit(topic, b"%d" % n, key=b"k%d" % (n % 5), ordering_key=b"k%d" % (n % 5))
            for n in range(500)
        ]
        producer.flush()
        placed = [future.result() for future in futures]
    queues = mq.route(topic).write_queues()
    for n, result in enumerate(placed):
        assert result.queue == queues[hash_value(b"k%d" % (n % 5)) % len(queues)]
    for key in range(5):
        offsets = [result.offset for n, result in enumerate(placed) if n % 5 == key]
        assert offsets == sorted(offsets)


def test_send_and_send_batch_and_submit_agree_on_the_queue_of_a_key(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=4)
    keys = [b"key-%d" % n for n in range(40)]
    with mq.producer() as producer:
        one_by_one = {key: producer.send(topic, b"", key=key, ordering_key=key).queue for key in keys}
        submitted = {key: producer.submit(topic, b"", key=key, ordering_key=key) for key in keys}
        producer.flush()
        producer.send_batch(topic, [Message(b"", key) for key in keys], ordering_key="key")
    table = read_all(mq, topic, 3 * len(keys))
    assert {key: future.result().queue for key, future in submitted.items()} == one_by_one
    found = zip(table["key"], table["broker"], table["queue"], strict=True)
    for key, broker, queue in found:
        assert one_by_one[key.as_py()] == MessageQueue(topic, broker.as_py(), queue.as_py())


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    keys=st.lists(st.none() | st.binary(max_size=8), min_size=1, max_size=400),
    placing=st.sampled_from([{"selection": "round_robin"}, {"ordering_key": "key"}, {"selection": "random"}]),
    compression=st.sampled_from([None, "lz4", "zstd"]),
    slice_bytes=st.integers(100, 5_000),
)
def test_the_results_of_a_batch_cover_each_message_exactly_once(
    mq: Client,
    keys: list[bytes | None],
    placing: dict[str, str],
    compression: str | None,
    slice_bytes: int,
) -> None:
    topic = f"batch-cover-{next(_fresh)}"
    mq.create_topic(topic, queues=3)
    bodies = [b"%d" % n for n in range(len(keys))]
    with mq.producer(slice_bytes=slice_bytes, request_bytes=3 * slice_bytes) as producer:
        results = producer.send_batch(
            topic,
            [Message(body, key) for body, key in zip(bodies, keys, strict=True)],
            compression=compression,  # type: ignore[arg-type]
            **placing,  # type: ignore[arg-type]
        )
    assert sum(result.count for result in results) == len(keys)
    table = read_all(mq, topic, len(keys))
    assert sorted(table["body"].to_pylist()) == sorted(bodies)
    stored = set(zip(*(table[name].to_pylist() for name in ("broker", "queue", "offset")), strict=True))
    told = {
        (result.queue.broker, result.queue.queue, result.offset + n)
        for result in results
        for n in range(result.count)
    }
    assert stored == told
    place = zip(*(table[name].to_pylist() for name in ("broker", "queue", "offset", "body")), strict=True)
    number_at = {(broker, queue, offset): int(body) for broker, queue, offset, body in place}
    firsts = [number_at[r.queue.broker, r.queue.queue, r.offset] for r in results]
    assert firsts == sorted(firsts), "results come in the order of their first messages"
    by_queue: dict[tuple[str, int], list[int]] = defaultdict(list)
    for broker, queue, body in zip(table["broker"], table["queue"], table["body"], strict=True):
        by_queue[broker.as_py(), queue.as_py()].append(int(body.as_py()))
    if placing != {"selection": "round_robin"}:
        assert all(numbers == sorted(numbers) for numbers in by_queue.values())


KEYS = [b"%d" % (n % 7) for n in range(50)]
TABLE = pa.table({"body": [b"%d" % n for n in range(50)], "key": ["found"] * 50, "customer": KEYS})
BODIES = TABLE.select(["body", "key"])


@pytest.mark.parametrize(
    ("data", "ordering_key"),
    [
        (TABLE, "customer"),
        (TABLE.combine_chunks().to_batches()[0], "customer"),
        (TABLE.to_pandas(), "customer"),
        (TABLE.to_reader(), "customer"),
        (BODIES, pa.array(KEYS)),
        (BODIES, pa.chunked_array([KEYS[:20], KEYS[20:]])),
        (BODIES, [key.decode() for key in KEYS]),
        (BODIES, [KEYS[0].decode(), *KEYS[1:]]),
        (BODIES, np.array([key.decode() for key in KEYS], dtype=object)),
        (BODIES, pa.array([key.decode() for key in KEYS]).dictionary_encode()),
        ([Message(b"%d" % n, key) for n, key in enumerate(KEYS)], "key"),
        ([Message(b"%d" % n, b"found") for n in range(50)], KEYS),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_batch_is_ordered_by_a_column_or_by_an_array_of_keys(
    mq: Client, topic: str, data: object, ordering_key: object
) -> None:
    mq.create_topic(topic, queues=4)
    with mq.producer() as producer:
        producer.send_batch(topic, data, ordering_key=ordering_key)  # type: ignore[arg-type]
    queues = mq.route(topic).write_queues()
    table = read_all(mq, topic, 50)
    assert "customer" not in table.column_names
    for body, broker, queue in zip(table["body"], table["broker"], table["queue"], strict=True):
        wanted = queues[hash_value(KEYS[int(body.as_py())]) % len(queues)]
        assert (broker.as_py(), queue.as_py()) == (wanted.broker, wanted.queue)


def test_unkeyed_messages_of_an_ordered_batch_are_spread(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=2)
    with mq.producer() as producer:
        results = producer.send_batch(topic, [Message(b"x")] * 100, ordering_key=[None] * 100)
    assert {result.queue for result in results} == set(mq.route(topic).write_queues())


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"selection": "hash"}, 'ordering_key="key" orders by the column key'),
        ({"selection": "hash", "queue": 0, "ordering_key": "key"}, "contradicts ordering_key"),
        ({"selection": "random", "ordering_key": "key"}, "contradicts ordering_key"),
        ({"queue": 0, "ordering_key": "key"}, "contradicts ordering_key"),
        ({"queue": 0, "selection": "random"}, "contradicts selection"),
        ({"ordering_key": "costumer"}, "no such column.*Its columns are body, key, customer"),
        ({"ordering_key": [b"one"]}, "it has 1 keys for 50 messages"),
        ({"ordering_key": b"one"}, "the name of a column, or one key for each message"),
        ({"ordering_key": list(range(50))}, "bytes, text or None"),
    ],
)
def test_what_orders_a_batch_must_be_clear(
    mq: Client, topic: str, arguments: dict[str, object], why: str
) -> None:
    mq.create_topic(topic, queues=1)
    data = TABLE if arguments.get("ordering_key") == "costumer" else BODIES
    with mq.producer() as producer, pytest.raises(InvalidConfiguration, match=why):
        producer.send_batch(topic, data, **arguments)  # type: ignore[arg-type]
    extents = [queue.max for broker in mq.describe_topic(topic).values() for queue in broker.queues]
    assert extents == [0, 0], "nothing was sent"


def test_a_large_batch_reaches_every_queue_in_several_requests(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=2)
    body = bytes(1_000)
    table = pa.table({"body": pa.array([body] * 30_000, pa.binary())})
    with mq.producer(timeout_ms=60_000) as producer:
        results = producer.send_batch(topic, table)
    assert sum(result.count for result in results) == 30_000
    spread = Counter[MessageQueue]()
    for result in results:
        spread[result.queue] += result.count
    assert set(spread) == set(mq.route(topic).write_queues())
    assert max(spread.values()) < 2 * min(spread.values())


def test_a_dataframe_is_sent_as_it_is(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=1)
    frame = pd.DataFrame({"body": ["a", "b"], "key": ["1", None], "properties": [{"p": "q"}, None]})
    with mq.producer() as producer:
        producer.send_batch(topic, frame)
    table = read_all(mq, topic, 2)
    assert sorted(table["body"].to_pylist()) == [b"a", b"b"]
    assert table["born_at"].null_count == 0
    assert [("p", "q")] in table["properties"].to_pylist()


def test_an_explicit_queue_is_where_everything_goes(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=3)
    wanted = MessageQueue(topic, "broker-b", 2)
    with mq.producer() as producer:
        assert producer.send(topic, b"1", queue=wanted).queue == wanted
        assert producer.submit(topic, b"2", queue=wanted).result(60).queue == wanted
        results = producer.send_batch(topic, [Message(b"3")] * 200, queue=wanted)
        assert {result.queue for result in results} == {wanted}
        with pytest.raises(QueueNotFound):
            producer.send(topic, b"4", queue=MessageQueue(topic, "broker-b", 3))
        with pytest.raises(InvalidConfiguration, match="2 brokers have a queue"):
            producer.send(topic, b"5", queue=1)
        with pytest.raises(InvalidConfiguration, match="ordering_key"):
            producer.send(topic, b"6", queue=wanted, ordering_key=b"k")


def test_a_missing_topic_is_created_on_every_master_and_used_at_once(mq: Client, topic: str) -> None:
    with mq.producer(auto_create_queues=2) as producer:
        assert producer.send(topic, b"first").status is SendStatus.SEND_OK
    route = mq.route(topic)
    assert [(q.broker, q.write_queues) for q in route.queues] == [("broker-a", 2), ("broker-b", 2)]


def test_a_missing_topic_is_an_error_where_creating_it_is_turned_off(mq: Client, topic: str) -> None:
    mq.create_topic(topic)
    near = topic[:-1] + "x"
    with mq.producer(auto_create_topics=False) as producer, pytest.raises(RouteNotFound, match=topic):
        producer.send(near, b"x")


def test_many_threads_may_find_a_topic_missing_at_the_same_time(mq: Client, topic: str) -> None:
    results: list[SendResult] = []
    with mq.producer() as producer:
        threads = [
            threading.Thread(target=lambda: results.append(producer.send(topic, b"x"))) for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 6


def test_submitted_messages_share_requests_and_each_future_tells_its_place(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=1)
    with mq.producer(linger_ms=1_000) as producer:
        futures = [producer.submit(topic, b"%d" % n) for n in range(1_000)]
    places = {(f.result().queue, f.result().offset) for f in futures}
    assert len(places) == 1_000
    table = read_all(mq, topic, 1_000)
    by_place = {
        (b, o): body
        for b, o, body in zip(*(table[c].to_pylist() for c in ("broker", "offset", "body")), strict=True)
    }
    for n, future in enumerate(futures):
        assert by_place[future.result().queue.broker, future.result().offset] == b"%d" % n


def test_closing_sends_the_oneway_messages_that_still_wait(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=1)
    with mq.producer(sender_threads=1) as producer:
        for number in range(200):
            producer.send_oneway(topic, b"%d" % number)
    assert producer.oneway_lost == 0
    assert set(read_all(mq, topic, 200)["body"].to_pylist()) == {b"%d" % number for number in range(200)}


def test_a_oneway_message_arrives_without_an_answer(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=1)
    with mq.producer() as producer:
        producer.send_oneway(topic, b"fire and forget")
    assert read_all(mq, topic, 1)["body"].to_pylist() == [b"fire and forget"]


def test_what_a_broker_refuses_for_its_content_is_raised_at_once(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=1, message_bytes_max=1_000)
    with mq.producer() as producer:
        with pytest.raises(TooLarge):
            producer.send(topic, bytes(1_001))
        with pytest.raises(TooLarge):
            producer.send_batch(topic, [Message(bytes(1_001))])
        with pytest.raises(InvalidBatch):
            producer.send(topic, b"x", properties={"n": 1})  # type: ignore[dict-item]
        with pytest.raises(InvalidName):
            producer.send("not a name", b"x")


def test_what_no_message_may_have_is_refused_before_anything_is_sent(mq: Client, topic: str) -> None:
    """Not even the topic is made; and `submit` raises itself, so the message takes no others along."""
    bad = [Message(b"x")] * 3 + [Message(b"x", properties={"a": "b", "TIMER_ROLL_TIMES": "5"})]
    with mq.producer() as producer:
        for call in (producer.send, producer.submit, producer.send_oneway):
            with pytest.raises(InvalidMessage, match="the property 'TRAN_MSG' is written by"):
                call(topic, b"x", properties={"TRAN_MSG": "true"})
            with pytest.raises(InvalidMessage, match=r"the tag 'A\|B' has a '\|'"):
                call(topic, b"x", tag="A|B")
        for data in (bad, from_messages(bad), pa.Table.from_batches([from_messages([each]) for each in bad])):
            with pytest.raises(InvalidMessage, match="'TIMER_ROLL_TIMES' in row 3"):
                producer.send_batch(topic, data)
        with pytest.raises(InvalidMessage, match="the tag 'A B' in row 1 has white space"):
            producer.send_batch(topic, pd.DataFrame({"body": ["a", "b"], "tag": [None, "A B"]}))
    with pytest.raises(RouteNotFound):
        mq.route(topic)


@pytest.mark.parametrize("name", ["%RETRY%billing", "%DLQ%billing", "TBW102", "rmq_sys_x"])
def test_a_reserved_topic_is_neither_made_nor_sent_to(mq: Client, name: str) -> None:
    with pytest.raises(ReservedName):
        mq.create_topic(name)
    with mq.producer() as producer:
        for send in (producer.send, producer.submit):
            with pytest.raises(ReservedName):
                send(name, b"x")
        with pytest.raises(ReservedName):
            producer.send_batch(name, [Message(b"x")])


def test_a_reserved_group_is_refused(mq: Client, topic: str) -> None:
    with pytest.raises(ReservedName, match="CID_RMQ_SYS_TRANS"):
        mq.pull_consumer(topic, group="CID_RMQ_SYS_TRANS")


def test_no_messages_are_no_results(mq: Client, topic: str) -> None:
    mq.create_topic(topic, queues=1)
    with mq.producer() as producer:
        assert producer.send_batch(topic, []) == []
        assert producer.send_batch(topic, from_messages([Message(b"x")]).slice(0, 0)) == []


def test_a_closed_producer_refuses(mq: Client, topic: str) -> None:
    producer = mq.producer()
    producer.close()
    producer.close()
    with pytest.raises(Closed):
        producer.submit(topic, b"x")


def test_a_sender_fills_frames_and_spreads_only_what_is_left(mq: Client) -> None:
    topic = f"full-requests-{next(_fresh)}"
    mq.create_topic(topic, queues=8)
    rows = pa.table({"body": [b"12345"] * 400})
    with (
        mq.producer(slice_bytes=12_000, request_bytes=40_000) as producer,
        producer.batch_sender() as sender,
    ):
        for _ in range(30):
            sender.add(topic, rows)
        results = sender.finish()
    # A request holds three tables of 12,000 bytes, so nine requests are full and one is what is left.
    counts = [result.count for result in results]
    assert counts[: 9 * 3] == [400] * (9 * 3)
    queues = set(mq.route(topic).write_queues())
    assert len({result.queue for result in results[: 9 * 3]}) == min(9 * 3, len(queues))
    assert {result.queue for result in results[9 * 3 :]} == queues
    assert sum(counts) == 30 * 400
