"""Sending messages: one, many at once, or one by one in the background.

    send          one message, one request, answered when the broker has it
    send_batch    a Table, RecordBatch, DataFrame or list of Message, shared out
                  among queues without a loop over messages, in parallel over brokers
    stage_batch   as send_batch, but for a sink: nothing is there before its batch is committed
    submit        one message, accumulated with others, answered by a Future
    send_oneway   one message, one attempt, no answer

`key` is what a message is found by later, and says nothing of its place. A message without an order
goes round robin, or where your selection says; one with an `ordering_key` goes to the queue of that
key's hash, one with a `queue` to that queue, and neither is moved elsewhere while its broker is in the
route. A topic that does not exist is created
where the brokers allow it. How attempts follow each other is in
`send_attempts`, how messages gather in `accumulator`, how a batch is shared
sent in `batch_sender`, and what staging is for in `rocketq.sinks.sink`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from rocketq.admin.topics import TopicAdmin
from rocketq.clock import Clock, SystemClock
from rocketq.config import Compression, ProducerConfig
from rocketq.errors import Closed, InvalidBatch, InvalidConfiguration, RocketqError
from rocketq.model import Message, MessageQueue, SendResult
from rocketq.net.route_cache import RouteCache
from rocketq.net.transport import Transport
from rocketq.producing.accumulator import Destination, Waiting
from rocketq.producing.batch_sender import IN_FLIGHT, BatchSender, SendPlan
from rocketq.producing.fault_avoidance import FaultTolerance
from rocketq.producing.input_batches import OrderingKeys, batches_of
from rocketq.producing.parcels import Parcel, parcels
from rocketq.producing.placing import Placing, SelectionName
from rocketq.producing.queue_selectors import (
    DEFAULT_KEYED_STRATEGY,
    DEFAULT_STRATEGY,
    ByHash,
    Explicit,
    QueueSelector,
    QueueSlice,
    RoundRobin,
    Selection,
    resolved_queue,
    strategy,
)
from rocketq.producing.send_attempts import APPEND, Delivery, Post, append_one
from rocketq.producing.staged_send import StagedPost, StagedSlice
from rocketq.producing.submit_threads import Pipeline
from rocketq.protocol.hashing import hash_column, hash_value
from rocketq.protocol.message_schema import MESSAGE_SCHEMA, from_messages
from rocketq.protocol.rules.delivery_time import (
    check_delivery,
    delivery_properties,
    is_timed,
    with_property,
)
from rocketq.protocol.rules.message_rules import check_message
from rocketq.protocol.rules.reserved_names import check_user_topic
from rocketq.protocol.sink_documents import StageName

log = logging.getLogger("rocketq.producing.producer")

Text: TypeAlias = bytes | str
R = TypeVar("R")

#: One-way sends that may wait for a thread before `send_oneway` blocks.
ONEWAY_WAITING_MAX = 1_024


class Producer:
    """Sends messages to topics. Thread-safe; `close` (or `with`) sends what still waits."""

    def __init__(
        self,
        transport: Transport,
        routes: RouteCache,
        *,
        config: ProducerConfig | None = None,
        clock: Clock | None = None,
        fault: FaultTolerance | None = None,
    ) -> None:
        self.config = config or ProducerConfig()
        self._clock = clock or SystemClock()
        #: What is remembered of slow and failing brokers.
        self.fault = fault or FaultTolerance()
        self._round_robin = RoundRobin(self.fault if self.config.fault_avoidance else None)
        self._by_hash = ByHash()
        self._closing = threading.Event()
        topics = TopicAdmin(transport, routes)
        self._delivery = Delivery(
            transport, routes, topics, self.config, self._clock, self.fault, self._closing
        )
        self._lock = threading.Lock()
        self._closed = False
        self._pipeline: Pipeline | None = None
        self._workers: ThreadPoolExecutor | None = None
        self._oneway_places = threading.BoundedSemaphore(ONEWAY_WAITING_MAX)

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
        return self._send_one(topic, message, ordering_key, queue, timeout_ms, self.config.retries)

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
        """Send one message in the background, once; a failure is only logged."""
        message = self._message(body, key, tag, properties, delay, deliver_at)
        workers = self._pool()
        self._oneway_places.acquire()

        def attempt() -> None:
            try:
                self._send_one(topic, message, ordering_key, queue, None, 0)
            except RocketqError as error:
                log.warning("A one-way message to %s was lost: %s", topic, error)
            finally:
                self._oneway_places.release()

        workers.submit(attempt)

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
    ) -> Future[SendResult]:
        """Queue one message to be sent with others; the future gives its result or its error.

        Blocks while the buffer is full. Messages of one ordering key (or
        explicit queue) keep their order: when one fails, those waiting behind it fail too.
        """
        message = self._message(body, key, tag, properties, delay, deliver_at)
        is_delayed = is_timed(message.properties)
        if ordering_key is None and queue is None:
            self._check(topic)
            return self._started_pipeline().submit(Destination(topic, None, False, is_delayed), message, None)
        order = _bytes(ordering_key)
        queues = self._queues(topic)
        selector = self._selector(topic, order, queue, queues)
        chosen = selector.select(queues, Selection(order, now_ms=self._delivery.now_ms()))
        if is_delayed:
            # It leaves the broker at its own time, so it neither waits for other messages nor fails with
            # them.
            return self._started_pipeline().submit(Destination(topic, chosen, False, True), message, None)
        destination = Destination(topic, chosen, is_keyed=order is not None)
        return self._started_pipeline().submit(destination, message, order)

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
        `request_bytes`. Raises as `send`; after SendFailed, `facts["stored"]` lists what was stored all
        the same, as [broker, queue, offset, count].
        """
        placing = Placing(ordering_key, selection, queue)
        timed = delivery_properties(delay, deliver_at)
        if timed:
            data = [with_property(batch, *next(iter(timed.items()))) for batch in batches_of(data)]
            data = pa.Table.from_batches(data, MESSAGE_SCHEMA)
        return self._send_all(topic, data, placing, compression, timeout_ms, APPEND)

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
    ) -> BatchSender[SendResult]:
        """Return a sender for data that comes batch after batch; use it in `with`, and from one thread.

        `sender.add(topic, data, queue)` takes data as `send_batch` does and gathers it into requests, of
        which a few are in flight at a time; `sender.finish()` returns a result for each slice stored.
        """
        return self._batch_sender(Placing(ordering_key, selection, None), compression, timeout_ms, APPEND)

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
        """Send what was submitted, and return when every future of it is settled."""
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
        self._closing.set()

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
        content = _bytes(body)
        if content is None:
            raise InvalidBatch("a message has no body", hint="Send b'' for an empty message.")
        given = dict(properties) if properties is not None else None
        if delay is not None or deliver_at is not None:
            given = {**(given or {}), **delivery_properties(delay, deliver_at)}
        # Before it waits with others: one that the broker refuses would take them along.
        check_message(tag, given or ())
        check_delivery(given)
        return Message(content, _bytes(key), tag, given, self._clock.now_us())

    def _check(self, topic: str) -> None:
        if self._closed:
            raise Closed("The producer")
        check_user_topic(topic)

    def _queues(self, topic: str) -> list[MessageQueue]:
        self._check(topic)
        return self._delivery.write_queues(topic)

    def _send_one(
        self,
        topic: str,
        message: Message,
        ordering_key: Text | None,
        queue: MessageQueue | int | None,
        timeout_ms: int | None,
        retries: int,
    ) -> SendResult:
        queues = self._queues(topic)
        order = _bytes(ordering_key)
        selector = self._selector(topic, order, queue, queues)
        chosen = selector.select(queues, Selection(order, now_ms=self._delivery.now_ms()))
        hashes = None if order is None else np.array([hash_value(order)], np.uint64)
        parcel = Parcel(topic, (QueueSlice(chosen, from_messages([message]), 0, hashes=hashes),))
        compression = self.config.compression
        post = append_one(message, compression)
        ((_, result),) = self._deliver(parcel, selector, compression, timeout_ms, retries, post=post)
        return result

    def _send_all(
        self,
        topic: str,
        data: Any,
        placing: Placing,
        compression: Compression | None,
        timeout_ms: int | None,
        post: Post[R],
    ) -> list[R]:
        # One group at a time: after a failure nothing more of the data is sent.
        with self._batch_sender(placing, compression, timeout_ms, post, in_flight=1) as sender:
            sender.add(topic, data, placing.queue)
            return sender.finish()

    def _batch_sender(
        self,
        placing: Placing,
        compression: Compression | None,
        timeout_ms: int | None,
        post: Post[R],
        in_flight: int = IN_FLIGHT,
    ) -> BatchSender[R]:
        placing.check()
        plan = SendPlan(
            self._batch_selector(placing),
            placing.ordering_key,
            post,
            compression or self.config.compression,
            timeout_ms or self.config.timeout_ms,
            in_flight,
        )
        return BatchSender(plan, self._delivery, self.config, self._clock, self._queues, self._pool)

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
        return self._delivery.send(
            parcel,
            selector,
            compression,
            post,
            timeout_ms=timeout_ms or self.config.timeout_ms,
            retries=self.config.retries if retries is None else retries,
        )

    def _send_waiting(
        self, destination: Destination, waiting: Sequence[Waiting]
    ) -> Iterator[tuple[Iterable[int], SendResult]]:
        """Send an accumulated batch; give the rows of each part that is stored (called by the pipeline)."""
        selector, slices = self._placed(destination, waiting)
        for of_broker in parcels(destination.topic, slices, self.config.request_bytes).values():
            for parcel in of_broker:
                sent = self._deliver(parcel, selector, self.config.compression, None, post=APPEND)
                for piece, result in sent:
                    yield piece.row_numbers(), result

    def _placed(
        self, destination: Destination, waiting: Sequence[Waiting]
    ) -> tuple[QueueSelector, list[QueueSlice]]:
        """Choose the queues of an accumulated batch, by the route of now."""
        batch = from_messages([w.message for w in waiting])
        if destination.queue is not None and not destination.is_keyed:
            return Explicit(destination.queue), [QueueSlice(destination.queue, batch, 0)]
        queues = self._delivery.write_queues(destination.topic)
        now_ms = self._delivery.now_ms()
        if destination.is_keyed:
            hashes = hash_column(pa.array([w.order for w in waiting], pa.binary()))
            return self._by_hash, self._by_hash.partition(
                queues, batch, Selection(hashes=hashes, now_ms=now_ms)
            )
        chosen = self._round_robin.select(queues, Selection(now_ms=now_ms))
        return self._round_robin, [QueueSlice(chosen, batch, 0)]

    def _selector(
        self,
        topic: str,
        order: bytes | None,
        queue: MessageQueue | int | None,
        queues: Sequence[MessageQueue],
    ) -> QueueSelector:
        if queue is not None:
            if order is not None:
                raise InvalidConfiguration(
                    "queue", queue, "it contradicts ordering_key, which chooses the queue itself"
                )
            return Explicit(resolved_queue(topic, queue, queues))
        return self._round_robin if order is None else self._by_hash

    def _batch_selector(self, placing: Placing) -> QueueSelector:
        chosen = placing.selection
        if chosen is not None and not isinstance(chosen, str):
            return chosen
        name = chosen or (DEFAULT_STRATEGY if placing.ordering_key is None else DEFAULT_KEYED_STRATEGY)
        # These two are shared by all sends, so that they go on where the send before ended.
        shared: Mapping[str, QueueSelector] = {
            DEFAULT_STRATEGY: self._round_robin,
            DEFAULT_KEYED_STRATEGY: self._by_hash,
        }
        return shared.get(name) or strategy(name).make(self.fault if self.config.fault_avoidance else None)

    def _started_pipeline(self) -> Pipeline:
        with self._lock:
            if self._closed:
                raise Closed("The producer")
            if self._pipeline is None:
                self._pipeline = Pipeline(self._send_waiting, self.config, self._clock)
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


def _bytes(value: Text | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
