"""Sending messages: one, many at once, or one by one in the background.

    send          one message, one request, answered when the broker has it
    send_batch    a Table, RecordBatch, DataFrame or list of Message, shared out
                  among queues without a loop over messages, in parallel over brokers
    stage_batch   as send_batch, but for a sink: readers see nothing before its batch is committed
    batch_sender  as send_batch, for data that comes batch after batch; batch_stager as stage_batch
    submit        one message, accumulated with others, answered by a Future
    send_oneway   one message, one attempt, no answer

The `key` is what a message is found by later; it does not choose the queue. A message without an order goes
round robin, or where your selection says. A message with an `ordering_key` goes to the queue of that key's
hash, a message with a `queue` to that queue; both stay there while the queue's broker is in the route. A
topic that does not exist is created where the brokers allow it.

`send_attempts` has the attempts of a request, `accumulator` gathers messages, `batch_sender` shares batches
out and sends them, and `rocketq.sinks.sink` says what staging is for.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa

from rocketq.admin.topics import TopicAdmin
from rocketq.clock import Clock, SystemClock
from rocketq.config import Compression, ProducerConfig
from rocketq.errors import Closed, SendFailed
from rocketq.model import Message, MessageQueue, SendResult
from rocketq.net.client_id import new_client_id
from rocketq.net.route_cache import RouteCache
from rocketq.net.transport import Transport
from rocketq.producing.accumulation.accumulator import NO_FIELDS, Destination
from rocketq.producing.accumulation.message_columns import with_id
from rocketq.producing.accumulation.send_future import SendFuture
from rocketq.producing.accumulation.submit_threads import Pipeline
from rocketq.producing.attempts.parcels import Parcel, parcels
from rocketq.producing.attempts.posts import APPEND, Post, unique_id_of
from rocketq.producing.attempts.send_attempts import SendAttempts
from rocketq.producing.attempts.send_hooks import SendHook
from rocketq.producing.attempts.send_spans import SendSpans
from rocketq.producing.attempts.send_trace import SendTrace
from rocketq.producing.batch_sender import IN_FLIGHT, BatchSender, SendPlan
from rocketq.producing.checked_fields import Text, body_bytes, checked_fields, text_bytes
from rocketq.producing.input_batches import OrderingKeys, timed_data
from rocketq.producing.oneway_sends import OnewaySends
from rocketq.producing.placing import Placing, ProducerSelectors, SelectionName
from rocketq.producing.producer_sessions import ProducerSessions
from rocketq.producing.selection.fault_avoidance import BrokerFault, FaultTolerance
from rocketq.producing.selection.queue_selectors import QueueSelector, QueueSlice, Rows, Selection
from rocketq.producing.staged_send import StagedPost, StagedSlice
from rocketq.producing.unique_ids import UNIQUE_IDS
from rocketq.protocol.documents.sinks import StageName
from rocketq.protocol.rules.delivery_time import is_timed
from rocketq.protocol.rules.reserved_names import check_user_topic

log = logging.getLogger("rocketq.producing.producer")

R = TypeVar("R")

#: Topics whose names are remembered to be allowed.
FREE_DESTINATIONS_MAX: Final = 1_024


class Producer:
    """Sends messages to topics. Thread-safe; `close` (or `with`) sends what still waits.

    >>> with client.producer() as producer:
    ...     sent = producer.send("orders", '{"amount": 42}', key="o-1", tag="paid")
    ...     waiting = [producer.submit("orders", str(number)) for number in range(3)]
    >>> sent.status.value, sum(future.result().count for future in waiting)
    ('SEND_OK', 3)
    """

    def __init__(
        self,
        transport: Transport,
        routes: RouteCache,
        *,
        config: ProducerConfig | None = None,
        clock: Clock | None = None,
        fault: FaultTolerance | None = None,
        group: str | None = None,
        trace: SendTrace | None = None,
        spans: SendSpans | None = None,
    ) -> None:
        """With a `group` the producer is a member of this producer group, and every live broker lists it."""
        self.config = config or ProducerConfig()
        self._clock = clock or SystemClock()
        #: What is remembered of slow and failing brokers.
        self.fault = fault or FaultTolerance()
        self._selectors = ProducerSelectors(self.fault if self.config.fault_avoidance else None)
        topics = TopicAdmin(transport, routes)
        self._attempts = SendAttempts(transport, routes, topics, self.config, self._clock, self.fault)
        self._attempts.trace = self._trace = trace
        self._spans = spans
        self._lock = threading.Lock()
        self._closed = False
        self._pipeline: Pipeline | None = None
        self._workers: ThreadPoolExecutor | None = None
        #: Destinations of topics whose names were checked.
        self._free: dict[str, Destination] = {}
        self._oneway = OnewaySends()
        self.group = group
        self._sessions = (
            None
            if group is None
            else ProducerSessions(transport, routes, group, new_client_id(), self._clock)
        )

    # --- one message -------------------------------------------------------------

    def send(
        self,
        topic: str,
        body: Text,
        *,
        key: Text | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        ordering_key: Text | None = None,
        queue: MessageQueue | int | None = None,
        delay: str | timedelta | None = None,
        deliver_at: datetime | int | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send one message and return where it is. Text is sent as UTF-8.

        With `delay` ("10s", "5m", a timedelta) or `deliver_at` (a datetime with its time zone, or
        milliseconds since 1970) the broker stores the message and delivers it at that time (RocketMQ:
        setDelayTimeMs, setDeliverTimeMs). Its result has the offset NO_OFFSET, and `timer_id` names it until
        then.

        A status other than SEND_OK is returned, not raised: the message is
        stored, but not as safely as the broker is set to. Raises SendFailed
        after all attempts; InvalidMessage, ReservedName, InvalidBatch or TooLarge at once;
        RouteNotFound, NameServersUnreachable, Closed.
        """
        message = self._message(body, key, tag, properties, delay, deliver_at)
        self._check(topic)
        order = text_bytes("ordering_key", ordering_key)
        return self._send_one(topic, message, order, queue, timeout_ms, self.config.retries)

    def send_oneway(
        self,
        topic: str,
        body: Text,
        *,
        key: Text | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        ordering_key: Text | None = None,
        queue: MessageQueue | int | None = None,
        delay: str | timedelta | None = None,
        deliver_at: datetime | int | None = None,
    ) -> None:
        """Send one message in the background, with one attempt; `oneway_lost` counts those that failed."""
        message = self._message(body, key, tag, properties, delay, deliver_at)
        self._check(topic)
        order = text_bytes("ordering_key", ordering_key)
        self._oneway.begin(
            self._pool(), topic, partial(self._send_one, topic, message, order, queue, None, 0)
        )

    def submit(
        self,
        topic: str,
        body: Text,
        *,
        key: Text | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        ordering_key: Text | None = None,
        queue: MessageQueue | int | None = None,
        delay: str | timedelta | None = None,
        deliver_at: datetime | int | None = None,
    ) -> SendFuture:
        """Queue one message to be sent with others; the future gives its result or its error.

        Blocks while the buffer is full. Messages of one ordering key (or
        explicit queue) keep their order: when one fails, those waiting behind it fail too.
        Raises InvalidMessage, InvalidBatch, TooLarge, ReservedName and Closed at once.
        """
        content = body if type(body) is bytes else body_bytes(body)
        fields = checked_fields(key, tag, properties, delay, deliver_at)
        if self._spans is not None:
            fields = fields._replace(properties=self._spans.created(topic, fields.properties))
        destination = self._free.get(topic)
        pipeline = self._pipeline
        if destination is None or pipeline is None:
            destination, pipeline = self._free_destination(topic), self._started_pipeline()
        is_delayed = fields is not NO_FIELDS and is_timed(fields.properties)
        if ordering_key is None and queue is None:
            return pipeline.submit(
                destination._replace(is_delayed=True) if is_delayed else destination, content, fields
            )
        order = text_bytes("ordering_key", ordering_key)
        queues = self._attempts.write_queues(topic)
        selector = self._selectors.of_message(topic, order, queue, queues)
        chosen = selector.select(queues, Selection(order, now_ms=self._attempts.now_ms()))
        placed = Destination(topic, chosen, order is not None and not is_delayed, is_delayed)
        return pipeline.submit(placed, content, fields, None if is_delayed else order)

    # --- many messages -----------------------------------------------------------

    def send_batch(
        self,
        topic: str,
        data: Any,
        *,
        ordering_key: OrderingKeys | None = None,
        selection: SelectionName | QueueSelector | None = None,
        queue: MessageQueue | int | None = None,
        delay: str | timedelta | None = None,
        deliver_at: datetime | int | None = None,
        compression: Compression | None = None,
        timeout_ms: int | None = None,
        unique_ids: bool = False,
    ) -> list[SendResult]:
        """Send a Table, RecordBatch, DataFrame or list of Message; return a result for each slice stored.

        The columns are those of schema message/1; only `body` is required. `ordering_key` is the name of
        the column that orders the messages, or an array with one key for each (null: no order). A column
        that is not of message/1 is used for that alone and not sent; `ordering_key="key"` orders by what
        the messages are found by. A column `deliver_at` (timestamps with a time zone, or milliseconds since
        1970; null: not delayed) has delivery times; `delay` or `deliver_at`, as for `send`, are for all
        messages. At most one of `ordering_key`, `selection` (round_robin by default) and
        `queue` chooses the queues. Slices come back
        in the order of their first message. `timeout_ms` is for each request of about
        `request_bytes`. With `unique_ids` each message gets an id of its own. Raises as `send`; after
        SendFailed, `facts["stored"]` lists what was stored all the same, as [broker, queue, offset, count].
        """
        placing = Placing(ordering_key, selection, queue)
        data = timed_data(data, delay, deliver_at)
        return self._send_all(topic, data, placing, compression, timeout_ms, APPEND, unique_ids)

    def stage_batch(
        self,
        stage: StageName,
        topic: str,
        data: Any,
        *,
        ordering_key: OrderingKeys | None = None,
        selection: SelectionName | QueueSelector | None = None,
        queue: MessageQueue | int | None = None,
        compression: Compression | None = None,
        timeout_ms: int | None = None,
    ) -> list[StagedSlice]:
        """Put messages on a stage as `send_batch` sends them; return what to name in the stage's commit.

        Nothing of it is visible until then. Raises as `send_batch`, and SinkFenced when another run
        has taken the sink over.
        """
        post = StagedPost(stage)
        placing = Placing(ordering_key, selection, queue)
        return self._send_all(topic, data, placing, compression, timeout_ms, post)

    def batch_sender(
        self,
        *,
        ordering_key: str | None = None,
        selection: SelectionName | QueueSelector | None = None,
        compression: Compression | None = None,
        timeout_ms: int | None = None,
        unique_ids: bool = False,
    ) -> BatchSender[SendResult]:
        """Return a sender for data that comes batch after batch; use it in `with`, and from one thread.

        `sender.add(topic, data, queue)` takes data as `send_batch` does and gathers it into requests, of
        which a few are in flight at a time; `sender.finish()` returns a result for each slice stored.
        """
        placing = Placing(ordering_key, selection, None)
        return self._batch_sender(placing, compression, timeout_ms, APPEND, unique_ids=unique_ids)

    def batch_stager(
        self,
        stage: StageName,
        *,
        ordering_key: str | None = None,
        selection: SelectionName | QueueSelector | None = None,
        compression: Compression | None = None,
        timeout_ms: int | None = None,
    ) -> BatchSender[StagedSlice]:
        """Return a sender as `batch_sender` does, that puts the messages on a stage (`stage_batch`)."""
        post = StagedPost(stage)
        return self._batch_sender(Placing(ordering_key, selection, None), compression, timeout_ms, post)

    # --- life --------------------------------------------------------------------

    def flush(self) -> None:
        """Send what was submitted, and return when every future of it has its result or error."""
        if self._pipeline is not None:
            self._pipeline.flush()

    def close(self) -> None:
        """Send what was submitted, then refuse further calls. Closing twice is no error."""
        with self._lock:
            self._closed = True
            pipeline, self._pipeline = self._pipeline, None
            workers, self._workers = self._workers, None
        if pipeline is not None:
            pipeline.close()
        if workers is not None:
            workers.shutdown()
        self._attempts.close()
        if self._sessions is not None:
            self._sessions.close()

    def faults(self) -> dict[str, BrokerFault]:
        """Return the brokers that are avoided now, or did not answer the last call; empty if all is well."""
        return self.fault.faults(self._attempts.now_ms())

    def add_hook(self, hook: SendHook) -> None:
        """Have a hook see every attempt from now on (`rocketq.producing.attempts.send_hooks`)."""
        with self._lock:
            self._attempts.hooks = (*self._attempts.hooks, hook)

    @property
    def oneway_lost(self) -> int:
        """How many one-way messages were not stored, as far as is known."""
        return self._oneway.lost

    @property
    def is_closed(self) -> bool:
        return self._closed

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- inside ------------------------------------------------------------------

    def _message(
        self,
        body: Text,
        key: Text | None,
        tag: str | None,
        properties: Mapping[str, str] | None,
        delay: str | timedelta | None,
        deliver_at: datetime | int | None,
    ) -> Message:
        content = body if type(body) is bytes else body_bytes(body)
        found, tag, given = checked_fields(key, tag, properties, delay, deliver_at)
        if self.config.unique_ids:
            given = with_id(given, UNIQUE_IDS.one())
        return Message(content, found, tag, given, self._clock.now_us())

    def _free_destination(self, topic: str) -> Destination:
        """Return where messages of a topic go that belong to no queue."""
        self._check(topic)
        return self._free.get(topic) or Destination(topic)

    def _check(self, topic: str) -> None:
        if self._closed:
            raise Closed("The producer")
        if topic not in self._free:
            check_user_topic(topic)
            if len(self._free) >= FREE_DESTINATIONS_MAX:
                self._free.clear()
            self._free[topic] = Destination(topic)

    def _queues(self, topic: str) -> list[MessageQueue]:
        self._check(topic)
        return self._attempts.write_queues(topic)

    def _send_one(
        self,
        topic: str,
        message: Message,
        order: bytes | None,
        queue: MessageQueue | int | None,
        timeout_ms: int | None,
        retries: int,
    ) -> SendResult:
        send = partial(self._sent_one, topic, order, queue, timeout_ms, retries)
        return send(message) if self._spans is None else self._spans.sent_one(topic, message, send)

    def _sent_one(
        self, topic: str, order: bytes | None, queue: MessageQueue | int | None, timeout_ms: int | None,
        retries: int, message: Message,
    ) -> SendResult:  # fmt: skip
        # The caller has checked; what still waits when the producer is closed is sent.
        queues = self._attempts.write_queues(topic)
        if self._trace is not None:
            marked = self._trace.marked(topic, message.properties)
            message = message if marked is message.properties else replace(message, properties=marked)
        selector = self._selectors.of_message(topic, order, queue, queues)
        chosen = selector.select(queues, Selection(order, now_ms=self._attempts.now_ms()))
        timeout_ms = timeout_ms or self.config.timeout_ms
        try:
            return self._attempts.send_one(
                chosen, message, order, selector, timeout_ms=timeout_ms, retries=retries
            )
        except SendFailed as failed:
            # For a caller who sends it again.
            if (unique_id := unique_id_of(message)) is not None:
                failed.facts["unique_id"] = unique_id
            raise

    def _send_all(
        self,
        topic: str,
        data: Any,
        placing: Placing,
        compression: Compression | None,
        timeout_ms: int | None,
        post: Post[R],
        unique_ids: bool = False,
    ) -> list[R]:
        # One group at a time: after a failure nothing more of the data is sent.
        span = nullcontext() if self._spans is None else self._spans.sending(topic)
        with span, self._batch_sender(placing, compression, timeout_ms, post, 1, unique_ids) as sender:
            sender.add(topic, data, placing.queue)
            return sender.finish()

    def _batch_sender(
        self,
        placing: Placing,
        compression: Compression | None,
        timeout_ms: int | None,
        post: Post[R],
        in_flight: int = IN_FLIGHT,
        unique_ids: bool = False,
    ) -> BatchSender[R]:
        placing.check()
        plan = SendPlan(
            self._selectors.of_data(placing),
            placing.ordering_key,
            post,
            compression or self.config.compression,
            timeout_ms or self.config.timeout_ms,
            in_flight,
            unique_ids,
        )
        return BatchSender(plan, self._attempts, self.config, self._clock, self._queues, self._pool)

    def _deliver(
        self,
        parcel: Parcel,
        selector: QueueSelector,
        compression: str | None,
        timeout_ms: int | None,
        retries: int | None = None,
        *,
        post: Post[R],
    ) -> Iterator[tuple[QueueSlice, R]]:
        return self._attempts.send(
            parcel,
            selector,
            compression,
            post,
            timeout_ms=timeout_ms or self.config.timeout_ms,
            retries=self.config.retries if retries is None else retries,
        )

    def _send_waiting(
        self, destination: Destination, batch: pa.RecordBatch, orders: list[bytes | None]
    ) -> Iterator[tuple[Rows, SendResult]]:
        """Send an accumulated batch; give the rows of each part that is stored (called by the pipeline)."""
        queues = self._attempts.write_queues(destination.topic)
        selector, slices = self._selectors.place(destination, batch, orders, queues, self._attempts.now_ms())
        for of_broker in parcels(destination.topic, slices, self.config.request_bytes).values():
            for parcel in of_broker:
                sent = self._deliver(parcel, selector, self.config.compression, None, post=APPEND)
                for piece, result in sent:
                    yield piece.row_numbers(), result

    def _new_pipeline(self) -> Pipeline:
        return Pipeline(self._send_waiting, self.config, self._clock)

    def _started_pipeline(self) -> Pipeline:
        with self._lock:
            if self._closed:
                raise Closed("The producer")
            if self._pipeline is None:
                self._pipeline = self._new_pipeline()
                self._pipeline.trace = self._trace
            return self._pipeline

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._closed:
                raise Closed("The producer")
            if self._workers is None:
                self._workers = ThreadPoolExecutor(
                    self.config.sender_threads, thread_name_prefix="rocketq-batch"
                )
            return self._workers
