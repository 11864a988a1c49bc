"""The batch source against real brokers."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_rocketq.errors import DataLost
from pyspark_rocketq.read.batch_reader import RangePartition
from rocketq.client import Client
from rocketq.errors import InvalidConfiguration, RouteNotFound
from rocketq.model import MessageQueue
from rocketq.protocol.documents.broker import CommitOffsetsRequest, GroupOffset
from tests.support.spark_harness import Source, by_queue, fill, masters


def queues(topic: str) -> list[MessageQueue]:
    return [MessageQueue(topic, broker, n) for broker in ("broker-a", "broker-b") for n in (0, 1)]


def test_every_message_is_read_once_and_in_the_order_of_its_queue(source: Source, client: Client) -> None:
    fill(client, source.topic, 50)
    rows = source.rows()
    assert by_queue(rows) == {queue: list(range(50)) for queue in queues(source.topic)}
    assert all(row["value"].decode().endswith(f"#{row['offset']}") for row in rows)


def test_an_empty_topic_gives_no_rows(source: Source) -> None:
    assert source.rows() == []


def test_exact_offsets_begin_and_end_a_batch(source: Source, client: Client) -> None:
    fill(client, source.topic, 10)
    a, b = queues(source.topic)[0], queues(source.topic)[2]
    rows = source.rows(
        startingOffsets=json.dumps({source.topic: {"broker-a": {"0": 3, "1": -2}, "broker-b": 9}}),
        endingOffsets=json.dumps({source.topic: {"broker-a": {"0": 5, "1": 0}, "broker-b": -1}}),
    )
    found = by_queue(rows)
    assert found[a] == [3, 4]
    assert found[b] == [9]
    assert MessageQueue(source.topic, "broker-a", 1) not in found


def test_ending_before_starting_is_refused(source: Source, client: Client) -> None:
    fill(client, source.topic, 10)
    with pytest.raises(InvalidConfiguration, match="before the starting offset, 5"):
        source.rows(
            startingOffsets=json.dumps({source.topic: 5}), endingOffsets=json.dumps({source.topic: 4})
        )


def test_times_begin_and_end_a_batch(source: Source, client: Client) -> None:
    fill(client, source.topic, 5)
    between_ms = max(stored_ms(row) for row in source.rows()) + 1
    while all(stored_ms(row) < between_ms for row in source.rows()):
        # The broker's clock may still be in the same millisecond.
        fill(client, source.topic, 1)
    rows = source.rows()
    late = source.rows(startingTimestamp=str(between_ms), startingOffsetsByTimestampStrategy="latest")
    early = source.rows(endingTimestamp=str(between_ms))
    assert late == [row for row in rows if stored_ms(row) >= between_ms]
    assert early == [row for row in rows if stored_ms(row) < between_ms]
    only_a = json.dumps({source.topic: {"broker-a": between_ms, "broker-b": 0}})
    mixed = source.rows(startingOffsetsByTimestamp=only_a, startingOffsetsByTimestampStrategy="latest")
    assert source.rows(endingOffsetsByTimestamp=json.dumps({source.topic: between_ms})) == early
    assert mixed == [row for row in rows if stored_ms(row) >= between_ms or row["broker"] == "broker-b"]


def stored_ms(row: dict) -> int:
    return int(row["timestamp"].timestamp() * 1000)


def test_a_time_in_the_future_is_an_error_or_the_end(source: Source, client: Client) -> None:
    fill(client, source.topic, 5)
    future = str(2**42)
    with pytest.raises(InvalidConfiguration, match="no message stored at or after"):
        source.rows(startingTimestamp=future)
    assert source.rows(startingTimestamp=future, startingOffsetsByTimestampStrategy="latest") == []
    assert len(source.rows(endingTimestamp=future)) == 20


def test_a_batch_goes_on_where_a_group_was(source: Source, client: Client) -> None:
    fill(client, source.topic, 10)
    for broker in masters(source):
        offsets = (GroupOffset(source.topic, 0, 7),)
        broker.commit_offsets(f"{source.topic}-g", CommitOffsetsRequest(offsets))
    found = by_queue(source.rows(startingOffsets="group", groupId=f"{source.topic}-g"))
    assert {queue.queue: offsets for queue, offsets in found.items()} == {0: [7, 8, 9], 1: list(range(10))}


def test_an_assignment_reads_its_queues_only(source: Source, client: Client) -> None:
    fill(client, source.topic, 4)
    everywhere = by_queue(source.rows(assign=json.dumps({source.topic: [1]})))
    assert {(queue.broker, queue.queue) for queue in everywhere} == {("broker-a", 1), ("broker-b", 1)}
    one = by_queue(source.rows(assign=json.dumps({source.topic: {"broker-b": [0]}})))
    assert list(one) == [MessageQueue(source.topic, "broker-b", 0)]
    with pytest.raises(InvalidConfiguration, match=r"no such queue on broker broker-a.*'broker-a': 2"):
        source.rows(assign=json.dumps({source.topic: {"broker-a": [7]}}))


def test_a_pattern_reads_the_topics_it_matches(source: Source, client: Client) -> None:
    fill(client, source.topic, 2)
    client.create_topic(f"{source.topic}-more", queues=1)
    fill(client, f"{source.topic}-more", 3)
    rows = source.rows(subscribePattern=f"{source.topic}(-more)?")
    assert len(rows) == 2 * 4 + 3 * 2
    assert len(source.rows(subscribePattern=source.topic)) == 8, "the whole name must match"
    assert source.rows(subscribePattern="no-such-topic.*") == []


def test_a_topic_that_does_not_exist_is_an_error_that_names_the_nearest(source: Source) -> None:
    with pytest.raises(RouteNotFound, match="Nearest known topic"):
        source.rows(subscribe=source.topic[:-1] + "x")


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [("minPartitions", "9", 9), ("maxRecordsPerPartition", "10", 20), ("maxBytesPerPartition", "2k", None)],
)
def test_ranges_are_cut_as_asked(
    source: Source, client: Client, option: str, value: str, expected: int | None
) -> None:
    fill(client, source.topic, 50)
    reader = source.batch(**{option: value})
    partitions = reader.partitions()
    assert len(partitions) == expected or (expected is None and len(partitions) > 4)
    rows = [row for one in partitions for batch in reader.read(one) for row in batch.to_pylist()]
    found = {queue: sorted(offsets) for queue, offsets in by_queue(rows).items()}
    assert found == {queue: list(range(50)) for queue in queues(source.topic)}


def test_properties_come_on_request(source: Source, client: Client) -> None:
    with client.producer() as producer:
        sent = producer.send(source.topic, b"v", key=b"k", tag="t", properties={"region": "eu"})
    (row,) = source.rows(includeProperties="true")
    assert (row["key"], row["tag"], row["value"]) == (b"k", "t", b"v")
    assert dict(row["properties"]) == {"region": "eu", "UNIQ_KEY": sent.unique_id}


def test_a_topic_deleted_under_a_batch_is_a_loss(source: Source, client: Client) -> None:
    fill(client, source.topic, 5)
    strict = source.batch(smallRangeRows="0")
    lenient = source.batch(smallRangeRows="0", failOnDataLoss="false")
    planned = strict.partitions()
    client.delete_topic(source.topic)
    client.create_topic(source.topic, queues=2)
    fill(client, source.topic, 5)
    with pytest.raises(DataLost, match="deleted and created again"):
        list(strict.read(planned[0]))
    assert [list(lenient.read(one)) for one in planned] == [[], [], [], []]


def test_small_ranges_of_many_queues_share_a_partition(source: Source, client: Client) -> None:
    fill(client, source.topic, 50)
    packed, apart = source.batch(), source.batch(smallRangeRows="0")
    assert [len(packed.partitions()), len(apart.partitions())] == [1, 4]
    (batch,) = packed.read(packed.partitions()[0])
    rows = [row for one in apart.partitions() for each in apart.read(one) for row in each.to_pylist()]
    assert batch.to_pylist() == rows, "the same rows, each queue in order, as one batch for Spark"
    assert len(source.batch(smallRangeRows="100").partitions()) == 2


def test_a_loss_in_one_of_many_ranges_is_told_by_its_queue(source: Source, client: Client) -> None:
    fill(client, source.topic, 5)
    strict, lenient = source.batch(), source.batch(failOnDataLoss="false")
    (planned,) = strict.partitions()
    lost = queues(source.topic)[2]
    gone = RangePartition(tuple(replace(one, end=9) if one.queue == lost else one for one in planned.ranges))
    with pytest.raises(DataLost, match=re.escape(str(lost))):
        list(strict.read(gone))
    assert sum(batch.num_rows for batch in lenient.read(gone)) == 20


def test_many_small_messages_cross_many_pulls(source: Source, client: Client) -> None:
    queue = queues(source.topic)[0]
    for _ in range(8):
        fill(client, source.topic, 30_000, [queue])
    reader = source.batch()
    (partition,) = reader.partitions()
    offsets = [part.column("offset") for part in reader.read(partition)]
    assert pa.concat_arrays(offsets).equals(pa.array(range(240_000), pa.int64()))
