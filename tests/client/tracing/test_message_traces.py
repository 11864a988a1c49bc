"""The way of messages, recorded by real clients and found again."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
import pytest

from rocketq import Client, LocalCluster, Message, TooLarge, TraceConfig, TraceNotFound
from rocketq.clock import SystemClock
from rocketq.errors import InvalidConfiguration
from rocketq.net.route_cache import RouteCache
from rocketq.net.transport import Transport
from rocketq.producing.producer import Producer
from rocketq.tracing.message_trace import MessageTrace
from rocketq.tracing.records import TraceRecord, TraceType
from rocketq.tracing.trace_sender import TraceSender
from tests.cli.test_commands import Shell
from tests.support.conditions import wait_until


@pytest.fixture
def tracer(cluster: LocalCluster) -> Iterator[Client]:
    """A client that records every message."""
    with Client(cluster.nameservers, trace=True) as client:
        yield client


def found(client: Client, message_id: str, handlings: int = 0) -> MessageTrace:
    """Return a trace once it is indexed and has this many outcomes."""
    seen: list[MessageTrace] = []

    def is_whole() -> bool:
        assert client.tracing is not None
        client.tracing.flush()
        try:
            trace = client.trace(message_id)
        except TraceNotFound:
            return False
        settled = [one for one in trace.handlings if one.outcome is not None]
        seen.append(trace)
        return trace.complete and len(settled) >= handlings

    wait_until(is_whole)
    return seen[-1]


def test_a_trace_tells_who_sent_stored_received_and_acknowledged(tracer: Client, topic: str) -> None:
    with tracer.producer() as producer:
        sent = producer.send(topic, b"hi", key="o-1", tag="paid")
    with tracer.consumer(f"g-{topic}", topic) as consumer:
        message = next(iter(consumer))
        message.ack()
    trace = found(tracer, str(sent.unique_id), handlings=1)
    assert tracer.tracing is not None
    (attempt,) = trace.attempts
    assert (attempt.client_id, attempt.attempt, attempt.outcome) == (tracer.tracing.client_id, 1, "SEND_OK")
    assert (attempt.key, attempt.tag, attempt.body_bytes) == ("o-1", "paid", 2)
    assert (trace.topic, trace.unique_id, trace.message_ids) == (topic, sent.unique_id, (sent.message_id,))
    assert [(each.message_id, each.body) for each in trace.stored] == [(sent.message_id, b"hi")]
    (handling,) = trace.handlings
    assert (handling.group, handling.client_id) == (f"g-{topic}", consumer.client_id)
    assert (handling.attempt, handling.outcome) == (1, "ACKNOWLEDGED")
    assert handling.elapsed_ms is not None
    assert found(tracer, sent.message_id, handlings=1) == trace


def test_a_message_that_failed_is_shown_with_each_attempt(tracer: Client, topic: str) -> None:
    with tracer.producer() as producer:
        sent = producer.send(topic, b"hi")
    seen = 0

    def handle(message: object) -> None:
        nonlocal seen
        seen += 1
        if seen == 1:
            raise ValueError("not yet")

    with tracer.listener(topic, handle, group=f"g-{topic}", ordered=True, suspend_ms=10):
        trace = found(tracer, sent.message_id, handlings=2)
    assert [(one.attempt, one.outcome) for one in trace.handlings] == [(1, "FAILED"), (2, "ACKNOWLEDGED")]


@pytest.mark.parametrize("with_ids", [False, True])
def test_each_message_of_a_batch_is_found_at_its_own_place(
    tracer: Client, topic: str, with_ids: bool
) -> None:
    bodies = [str(number).encode() for number in range(50)]
    properties = [None if number % 2 else [("n", str(number))] for number in range(50)]
    table = pa.table({"body": bodies, "properties": pa.array(properties, pa.map_(pa.string(), pa.string()))})
    with tracer.producer() as producer:
        results = producer.send_batch(topic, table, unique_ids=with_ids)
    assert sum(result.count for result in results) == 50
    for result in results:
        last = f"{result.queue.broker}:{topic}:{result.queue.queue}:{result.offset + result.count - 1}"
        trace = found(tracer, last)
        (stored,) = trace.stored
        assert trace.unique_id == stored.unique_id
        assert trace.attempts[0].body_bytes == len(stored.body)


def test_submitted_messages_are_traced_by_the_ids_of_their_futures(tracer: Client, topic: str) -> None:
    with tracer.producer() as producer:
        results = [producer.submit(topic, f"{n}", key=f"k-{n}") for n in range(20)]
        sent = [future.result() for future in results]
    for number in (0, 19):
        trace = found(tracer, str(sent[number].unique_id))
        assert (trace.attempts[0].key, trace.message_ids) == (f"k-{number}", (sent[number].message_id,))


def test_only_what_is_chosen_is_recorded(cluster: LocalCluster, topic: str) -> None:
    with Client(cluster.nameservers, trace=TraceConfig(topics=(topic,))) as client:
        with client.producer() as producer:
            chosen = producer.send(topic, b"yes")
            other = producer.send(f"{topic}-2", b"no")
            by_hand = producer.send(f"{topic}-2", b"this one", properties={"TRACE_ON": "true"})
            left_out = producer.send(topic, b"not this one", properties={"TRACE_ON": "false"})
            producer.send_batch(f"{topic}-2", [Message(b"no")] * 10)
        for sent in (chosen, by_hand):
            assert found(client, sent.message_id).attempts[0].outcome == "SEND_OK"
        for sent in (other, left_out):
            with pytest.raises(TraceNotFound):
                client.trace(sent.message_id)
        assert client.tracing is not None
        assert (client.tracing.counts().stored, client.tracing.counts().dropped) == (2, 0)


def test_a_rate_records_about_that_share_and_consumers_the_same_ones(
    cluster: LocalCluster, topic: str
) -> None:
    with Client(cluster.nameservers, trace=0.1) as client:
        with client.producer() as producer:
            producer.send_batch(topic, pa.table({"body": [b"x"] * 4_000}))
        assert client.tracing is not None
        client.tracing.flush()
        sampled = client.tracing.counts().stored
        assert 200 < sampled < 600
        with client.consumer(f"g-{topic}", topic) as consumer:
            messages, marked = 0, 0
            while messages < 4_000:
                polled = consumer.poll()
                messages += len(polled)
                marked += sum((one.properties or {}).get("TRACE_ON") == "true" for one in polled)
        client.tracing.flush()
        # One SubBefore and one SubAfter for each message that the producer chose.
        assert marked == sampled
        assert client.tracing.counts().stored == 3 * sampled


def test_a_program_decides_for_single_messages_of_a_submitted_batch(tracer: Client, topic: str) -> None:
    tracer.create_topic(topic, queues=1)
    given: list[dict[str, str] | None] = [{"TRACE_ON": "false"}, None, {"a": "1"}, {"TRACE_ON": "true"}]
    with tracer.producer(unique_ids=False, linger_ms=60_000) as producer:
        futures = [producer.submit(topic, b"x", properties=properties) for properties in given]
        producer.flush()
    stored = [tracer.query.by_id(future.result().message_id).properties or {} for future in futures]
    assert [properties.get("TRACE_ON") for properties in stored] == ["false", "true", "true", "true"]
    assert ["UNIQ_KEY" in properties for properties in stored] == [False, True, True, True]
    assert stored[2]["a"] == "1"


def test_each_message_of_a_submitted_batch_has_the_chance_of_the_rate() -> None:
    with Client("http://127.0.0.1:1", trace=0.01) as client:
        assert client.tracing is not None
        found = [row for _ in range(10) for row in client.tracing.sent.marked_rows("t", {}, 10_000)]
        assert client.tracing.sent.marked_rows("RMQ_SYS_TRACE_TOPIC", {}, 10_000) == {}
    # Seven standard deviations around the 1,000 expected, and each half has its share.
    assert 780 < len(found) < 1_220
    assert 340 < sum(row < 5_000 for row in found) < 660


def test_without_a_trace_nothing_is_marked_or_recorded(cluster: LocalCluster, topic: str) -> None:
    with Client(cluster.nameservers) as client, client.producer() as producer:
        sent = producer.send(topic, b"x")
        assert client.tracing is None
        assert set(client.query.by_id(sent.message_id).properties or {}) == {"UNIQ_KEY"}
        with pytest.raises(TraceNotFound, match=r"Client\(trace=True\)"):
            client.trace(sent.message_id)


def test_a_failed_attempt_is_recorded_with_its_error(tracer: Client, topic: str) -> None:
    tracer.create_topic(topic, 1, message_bytes_max=10)
    with tracer.producer() as producer, pytest.raises(TooLarge):
        producer.send(topic, b"x" * 11, properties={"UNIQ_KEY": f"id-of-{topic}"})
    trace = found(tracer, f"id-of-{topic}")
    (attempt,) = trace.attempts
    assert (attempt.outcome, attempt.message_id, attempt.body_bytes) == ("TOO_LARGE", None, 11)
    assert attempt.error
    assert (trace.stored, trace.handlings) == ((), ())


def test_records_that_do_not_fit_are_dropped_and_counted(cluster: LocalCluster, topic: str) -> None:
    config = TraceConfig(buffer_records=5, linger_ms=600_000)
    with Client(cluster.nameservers, trace=config) as client, client.producer() as producer:
        results = producer.send_batch(topic, pa.table({"body": [b"x"] * 100}))
        assert sum(one.count for one in results) == 100
        for _ in range(3):
            producer.send(topic, b"x")
        assert client.tracing is not None
        client.tracing.flush()
        assert client.tracing.counts().stored + client.tracing.counts().dropped == 103
        assert client.tracing.counts().dropped >= 98


def test_records_that_cannot_be_sent_are_dropped_and_counted() -> None:
    def making() -> list[TraceRecord]:
        return [
            TraceRecord(type=TraceType.PUB, at_us=n, topic="t", broker="b", client_id="c", attempt=1)
            for n in range(3)
        ]

    with Transport() as transport:
        producer = Producer(transport, RouteCache(["http://127.0.0.1:9"], transport))
        sender = TraceSender(producer, TraceConfig(linger_ms=0), SystemClock())
        sender.add(3, making)
        assert sender.flush(30_000)
        assert (sender.counts().stored, sender.counts().dropped) == (0, 3)
        sender.close()
        sender.add(3, making)
        assert sender.counts().dropped == 6


@pytest.mark.parametrize("trace", [1.5, -0.1, "all"])
def test_a_rate_that_is_none_is_refused(trace: object) -> None:
    with pytest.raises(InvalidConfiguration, match="rate"):
        Client("http://127.0.0.1:9", trace=trace)  # type: ignore[arg-type]


def test_the_command_line_shows_a_trace(tracer: Client, cluster: LocalCluster, topic: str) -> None:
    with tracer.producer() as producer:
        sent = producer.send(topic, b"hi", key="o-1")
    with tracer.consumer(f"g-{topic}", topic) as consumer:
        next(iter(consumer)).ack()
    found(tracer, sent.message_id, handlings=1)
    shell = Shell(cluster.nameservers)
    events = shell("trace", sent.message_id, "-o", "jsonl").lines
    assert sorted(each["event"] for each in events) == ["handled", "received", "sent", "stored"]
    shown = shell("trace", str(sent.unique_id))
    assert shown.out.splitlines()[0].split()[:3] == ["AT", "EVENT", "BY"]
    whole = shell("trace", str(sent.unique_id), "-o", "json").json
    assert (whole["attempts"][0]["outcome"], whole["handlings"][0]["outcome"]) == ("SEND_OK", "ACKNOWLEDGED")
    missing = shell("trace", "no-such-id", "-o", "json")
    assert (missing.code, json.loads(missing.err)["code"]) == (3, "TRACE_NOT_FOUND")


def test_the_types_of_records_are_those_of_rocketmq() -> None:
    assert [kind.value for kind in TraceType] == ["Pub", "SubBefore", "SubAfter", "EndTransaction"]
