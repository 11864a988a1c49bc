"""The streaming source against real brokers, driven as Spark drives it."""

from __future__ import annotations

import json
import pickle
import socket
import threading
from typing import Any
from urllib.parse import urlsplit

import pytest

from pyspark_rocketq.connections import connection_to
from pyspark_rocketq.errors import DataLost
from pyspark_rocketq.read.range_pull import RangePulls
from pyspark_rocketq.stream.stream_reader import RocketqStreamReader
from rocketq import LocalCluster
from rocketq.client import Client
from rocketq.errors import InvalidConfiguration, RouteNotFound
from rocketq.model import GroupKind, MessageQueue
from rocketq.net.broker_api import BrokerApi
from rocketq.protocol.documents.broker import CreateTopicRequest
from tests.support.patience import PatientClient
from tests.support.spark_harness import Source, Stream, await_brokers, by_queue, fill, grow, masters


def test_a_query_reads_what_comes_after_it_began_and_nothing_twice(source: Source, client: Client) -> None:
    fill(client, source.topic, 3)
    query = source.stream(longPollMs="0").begin()
    assert query.next_batch() == []
    fill(client, source.topic, 2)
    assert sorted(row["offset"] for row in query.next_batch()) == [3] * 4 + [4] * 4
    assert query.next_batch() == []


def test_an_idle_query_returns_the_very_same_offset(source: Source) -> None:
    query = source.stream(longPollMs="0").begin()
    text = json.dumps(query.offset)
    assert json.dumps(query.reader.latestOffset(json.loads(text), query.limit)) == text


def test_an_idle_query_is_woken_by_the_first_message(source: Source, client: Client) -> None:
    query = source.stream(longPollMs="60000").begin()
    found: list = []
    waiting = threading.Thread(target=lambda: found.extend(query.next_batch()))
    waiting.start()
    with client.producer() as producer:
        producer.send(source.topic, b"wake up")
    waiting.join(60)
    assert [row["value"] for row in found] == [b"wake up"]


def test_a_held_request_serves_from_one_idle_call_to_the_next(
    source: Source, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = source.stream(longPollMs="50").begin()
    asked: list[str] = []  # brokers that got a request to hold

    def offsets(api: BrokerApi, *given: Any, real: Any = BrokerApi.offsets, **options: Any) -> Any:
        if options.get("wait_ms"):
            asked.append(api.broker)
        return real(api, *given, **options)

    monkeypatch.setattr(BrokerApi, "offsets", offsets)
    for _ in range(4):
        assert query.next_batch() == []
    assert sorted(asked) == ["broker-a", "broker-b"], "each broker still holds the first request"
    fill(client, source.topic, 1)
    rows: list = []
    while len(rows) < 4:
        rows += query.next_batch()
    assert len(rows) == 4


def test_latest_and_exact_offsets_and_times_begin_a_query(source: Source, client: Client) -> None:
    fill(client, source.topic, 5)
    exact = json.dumps({source.topic: {"broker-a": 4, "broker-b": -1}})
    assert len(source.stream(startingOffsets=exact, longPollMs="0").begin().next_batch()) == 2
    assert len(source.stream(startingTimestamp="0", longPollMs="0").begin().next_batch()) == 20
    assert source.stream(startingOffsets="latest", longPollMs="0").begin().next_batch() == []


def test_a_replayed_first_batch_has_the_same_rows(source: Source, client: Client) -> None:
    fill(client, source.topic, 3)
    query = source.stream(startingOffsets="latest", longPollMs="0").begin()
    fill(client, source.topic, 2)
    assert query.offset is not None
    end = query.reader.latestOffset(query.offset, query.limit)
    fill(client, source.topic, 2)
    replayed = source.stream(startingOffsets="latest").begin()
    assert replayed.offset is not None
    assert by_queue(replayed.between(replayed.offset, end)) == by_queue(query.between(query.offset, end))
    replayed.offset = end
    assert sorted({row["offset"] for row in replayed.next_batch()}) == [5, 6]


def test_a_query_goes_on_from_its_checkpoint(source: Source, client: Client) -> None:
    first = source.stream(startingOffsets="earliest", longPollMs="0").begin()
    fill(client, source.topic, 5)
    rows = first.next_batch()
    checkpoint = json.loads(json.dumps(first.offset))
    first.stop()
    fill(client, source.topic, 5)
    rows += source.stream(startingOffsets="earliest", longPollMs="0").begin(checkpoint).next_batch()
    assert all(offsets == list(range(10)) for offsets in by_queue(rows).values())
    assert len(rows) == 40


def test_a_limit_in_rows_makes_several_batches(source: Source, client: Client) -> None:
    fill(client, source.topic, 25)
    query = source.stream(startingOffsets="earliest", maxOffsetsPerTrigger="40", longPollMs="0").begin()
    sizes = []
    rows: list = []
    while batch := query.next_batch():
        sizes.append(len(batch))
        rows += batch
    assert sizes == [40, 40, 20]
    assert all(offsets == list(range(25)) for offsets in by_queue(rows).values())


def test_a_limit_in_bytes_makes_several_batches(source: Source, client: Client) -> None:
    for _ in range(10):
        fill(client, source.topic, 100)
    query = source.stream(startingOffsets="earliest", maxBytesPerTrigger="64k", longPollMs="0").begin()
    sizes = []
    while batch := query.next_batch():
        sizes.append(len(batch))
    assert sum(sizes) == 4000
    assert len(sizes) > 3
    assert max(sizes) * 40 < 2 * 64 * 1024, "a message takes more than its 40 bytes, and the limit is soft"


def test_small_batches_are_held_back_but_not_at_the_end_of_a_run(source: Source, client: Client) -> None:
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "20", "maxTriggerDelay": "1h"}
    fill(client, source.topic, 5)
    query = source.stream(longPollMs="0", **options).begin()
    assert len(query.next_batch()) == 20
    fill(client, source.topic, 4)
    assert query.next_batch() == []
    fill(client, source.topic, 1)
    assert len(query.next_batch()) == 20
    run = source.stream(longPollMs="0", **options).prepare().begin()
    assert len(run.next_batch()) == 40


def test_held_back_messages_are_read_when_the_delay_is_over(source: Source, client: Client) -> None:
    query = source.stream(
        startingOffsets="earliest", minOffsetsPerTrigger="1000", maxTriggerDelay="300ms", longPollMs="60000"
    ).begin()
    fill(client, source.topic, 1)
    assert len(query.next_batch()) == 4
    fill(client, source.topic, 1)
    assert len(query.next_batch()) == 4


def test_an_available_now_run_ends_where_it_began_to(source: Source, client: Client) -> None:
    fill(client, source.topic, 10)
    query = source.stream(startingOffsets="earliest", maxOffsetsPerTrigger="24").prepare().begin()
    rows = query.next_batch()
    fill(client, source.topic, 10)
    grow(client, source, 3)
    fill(client, source.topic, 1, [MessageQueue(source.topic, "broker-a", 2)])
    while batch := query.next_batch():
        rows += batch
    assert by_queue(rows) == {
        MessageQueue(source.topic, broker, queue): list(range(10))
        for broker in ("broker-a", "broker-b")
        for queue in (0, 1)
    }
    again = source.stream(longPollMs="0").prepare().begin(query.offset)
    assert len(again.next_batch()) == 41


def test_a_once_trigger_knows_no_limits(source: Source, client: Client) -> None:
    fill(client, source.topic, 10)
    query = source.stream(startingOffsets="earliest", maxOffsetsPerTrigger="5").once().begin()
    assert len(query.next_batch()) == 40
    assert query.next_batch() == []


def test_new_queues_join_from_their_first_message(source: Source, client: Client) -> None:
    query = source.stream(longPollMs="100").begin()
    grow(client, source, 3)
    fill(client, source.topic, 2)
    rows: list = []
    while len(rows) < 12:
        rows += query.next_batch()
    assert {queue.queue for queue in by_queue(rows)} == {0, 1, 2}
    assert all(offsets == [0, 1] for offsets in by_queue(rows).values())


def test_new_topics_join_a_pattern(source: Source, client: Client) -> None:
    query = source.stream(subscribePattern=f"{source.topic}.*", longPollMs="100").begin()
    client.create_topic(f"{source.topic}-late", queues=1)
    fill(client, f"{source.topic}-late", 3)
    rows: list = []
    while len(rows) < 6:
        rows += query.next_batch()
    assert all(offsets == [0, 1, 2] for offsets in by_queue(rows).values())


def test_a_restarted_query_reads_new_brokers_and_topics(source: Source, client: Client) -> None:
    late = f"{source.topic}-late"
    (other,) = [broker for broker in masters(source) if broker.broker == "broker-b"]
    other.delete_topic(source.topic)
    await_brokers(source, 1)
    first = source.stream(subscribePattern=f"{source.topic}.*", startingOffsets="latest", longPollMs="0")
    first.begin()
    fill(client, source.topic, 3, [MessageQueue(source.topic, "broker-a", queue) for queue in (0, 1)])
    read = first.next_batch()
    first.stop()
    other.create_topic(source.topic, CreateTopicRequest(read_queues=2, write_queues=2))
    client.create_topic(late, queues=1)
    await_brokers(source, 2)
    fill(client, source.topic, 2)
    fill(client, late, 4)
    again = source.stream(subscribePattern=f"{source.topic}.*", startingOffsets="latest", longPollMs="0")
    read += again.begin(first.offset).next_batch()
    assert by_queue(read) == {
        **{MessageQueue(source.topic, "broker-a", queue): [0, 1, 2, 3, 4] for queue in (0, 1)},
        **{MessageQueue(source.topic, "broker-b", queue): [0, 1] for queue in (0, 1)},
        **{MessageQueue(late, broker, 0): [0, 1, 2, 3] for broker in ("broker-a", "broker-b")},
    }


def test_a_missing_topic_or_queue_is_an_error_when_a_query_begins(source: Source) -> None:
    with pytest.raises(RouteNotFound):
        source.stream(subscribe="no-such-topic").begin()
    with pytest.raises(InvalidConfiguration, match="no such queue"):
        source.stream(assign=json.dumps({source.topic: [9]})).begin()


def test_the_groups_offsets_are_what_the_query_was_given_back(source: Source, client: Client) -> None:
    group = f"{source.topic}-g"
    fill(client, source.topic, 10)
    query = (
        source.stream(startingOffsets="earliest", groupId=group, maxOffsetsPerTrigger="24").prepare().begin()
    )
    while query.next_batch():
        pass
    committed = {
        (one.queue, one.offset)
        for broker in masters(source)
        for one in broker.group_offsets(group, source.topic).offsets
    }
    assert committed == {(0, 10), (1, 10)}
    assert {broker.group(group).kind for broker in masters(source)} == {GroupKind.SPARK}
    follower = source.stream(startingOffsets="group", groupId=group, longPollMs="0").begin()
    assert follower.next_batch() == []


def test_a_group_is_left_alone_when_asked(source: Source, client: Client) -> None:
    group = f"{source.topic}-g"
    fill(client, source.topic, 1)
    query = (
        source.stream(startingOffsets="earliest", groupId=group, commitGroupOffsets="false").prepare().begin()
    )
    while query.next_batch():
        pass
    assert [broker.group_offsets(group).offsets for broker in masters(source)] == [(), ()]


def test_the_newest_offsets_are_reported_without_asking(source: Source, client: Client) -> None:
    fill(client, source.topic, 10)
    query = source.stream(startingOffsets="earliest", maxOffsetsPerTrigger="4", longPollMs="0").begin()
    assert query.reader.reportLatestOffset() is None
    query.next_batch()
    reported = query.reader.reportLatestOffset()
    assert reported is not None
    assert reported["topics"][source.topic]["broker-a"] == {"0": 10, "1": 10}
    lag = reported["lag"][source.topic]
    assert lag == {"broker-a": {"0": 9, "1": 9}, "broker-b": {"0": 9, "1": 9}}
    query.next_batch()
    query.next_batch()
    reported = query.reader.reportLatestOffset()
    assert reported is not None
    assert sum(n for queues in reported["lag"][source.topic].values() for n in queues.values()) == 40 - 12


def test_a_topic_made_anew_ends_a_query_or_is_read_from_its_beginning(source: Source, client: Client) -> None:
    fill(client, source.topic, 5)
    strict = source.stream(startingOffsets="earliest", longPollMs="0").begin()
    strict.next_batch()
    client.delete_topic(source.topic)
    client.create_topic(source.topic, queues=2)
    fill(client, source.topic, 7)
    lenient = source.stream(failOnDataLoss="false", longPollMs="0").begin(strict.offset)
    with pytest.raises(DataLost, match="deleted and created again"):
        strict.next_batch()
    rows = lenient.next_batch()
    assert len(rows) == 28
    assert all(offsets == list(range(7)) for offsets in by_queue(rows).values())
    assert lenient.next_batch() == []


def test_a_deleted_topic_ends_a_query_or_is_forgotten(source: Source, client: Client) -> None:
    fill(client, source.topic, 5)
    query = source.stream(startingOffsets="earliest", longPollMs="0").begin()
    query.next_batch()
    client.delete_topic(source.topic)
    lenient = source.stream(failOnDataLoss="false", longPollMs="0").begin(query.offset)
    with pytest.raises(DataLost, match="deleted"):
        query.next_batch()
    assert lenient.next_batch() == []


def test_a_reader_travels_without_what_it_holds_on_the_driver(source: Source) -> None:
    query = source.stream(longPollMs="0")
    unused = pickle.dumps(query.reader)
    query.begin().next_batch()
    assert pickle.dumps(query.reader) == unused
    assert isinstance(pickle.loads(unused), RocketqStreamReader)


def test_a_broker_that_is_away_holds_up_its_own_queues_only() -> None:
    with LocalCluster(brokers=2) as cluster, PatientClient(cluster.nameservers) as client:
        client.create_topic("orders", queues=1)
        source = Source(cluster.nameservers, "orders")
        query = source.stream(startingOffsets="earliest", longPollMs="100").begin()
        queue_a, queue_b = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-b", 0)
        fill(client, "orders", 3, [queue_a, queue_b])
        read = query.next_batch()
        cluster.kill("broker-b")
        fill(client, "orders", 2, [queue_a])
        read += until(query, 2)
        cluster.restart("broker-b")
        fill(client, "orders", 2, [queue_b])
        read += until(query, 2)
        assert by_queue(read) == {queue_a: [0, 1, 2, 3, 4], queue_b: [0, 1, 2, 3, 4]}


def test_a_broker_that_hangs_holds_up_its_own_queues_only() -> None:
    with LocalCluster(brokers=2) as cluster, PatientClient(cluster.nameservers) as client:
        client.create_topic("orders", queues=1)
        source = Source(cluster.nameservers, "orders")
        query = source.stream(startingOffsets="earliest", longPollMs="100").begin()
        queue_a, queue_b = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-b", 0)
        fill(client, "orders", 1, [queue_a, queue_b])
        read = until(query, 2)
        cluster.pause("broker-b")
        try:
            fill(client, "orders", 1, [queue_a])
            read += until(query, 1)
        finally:
            cluster.resume("broker-b")
        fill(client, "orders", 1, [queue_b])
        read += until(query, 1)
        assert by_queue(read) == {queue_a: [0, 1], queue_b: [0, 1]}


def test_a_task_follows_a_broker_that_comes_back_on_another_port() -> None:
    with LocalCluster(brokers=1) as cluster, PatientClient(cluster.nameservers) as client:
        client.create_topic("orders", queues=1)
        source = Source(cluster.nameservers, "orders")
        query = source.stream(startingOffsets="earliest", longPollMs="0").begin()
        for _ in range(3):
            fill(client, "orders", 3)
        assert query.offset is not None
        end = query.reader.latestOffset(query.offset, query.limit)
        (partition,) = query.partitions(query.offset, end)
        options = query.options
        # One frame a pull, so that the broker goes in the middle of the range.
        (one,) = partition.ranges
        slices = RangePulls(connection_to(options.nameservers), options, one, 1).slices()
        found = [next(slices).offset]
        was = cluster.brokers["broker-a"]
        cluster.kill("broker-a")
        reading = threading.Thread(target=lambda: found.extend(piece.offset for piece in slices))
        reading.start()
        with socket.create_server(("127.0.0.1", urlsplit(was).port or 0)):
            cluster.restart("broker-a", port=0)
            assert cluster.brokers["broker-a"] != was
            reading.join(60)
        assert found == [0, 3, 6]


def until(query: Stream, rows: int) -> list:
    found: list = []
    while len(found) < rows:
        found += query.next_batch()
    return found


def test_retention_past_a_query_is_a_loss_or_a_gap(source: Source, client: Client) -> None:
    topic = f"{source.topic}-short"
    client.create_topic(topic, queues=1)
    fill(client, topic, 5)
    brokers = masters(source)
    strict = source.stream(subscribe=topic, startingOffsets="earliest", longPollMs="0").begin()
    assert strict.offset is not None
    end = strict.reader.latestOffset(strict.offset, strict.limit)
    lenient = source.stream(subscribe=topic, failOnDataLoss="false", longPollMs="0").begin(strict.offset)
    client.alter_topic(topic, retention_ms=1)
    for broker in brokers:
        while (held := broker.offsets(topic)).queues[0].min < 5:
            broker.offsets(topic, after_total=held.total, wait_ms=500)
    with pytest.raises(DataLost, match="retention removed offsets"):
        strict.between(strict.offset, end)
    with pytest.raises(DataLost, match="retention removed offsets 0 to 4"):
        strict.next_batch()
    assert lenient.between(strict.offset, end) == []
    assert lenient.next_batch() == []
    fill(client, topic, 2)
    assert sorted(row["offset"] for row in lenient.next_batch()) == [5, 5, 6, 6]
