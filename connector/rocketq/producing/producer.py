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
out in `shared_send`, and what staging is for in `rocketq.sinks.sink`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from rocketq.admin.topics import TopicAdmin
from rocketq.clock import Clock, SystemClock
from rocketq.config import Compression, ProducerConfig
from rocketq.errors import Closed, InvalidBatch, InvalidConfiguration, RocketqError, SendFailed
from rocketq.model import Message, MessageQueue, SendResult
from rocketq.net.route_cache import RouteCache
from rocketq.net.transport import Transport
from rocketq.producing.accumulator import Destination, Waiting
from rocketq.producing.fault_avoidance import FaultTolerance
from rocketq.producing.input_batches import OrderingKeys, ordered_batches
from rocketq.producing.parcels import Parcel, parcels
from rocketq.producing.queue_selectors import (
    ByHash,
    Explicit,
    QueueSelector,
    QueueSlice,
    RoundRobin,
    Selection,
    named,
)
from rocketq.producing.send_attempts import APPEND, Delivery, Post, append_one
from rocketq.producing.shared_send import SharedSend, grouped, partitioned
from rocketq.producing.staged_send import StagedPost, StagedSlice
from rocketq.producing.submit_threads import Pipeline
from rocketq.protocol.hashing import hash_column, hash_value
from rocketq.protocol.message_schema import from_messages
from rocketq.protocol.rules.message_rules import check_message
from rocketq.protocol.rules.reserved_names import check_user_topic
from rocketq.protocol.sink_documents import StageName

log = logging.getLogger("rocketq.producing.producer")

Text: TypeAlias = bytes | str
SelectionName: TypeAlias = Literal["round_robin", "random"]
R = TypeVar("R")

#: One-way sends that may wait for a thread before `send_oneway` blocks.
ONEWAY_WAITING_MAX = 1_024


@dataclass(frozen=True, slots=True)
class Placing:
    """What a caller said about the queues of a batch."""

    ordering_key: OrderingKeys | None
    selection: SelectionName | QueueSelector | None
    queue: MessageQueue | int | None

    def check(self) -> None:
        """Raise InvalidConfiguration if more than one of them chooses the queues."""
        choices = {"queue": self.queue, "selection": self.selection, "ordering_key": self.ordering_key}
        given = [name for name, value in choices.items() if value is not None]
        if len(given) > 1:
            why = f"it contradicts {given[1]}, which chooses the queue itself"
            raise InvalidConfiguration(
                given[0], str(choices[given[0]]), why, hint="Leave one of the two out."
            )


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
        self._transport = transport
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
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send one message and return where it is. Text is sent as UTF-8.

        A status other than SEND_OK is returned, not raised: the message is
        stored, but not as safely as the broker is set to. Raises SendFailed
        after all attempts; InvalidMessage, ReservedName, InvalidBatch or TooLarge at once;
        RouteNotFound, NameServersUnreachable, Closed.
        """
        message = self._message(body, key, tag, properties)
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
    ) -> None:
        """Send one message in the background, once; a failure is only logged."""
        message = self._message(body, key, tag, properties)
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
    ) -> Future[SendResult]:
        """Queue one message to be sent with others; the future gives its result or its error.

        Blocks while the buffer is full. Messages of one ordering key (or
        explicit queue) keep their order: when one fails, those waiting behind it fail too.
        """
        message = self._message(body, key, tag, properties)
        if ordering_key is None and queue is None:
            self._check(topic)
            return self._started_pipeline().submit(Destination(topic), message, None)
        order = _bytes(ordering_key)
        queues = self._queues(topic)
        selector = self._selector(topic, order, queue, queues)
        chosen = selector.select(queues, Selection(order, now_ms=self._delivery.now_ms()))
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
        compression: Compression | None = None,
        timeout_ms: int | None = None,
    ) -> list[SendResult]:
        """Send a Table, RecordBatch, DataFrame or list of Message; return a result for each slice stored.

        The columns are those of schema message/1; only `body` is required. `ordering_key` is the name of
        the column that orders the messages, or an array with one key for each (null: no order). A column
        that is not of message/1 is used for that alone and not sent; `ordering_key="key"` orders by what
        the messages are found by. At most one of `ordering_key`, `selection` (round_robin by default) and
        `queue` chooses the queues. Slices come back
        in the order of their first message. `timeout_ms` is for each request of about
        `request_bytes`. Raises as `send`; after SendFailed, `facts["stored"]` lists what was stored all
        the same, as [broker, queue, offset, count].
        """
        placing = Placing(ordering_key, selection, queue)
        return self._share_out(topic, data, placing, compression, timeout_ms, APPEND)

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
        post = StagedPost(stage, self._transport)
        placing = Placing(ordering_key, selection, queue)
        return self._share_out(topic, data, placing, compression, timeout_ms, post)

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
        self, body: Text, key: Text | None, tag: str | None, properties: Mapping[str, str] | None
    ) -> Message:
        content = _bytes(body)
        if content is None:
            raise InvalidBatch("a message has no body", hint="Send b'' for an empty message.")
        given = dict(properties) if properties is not None else None
        # Before it waits with others: one that the broker refuses would take them along.
        check_message(tag, given or ())
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

    def _share_out(
        self,
        topic: str,
        data: Any,
        placing: Placing,
        compression: Compression | None,
        timeout_ms: int | None,
        post: Post[R],
    ) -> list[R]:
        placing.check()
        batches = ordered_batches(data, placing.ordering_key, self._clock.now_us())
        selector = self._batch_selector(topic, placing, self._queues(topic))
        slice_bytes = min(self.config.slice_bytes, self.config.request_bytes)
        codec = compression or self.config.compression
        sending = SharedSend(
            lambda parcel: self._deliver(parcel, selector, codec, timeout_ms, post=post), self._pool
        )
        try:
            for together in grouped(batches, self.config.request_bytes):
                choice = Selection(
                    now_ms=self._delivery.now_ms(), slice_bytes=slice_bytes, batches=len(together)
                )
                slices = partitioned(selector, self._queues(topic), together, choice)
                sending.send(parcels(topic, slices, self.config.request_bytes))
        except SendFailed as error:
            _tell_what_was_stored(error, [r for r in sending.results if isinstance(r, SendResult)])
            raise
        return sending.results

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
            return Explicit(_resolved(topic, queue, queues))
        return self._round_robin if order is None else self._by_hash

    def _batch_selector(self, topic: str, placing: Placing, queues: Sequence[MessageQueue]) -> QueueSelector:
        if placing.queue is not None:
            return Explicit(_resolved(topic, placing.queue, queues))
        if placing.ordering_key is not None:
            return self._by_hash
        if placing.selection is None or placing.selection == "round_robin":
            return self._round_robin
        return named(placing.selection) if isinstance(placing.selection, str) else placing.selection

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


def _tell_what_was_stored(error: SendFailed, results: Sequence[SendResult]) -> None:
    if results:
        error.facts["stored"] = [[r.queue.broker, r.queue.queue, r.offset, r.count] for r in results]
        error.hint = f"{sum(r.count for r in results)} messages of this call were stored. {error.hint}"


def _resolved(topic: str, queue: MessageQueue | int, queues: Sequence[MessageQueue]) -> MessageQueue:
    """Return the queue that is meant; a number alone must be unambiguous."""
    if isinstance(queue, MessageQueue):
        if queue.topic != topic:
            raise InvalidConfiguration("queue", str(queue), f"it is not a queue of topic {topic!r}")
        return queue
    matching = [q for q in queues if q.queue == queue]
    if len(matching) > 1:
        raise InvalidConfiguration(
            "queue",
            queue,
            f"{len(matching)} brokers have a queue of this number",
            hint="Give a MessageQueue, for example one of client.route(topic).write_queues().",
        )
    return matching[0] if matching else MessageQueue(topic, queues[0].broker, queue)


def _bytes(value: Text | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
