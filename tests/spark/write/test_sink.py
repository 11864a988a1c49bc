"""The sink against real brokers, called as a Spark task calls it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from pyspark_rocketq.errors import BatchUnknown
from pyspark_rocketq.options.options import sink_options
from pyspark_rocketq.options.table import Use
from pyspark_rocketq.write.writer import RocketqStreamWriter, SinkCommit
from rocketq.client import Client
from rocketq.errors import InvalidBatch, QueueNotFound, TooLarge
from rocketq.errors.message_errors import InvalidMessage, ReservedName
from rocketq.model import MessageQueue
from tests.support.spark_harness import Source, by_queue


def write(source: Source, *batches: pa.RecordBatch, **options: str) -> SinkCommit:
    given = {"nameservers": ",".join(source.nameservers), "topic": source.topic}
    given |= {"delivery": "at-least-once"} | options
    if given["topic"] == "":
        del given["topic"]
    writer = RocketqStreamWriter(sink_options(given, Use.STREAM_WRITE))
    commit = writer.write(iter(batches))
    assert isinstance(commit, SinkCommit)
    writer.commit([commit], 0)
    return commit


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def numbered(count: int, prefix: str = "v") -> pa.Array:
    return pa.array([f"{prefix}{i}" for i in range(count)])


def test_every_row_arrives_once_with_all_it_had(source: Source) -> None:
    commit = write(
        source,
        batch(
            value=numbered(500),
            key=numbered(500, "k"),
            tag=pa.array(["a", None] * 250),
            properties=pa.array([[("n", str(i))] for i in range(500)], pa.map_(pa.string(), pa.string())),
        ),
    )
    assert commit.messages == 500
    rows = source.rows(includeProperties="true")
    seen = {(row["value"], row["key"], row["tag"], dict(row["properties"])["n"]) for row in rows}
    expected = {(f"v{i}".encode(), f"k{i}".encode(), "a" if i % 2 == 0 else None, str(i)) for i in range(500)}
    assert len(rows) == 500
    assert seen == expected


def test_round_robin_uses_every_queue(source: Source) -> None:
    write(source, batch(value=numbered(1000)))
    assert {queue: len(offsets) for queue, offsets in by_queue(source.rows()).items()}.keys() == {
        MessageQueue(source.topic, broker, queue) for broker in ("broker-a", "broker-b") for queue in (0, 1)
    }


def test_a_keys_rows_share_a_queue_and_keep_their_order(source: Source) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, 3000, 300):
            numbers = range(first, first + 300)
            yield batch(
                value=pa.array([str(n) for n in numbers]), key=pa.array([f"k{n % 7}" for n in numbers])
            )

    write(source, *batches(), queueSelection="hash", maxRequestBytes="8k")
    rows = source.rows()
    places: dict[bytes, set] = {}
    order: dict[bytes, list[int]] = {}
    for row in sorted(rows, key=lambda row: row["offset"]):
        places.setdefault(row["key"], set()).add((row["broker"], row["queue"]))
        order.setdefault(row["key"], []).append(int(row["value"]))
    assert all(len(found) == 1 for found in places.values())
    assert all(numbers == sorted(numbers) for numbers in order.values())
    assert len(rows) == 3000


def test_rows_that_name_their_queue_go_there_in_order(source: Source) -> None:
    write(
        source,
        batch(
            value=numbered(100),
            broker=pa.array(["broker-b", None] * 50),
            queue=pa.array([1, None] * 50, pa.int32()),
        ),
        maxRequestBytes="1k",
    )
    named = MessageQueue(source.topic, "broker-b", 1)
    values = [int(row["value"][1:]) for row in source.rows() if by_queue([row]).keys() == {named}]
    chosen = [n for n in values if n % 2 == 0]
    assert chosen == list(range(0, 100, 2))
    assert len(source.rows()) == 100


def test_a_queue_that_does_not_exist_is_refused(source: Source) -> None:
    with pytest.raises(QueueNotFound, match=r"queue 9 on broker 'broker-a'.*columns broker and queue"):
        write(source, batch(value=numbered(1), broker=pa.array(["broker-a"]), queue=pa.array([9])))


def test_an_unknown_broker_is_named_with_the_brokers_that_there_are(source: Source) -> None:
    with pytest.raises(QueueNotFound, match="no writable queue 1 on broker 'broker-x'") as caught:
        write(source, batch(value=numbered(1), broker=pa.array(["broker-x"]), queue=pa.array([1])))
    assert "broker-a 0 to 1, broker-b 0 to 1" in caught.value.message
    assert "columns broker and queue" in caught.value.hint


def test_rows_go_to_the_topics_they_name(source: Source, client: Client) -> None:
    other = f"{source.topic}-b"
    client.create_topic(other, queues=1)
    topics = pa.array([source.topic, other] * 200)
    write(source, batch(value=numbered(400), topic=topics), topic="")
    assert len(source.rows()) == 200
    assert sorted(int(row["value"][1:]) % 2 for row in source.rows(subscribe=other)) == [1] * 200


def test_the_option_topic_beats_the_column(source: Source) -> None:
    write(source, batch(value=numbered(3), topic=pa.array([None, "x", "y"])))
    assert len(source.rows()) == 3


def test_a_null_value_ends_the_task_before_its_batch_is_sent(source: Source) -> None:
    with pytest.raises(InvalidBatch, match="'value' is null in 1 of 2 rows"):
        write(source, batch(value=pa.array(["a", None])))
    assert source.rows() == []


def test_a_row_with_a_tag_or_property_that_no_message_may_have_is_refused(source: Source) -> None:
    delays = pa.array([[("TRAN_MSG", "true")], None], pa.map_(pa.string(), pa.string()))
    with pytest.raises(InvalidMessage, match="'TRAN_MSG' in row 0 is written by"):
        write(source, batch(value=numbered(2), properties=delays))
    for tag in ("A B", "A|B", "*", ""):
        with pytest.raises(InvalidMessage) as raised:
            write(source, batch(value=numbered(2), tag=pa.array(["A", tag])))
        assert raised.value.facts["value"] == tag
    assert source.rows() == []


def test_rows_are_not_sent_to_a_reserved_topic(source: Source) -> None:
    with pytest.raises(ReservedName, match="%RETRY%billing"):
        write(source, batch(value=numbered(1), topic=pa.array(["%RETRY%billing"])), topic="")


def test_an_empty_value_is_a_message_with_an_empty_body(source: Source) -> None:
    write(source, batch(value=pa.array(["", "a"]), tag=pa.array(["marker", None])))
    assert sorted((row["value"], row["tag"]) for row in source.rows()) == [(b"", "marker"), (b"a", None)]


def test_a_missing_topic_is_created(source: Source) -> None:
    write(source, batch(value=numbered(3)), topic=f"{source.topic}-new")
    assert len(source.rows(subscribe=f"{source.topic}-new")) == 3


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_rows_are_read_as_any_others(source: Source, codec: str) -> None:
    write(source, batch(value=numbered(2000)), compression=codec)
    assert {row["value"] for row in source.rows()} == {f"v{i}".encode() for i in range(2000)}


def test_large_batches_are_sent_in_several_requests(source: Source) -> None:
    values = pa.array([bytes([i % 256]) * 100_000 for i in range(300)])
    commit = write(source, batch(value=values), maxRequestBytes="1m")
    assert commit.requests > 20
    assert sum(len(row["value"]) for row in source.rows()) == 30_000_000


def test_a_message_that_is_too_large_is_refused_in_words(source: Source) -> None:
    with pytest.raises(TooLarge):
        write(source, batch(value=pa.array([bytes(5 * 1024 * 1024)])))


def test_a_task_that_is_told_no_batch_refuses_to_write_exactly_once(source: Source) -> None:
    with pytest.raises(BatchUnknown, match="txnAppId and txnVersion"):
        write(source, batch(value=numbered(3)), delivery="exactly-once")
    assert source.rows() == []


def test_a_task_without_rows_sends_nothing(source: Source) -> None:
    assert write(source) == SinkCommit(0, 0, 0)
    assert write(source, batch(value=pa.array([], pa.string()))) == SinkCommit(0, 0, 0)


def test_a_copy_of_a_topic_can_keep_its_queues(source: Source, client: Client) -> None:
    copy = f"{source.topic}-copy"
    client.create_topic(copy, queues=2)
    write(source, batch(value=numbered(50), key=numbered(50, "k")))
    rows = source.rows()
    given = batch(
        value=pa.array([row["value"] for row in rows]),
        broker=pa.array([row["broker"] for row in rows]),
        queue=pa.array([row["queue"] for row in rows], pa.int32()),
    )
    write(source, given, topic=copy)
    assert json.dumps(by_place(source.rows(subscribe=copy))) == json.dumps(by_place(rows))


def by_place(rows: list) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in sorted(rows, key=lambda row: (row["broker"], row["queue"], row["offset"])):
        found.setdefault(f"{row['broker']}/{row['queue']}", []).append(row["value"].decode())
    return found


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_rows_with_a_time_are_delivered_at_that_time(source: Source, client: Client, codec: str) -> None:
    now = datetime.now(UTC)
    at = [now + timedelta(hours=1), None, now + timedelta(milliseconds=300)]
    rows = batch(value=numbered(3), deliver_at=pa.array(at, pa.timestamp("us", tz="Europe/Berlin")))
    write(source, rows, compression=codec)
    with client.pull_consumer(source.topic, start="earliest") as consumer:
        found = []
        while len(found) < 2:
            found += consumer.poll(timeout_ms=60_000)
    assert [message.body for message in found] == [b"v1", b"v2"]
    assert found[1].stored_at_us >= at[2].timestamp() * 1_000_000
    (later,) = client.timers.list(source.topic)
    assert later.deliver_at_ms == -(-int(at[0].timestamp() * 1_000_000) // 1000)
