"""OpenTelemetry spans of messages, as an exporter gets them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from rocketq import Client, LocalCluster, Message, TooLarge
from tests.support.conditions import wait_until


@pytest.fixture
def traced(cluster: LocalCluster) -> Iterator[SimpleNamespace]:
    """A client with spans, and where they go."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with Client(cluster.nameservers, opentelemetry=provider) as client:
        yield SimpleNamespace(client=client, exporter=exporter, tracer=provider.get_tracer("test"))


def named(traced: SimpleNamespace, name: str, kind: SpanKind | None = None) -> list[ReadableSpan]:
    """Return the ended spans of a name."""
    spans: tuple[ReadableSpan, ...] = traced.exporter.get_finished_spans()
    return [span for span in spans if span.name == name and kind in (None, span.kind)]


def parent_of(properties: dict[str, str] | None) -> str:
    return (properties or {})["traceparent"]


def context_of(span: ReadableSpan) -> str:
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{int(span.context.trace_flags):02x}"


def test_a_send_has_a_span_that_the_message_carries(traced: SimpleNamespace, topic: str) -> None:
    with traced.client.producer() as producer, traced.tracer.start_as_current_span("order") as outer:
        sent = producer.send(topic, b"hi", key="o-1", tag="paid")
    (span,) = named(traced, f"send {topic}")
    assert span.kind is SpanKind.PRODUCER
    assert span.parent is not None
    assert span.parent.span_id == outer.get_span_context().span_id
    assert dict(span.attributes or {}) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": f"{sent.queue.broker}/{sent.queue.queue}",
        "messaging.message.id": sent.message_id,
        "messaging.message.body.size": 2,
        "messaging.rocketmq.message.keys": ("o-1",),
        "messaging.rocketmq.message.tag": "paid",
    }
    assert parent_of(traced.client.query.by_id(sent.message_id).properties) == context_of(span)


def test_a_message_keeps_the_context_that_it_was_given(traced: SimpleNamespace, topic: str) -> None:
    own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with traced.client.producer() as producer:
        sent = producer.send(topic, b"hi", properties={"traceparent": own})
        (batched,) = producer.send_batch(topic, [Message(b"x", properties={"traceparent": own})])
    for result in (sent, batched):
        assert parent_of(traced.client.query.by_id(result.message_id).properties) == own


def test_a_send_that_fails_ends_its_span_as_an_error(traced: SimpleNamespace, topic: str) -> None:
    traced.client.create_topic(topic, 1, message_bytes_max=1)
    with traced.client.producer() as producer, pytest.raises(TooLarge):
        producer.send(topic, b"too much")
    (span,) = named(traced, f"send {topic}")
    assert (span.status.status_code, (span.attributes or {})["error.type"]) == (StatusCode.ERROR, "TOO_LARGE")


def test_a_batch_has_one_span_and_its_messages_carry_it(traced: SimpleNamespace, topic: str) -> None:
    with traced.client.producer() as producer:
        results = producer.send_batch(topic, [Message(b"x")] * 5)
    (span,) = named(traced, f"send {topic}", SpanKind.PRODUCER)
    found = [traced.client.query.by_id(result.message_id) for result in results]
    assert {parent_of(message.properties) for message in found} == {context_of(span)}


def test_submitted_messages_are_created_and_then_sent_with_links(traced: SimpleNamespace, topic: str) -> None:
    with traced.client.producer() as producer:
        for number in range(3):
            producer.submit(topic, str(number))
        producer.flush()
    created = named(traced, f"create {topic}", SpanKind.PRODUCER)
    requests = named(traced, f"send {topic}", SpanKind.CLIENT)
    assert len(created) == 3
    linked = [link.context.span_id for request in requests for link in request.links]
    assert sorted(linked) == sorted(span.context.span_id for span in created)
    assert sum((span.attributes or {})["messaging.batch.message_count"] for span in requests) == 3  # type: ignore[misc]


def test_a_listener_has_a_span_for_each_message_linked_to_its_send(
    traced: SimpleNamespace, topic: str
) -> None:
    with traced.client.producer() as producer:
        sent = producer.send(topic, b"hi")
        (send,) = named(traced, f"send {topic}")
    seen: list[int] = []

    def handle(message: object) -> None:
        with traced.tracer.start_as_current_span("work"):
            seen.append(1)
        if len(seen) == 1:
            raise ValueError("not yet")

    settings = {"ordered": True, "suspend_ms": 10}
    with traced.client.listener(topic, handle, group=f"g-{topic}", **settings):
        wait_until(lambda: len(named(traced, f"process {topic}")) == 2)
    failed, handled = named(traced, f"process {topic}", SpanKind.CONSUMER)
    for span in (failed, handled):
        assert [link.context.span_id for link in span.links] == [send.context.span_id]
        assert span.parent is None
        about = span.attributes or {}
        assert (about["messaging.message.id"], about["messaging.consumer.group.name"]) == (
            sent.message_id, f"g-{topic}",
        )  # fmt: skip
    assert (failed.status.status_code, handled.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    assert {one.parent and one.parent.span_id for one in named(traced, "work")} == {
        failed.context.span_id, handled.context.span_id,
    }  # fmt: skip


def test_a_loop_has_receive_spans_and_can_have_process_spans(traced: SimpleNamespace, topic: str) -> None:
    with traced.client.producer() as producer:
        producer.send(topic, b"hi")
        (send,) = named(traced, f"send {topic}")
    with traced.client.consumer(f"g-{topic}", topic) as consumer:
        message = next(iter(consumer))
        with traced.client.spans.processing(message):
            message.ack()
    (received,) = named(traced, f"receive {topic}", SpanKind.CLIENT)
    (processed,) = named(traced, f"process {topic}", SpanKind.CONSUMER)
    for span in (received, processed):
        assert [link.context.span_id for link in span.links] == [send.context.span_id]
    assert (received.attributes or {})["messaging.client.id"] == consumer.client_id


def test_spans_and_a_trace_go_together(traced: SimpleNamespace, cluster: LocalCluster, topic: str) -> None:
    with Client(cluster.nameservers, opentelemetry=True, trace=True) as client, client.producer() as producer:
        producer.send(topic, b"one")
        producer.send_batch(topic, [Message(b"two")] * 2)
        assert client.tracing is not None
        client.tracing.flush()
        assert client.tracing.counts().stored == 3


def test_without_spans_nothing_of_opentelemetry_is_loaded_or_carried(
    cluster: LocalCluster, topic: str
) -> None:
    program = (
        "import sys\n"
        "sys.modules['opentelemetry'] = None\n"
        "from rocketq import Client\n"
        "from rocketq.errors import ExtraMissing\n"
        "with Client(sys.argv[1]) as client, client.producer() as producer:\n"
        "    sent = producer.send(sys.argv[2], b'x')\n"
        "    assert 'traceparent' not in client.query.by_id(sent.message_id).properties\n"
        "try:\n"
        "    Client(opentelemetry=True)\n"
        "except ExtraMissing as error:\n"
        "    assert 'rocketq[otel]' in str(error)\n"
        "else:\n"
        "    raise SystemExit('spans without their package')\n"
    )
    subprocess.run([sys.executable, "-c", program, ",".join(cluster.nameservers), topic], check=True)
