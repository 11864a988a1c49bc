"""OpenTelemetry spans of messages; loaded only by a client that was given OpenTelemetry (extra `otel`).

    send TOPIC      producer   one `send` or `send_batch`, with all its attempts
    create TOPIC    producer   one `submit`; the message is sent later, together with others
    send TOPIC      client     one request with messages that were submitted, linked to their `create` spans
    receive TOPIC   client     messages that a consumer was handed, linked to the spans that made them
    process TOPIC   consumer   one call of a listener's function, or one block `spans.processing(message)`

The context of the span that made a message travels in its properties `traceparent` and `tracestate` (W3C
Trace Context). A consumer's span links to it and does not continue it: a message may be handled long after,
and by many groups. A message that has a `traceparent` when it is sent keeps it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from opentelemetry import trace
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from rocketq.consuming.receive_hooks import Receipt
from rocketq.errors import RocketqError
from rocketq.model import Message, MessageQueue, SendResult
from rocketq.producing.added_properties import lacks, rows_with, with_properties
from rocketq.producing.attempts.parcels import Parcel
from rocketq.producing.attempts.send_trace import SendTrace, TracedAttempt
from rocketq.protocol.column_values import numbers, repeated, text
from rocketq.protocol.message_schema import MESSAGE_SCHEMA
from rocketq.tracing import semantic_conventions as names

#: Links of one span at most; OpenTelemetry's own default limit is the same.
LINKS_MAX: Final = 128
_PROPERTIES: Final = MESSAGE_SCHEMA.get_field_index("properties")
_PROPAGATOR: Final = TraceContextTextMapPropagator()


class Received(Protocol):
    """A message as any consumer hands it out."""

    @property
    def body(self) -> bytes: ...
    @property
    def tag(self) -> str | None: ...
    @property
    def properties(self) -> dict[str, str] | None: ...
    @property
    def queue(self) -> MessageQueue: ...
    @property
    def message_id(self) -> str: ...


class MessageSpans:
    """The spans of one client (`SendSpans`, `SendTrace`, `ReceiveHook`). Thread-safe."""

    def __init__(self, provider: TracerProvider | None, version: str, records: SendTrace | None) -> None:
        """`records` is the client's other trace, which is told of all that this one is told of."""
        self._tracer = trace.get_tracer("rocketq", version, provider)
        self._records = records

    # --- sends (SendSpans) -------------------------------------------------------------

    def sent_one(self, topic: str, message: Message, send: Callable[[Message], SendResult]) -> SendResult:
        attributes = _about(names.SEND, topic) | _content(message.body, message.key, message.tag)
        with self._span(names.SEND, topic, SpanKind.PRODUCER, attributes) as span:
            result = send(replace(message, properties=_injected(message.properties)))
            if result.message_id:
                span.set_attribute(names.MESSAGE_ID, result.message_id)
            span.set_attribute(names.PARTITION_ID, f"{result.queue.broker}/{result.queue.queue}")
            return result

    def created(self, topic: str, properties: Mapping[str, str] | None) -> dict[str, str]:
        with self._span(names.CREATE, topic, SpanKind.PRODUCER, _about(names.CREATE, topic)):
            return _injected(properties)

    @contextmanager
    def sending(self, topic: str) -> Iterator[None]:
        with self._span(names.SEND, topic, SpanKind.PRODUCER, _about(names.SEND, topic)):
            yield

    # --- messages on their way (SendTrace) ---------------------------------------------

    def marked(self, topic: str, properties: dict[str, str] | None) -> dict[str, str] | None:
        return properties if self._records is None else self._records.marked(topic, properties)

    def marked_rows(
        self, topic: str, given: Mapping[int, Mapping[str, str]], rows: int
    ) -> dict[int, dict[str, str]]:
        return {} if self._records is None else self._records.marked_rows(topic, given, rows)

    def marked_batch(self, topic: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._records is not None:
            batch = self._records.marked_batch(topic, batch)
        carried = _injected(None)
        if not carried:
            return batch
        column = batch.column(_PROPERTIES)
        mask = lacks(column, names.TRACEPARENT)
        count = int(mask.sum())
        if not count:
            return batch
        added = {name: repeated(value, count) for name, value in carried.items()}
        column = with_properties(column, mask, added)
        return batch.set_column(_PROPERTIES, MESSAGE_SCHEMA.field(_PROPERTIES), column)

    def attempted_one(
        self, attempt: TracedAttempt, queue: MessageQueue, message: Message, result: SendResult | None
    ) -> None:
        if self._records is not None:
            self._records.attempted_one(attempt, queue, message, result)

    def attempted(self, attempt: TracedAttempt, parcel: Parcel, results: Sequence[SendResult] | None) -> None:
        if self._records is not None:
            self._records.attempted(attempt, parcel, results)
        if trace.get_current_span().get_span_context().is_valid:
            # The span of the send itself, which has all its attempts.
            return
        links = _links(_contexts(piece.batch.column(_PROPERTIES) for piece in parcel.slices))
        if not links:
            return
        now_ns = time.time_ns()
        count = sum(piece.batch.num_rows for piece in parcel.slices)
        span = self._tracer.start_span(
            f"{names.SEND} {parcel.topic}",
            kind=SpanKind.CLIENT,
            links=links,
            start_time=now_ns - attempt.elapsed_ms * 1_000_000,
            attributes={**_about(names.SEND, parcel.topic), names.MESSAGE_COUNT: count},
        )
        if attempt.error is not None:
            _fail(span, attempt.error)
        span.end(now_ns)

    # --- receipts (ReceiveHook) --------------------------------------------------------

    def after_receipt(self, receipt: Receipt) -> Collection[int]:
        topic = receipt.queue.topic
        span = self._tracer.start_span(
            f"{names.RECEIVE} {topic}",
            kind=SpanKind.CLIENT,
            links=_links(_contexts([receipt.delivery.piece.batch.column(_PROPERTIES)])),
            attributes={
                **_about(names.RECEIVE, topic),
                **_member(receipt.group, receipt.client_id),
                names.PARTITION_ID: f"{receipt.queue.broker}/{receipt.queue.queue}",
                names.MESSAGE_COUNT: receipt.delivery.rows,
            },
        )
        span.end()
        return ()

    def after_handling(
        self, receipt: Receipt, rows: Sequence[int], elapsed_ms: int, is_acknowledged: bool
    ) -> None:
        """Nothing: what handles a message has a span of its own."""

    # --- handling ----------------------------------------------------------------------

    @contextmanager
    def processing(self, message: Received, group: str | None = None) -> Iterator[Span]:
        """Return the span of handling a message, for a `with` statement; it is the current one in the block.

        An exception ends the span as an error and goes on.
        """
        topic = message.queue.topic
        attributes = {
            **_about(names.PROCESS, topic),
            **_content(message.body, None, message.tag),
            **({} if group is None else {names.CONSUMER_GROUP: group}),
            names.MESSAGE_ID: message.message_id,
            names.PARTITION_ID: f"{message.queue.broker}/{message.queue.queue}",
        }
        links = _links([message.properties or {}])
        with self._span(names.PROCESS, topic, SpanKind.CONSUMER, attributes, links) as span:
            yield span

    def handler(self, function: Callable[[Any], object], group: str) -> Callable[[Any], object]:
        """Return a listener's function such that each call has a span."""

        def handle(message: Any) -> object:
            with self.processing(message, group):
                return function(message)

        return handle

    # --- inside ------------------------------------------------------------------------

    @contextmanager
    def _span(
        self,
        operation: str,
        topic: str,
        kind: SpanKind,
        attributes: Mapping[str, Any],
        links: Sequence[Link] = (),
    ) -> Iterator[Span]:
        span = self._tracer.start_span(
            f"{operation} {topic}", kind=kind, attributes=dict(attributes), links=links
        )
        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                yield span
            except Exception as error:
                _fail(span, error)
                raise


def _about(operation: str, topic: str) -> dict[str, Any]:
    return {
        names.MESSAGING_SYSTEM: names.SYSTEM,
        names.OPERATION_NAME: operation,
        names.OPERATION_TYPE: operation,
        names.DESTINATION_NAME: topic,
    }


def _content(body: bytes, key: bytes | None, tag: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {names.BODY_SIZE: len(body)}
    if key is not None:
        found[names.MESSAGE_KEYS] = [key.decode(errors="replace")]
    if tag is not None:
        found[names.MESSAGE_TAG] = tag
    return found


def _member(group: str, client_id: str) -> dict[str, Any]:
    return {names.CONSUMER_GROUP: group, names.CLIENT_ID: client_id}


def _fail(span: Span, error: BaseException) -> None:
    span.record_exception(error)
    kind = error.code if isinstance(error, RocketqError) else type(error).__name__
    span.set_attribute(names.ERROR_TYPE, kind)
    span.set_status(StatusCode.ERROR, str(error))


def _injected(properties: Mapping[str, str] | None) -> dict[str, str]:
    """Return properties with the current context, unless they carry one."""
    made = dict(properties or {})
    if made.get(names.TRACEPARENT) is None:
        _PROPAGATOR.inject(made)
    return made


def _contexts(columns: Iterable[pa.MapArray]) -> list[dict[str, str]]:
    """Return the different contexts that the messages of some batches carry, at most as many as links."""
    found: dict[str, dict[str, str]] = {}
    for column in columns:
        rows = rows_with(column, names.TRACEPARENT)
        if not len(rows):
            continue
        values = pc.map_lookup(column.take(numbers(rows[:LINKS_MAX])), text(names.TRACEPARENT), "first")
        found |= {value: {names.TRACEPARENT: value} for value in values.to_pylist()}
    return list(found.values())[:LINKS_MAX]


def _links(carriers: Iterable[Mapping[str, str]]) -> list[Link]:
    """Return links to the contexts of messages; a message without a valid one has none."""
    contexts = (
        trace.get_current_span(_PROPAGATOR.extract(carrier, context=None)).get_span_context()
        for carrier in carriers
        if carrier.get(names.TRACEPARENT) is not None
    )
    return [Link(context) for context in contexts if context.is_valid]
