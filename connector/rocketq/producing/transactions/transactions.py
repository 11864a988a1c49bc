"""Transactional messages: consumers see a message if, and only if, a local transaction succeeded.

A broker asks a live producer of the group about a transaction whose outcome it does not learn, because the
producer died or its call got lost: `check` is called with the first message and says what the local
transaction did (`transaction_checks`). Every transaction has an id of its own. A local transaction that
stores it tells the check function later whether it took place (docs/transactions.md).

All messages of a transaction lie on one broker, that of the first. A transaction cannot hold a delayed
message, nor begin inside another one.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Final, NamedTuple, NoReturn

from rocketq.admin.topics import TopicAdmin
from rocketq.clock import Clock
from rocketq.config import ProducerConfig, TransportConfig
from rocketq.errors import (
    BrokerUnavailable,
    Closed,
    RocketqError,
    SendFailed,
    StoreFull,
    SystemBusy,
    TooManyConnections,
    TooSlow,
)
from rocketq.errors.transaction_errors import TransactionMisused
from rocketq.model import Message, MessageQueue, TransactionState
from rocketq.net.broker_api import master_of
from rocketq.net.client_id import new_client_id
from rocketq.net.retry import persist
from rocketq.net.route_cache import RouteCache
from rocketq.net.transaction_api import TransactionApi
from rocketq.net.transport import Transport
from rocketq.producing.attempts.attempt_rules import attempt_ms
from rocketq.producing.attempts.parcels import Parcel
from rocketq.producing.attempts.send_attempts import SendAttempts
from rocketq.producing.attempts.send_trace import is_traced
from rocketq.producing.checked_fields import Text, body_bytes, checked_fields, text_bytes
from rocketq.producing.placing import ProducerSelectors
from rocketq.producing.producer_sessions import ProducerSessions
from rocketq.producing.selection.fault_avoidance import FaultTolerance
from rocketq.producing.selection.queue_selectors import Explicit, QueueSlice, Selection
from rocketq.producing.transactions.half_send import half_post
from rocketq.producing.transactions.transaction_checks import Check, CheckFunction, TransactionChecks
from rocketq.producing.transactions.transaction_trace import (
    TransactionAnswer,
    TransactionTrace,
    chosen_first,
    chosen_further,
    tell,
    traced_half,
)
from rocketq.protocol.documents.transactions import HalfName
from rocketq.protocol.message_schema import from_messages
from rocketq.protocol.rules.delivery_time import is_timed
from rocketq.protocol.rules.reserved_names import check_user_group, check_user_topic

log = logging.getLogger("rocketq.producing.transactions.transactions")

#: After these the first half message may be tried on another broker.
_ELSEWHERE: Final = (SendFailed, SystemBusy, BrokerUnavailable, StoreFull, TooSlow, TooManyConnections)
#: How long a rollback may take that only spares a check.
_ABANDON_MS: Final = 500
#: The transaction whose block this thread or task is in.
_current: ContextVar[TransactionSteps | None] = ContextVar("rocketq_transaction", default=None)


class TransactionProducer:
    """The transactions of one producer group in this process. Thread-safe; `close` ends its checks.

    >>> with client.transactions("orders-tx", check=state_of) as tp:
    ...     with tp.transaction("orders", "o-9") as t:  # it is stored, and nobody sees it
    ...         save(t.id)  # the local transaction; if it raises, the message is rolled back
    """

    def __init__(
        self,
        transport: Transport,
        routes: RouteCache,
        group: str,
        check: Check | None,
        *,
        config: ProducerConfig,
        clock: Clock,
        fault: FaultTolerance,
        checks_transport: TransportConfig,
        trace: TransactionTrace | None = None,
    ) -> None:
        check_user_group(group)
        function = CheckFunction(group, check)
        self.group = group
        self.config = config
        self._transport, self._routes, self._clock = transport, routes, clock
        self._trace = trace
        self._closing = threading.Event()
        topics = TopicAdmin(transport, routes)
        self._attempts = SendAttempts(transport, routes, topics, config, clock, fault)
        self._selectors = ProducerSelectors(fault if config.fault_avoidance else None)
        # Held calls have connections of their own, so that closing these cuts no send.
        self._checks_transport = Transport(checks_transport)
        own_routes = RouteCache(routes.nameservers, self._checks_transport, clock=clock)
        self._checks = TransactionChecks(self._checks_transport, own_routes, group, function, trace)
        self._checks.start()
        self._sessions = ProducerSessions(transport, routes, group, new_client_id(), clock)

    def transaction(
        self,
        topic: str,
        body: Text,
        *,
        key: Text | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        ordering_key: Text | None = None,
        queue: MessageQueue | int | None = None,
        delay: object = None,
        deliver_at: object = None,
    ) -> Transaction:
        """Return a transaction for a `with` statement, whose first message is this one.

        Arguments are those of `Producer.send`; `delay` and `deliver_at` are refused. Nothing is sent before
        the block is entered. Raises TransactionMisused, InvalidMessage, Closed.
        """
        return Transaction(
            self.first_half(
                topic, body, key=key, tag=tag, properties=properties, ordering_key=ordering_key, queue=queue,
                delay=delay, deliver_at=deliver_at,
            )
        )  # fmt: skip

    def first_half(
        self,
        topic: str,
        body: Text,
        *,
        key: Text | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        ordering_key: Text | None = None,
        queue: MessageQueue | int | None = None,
        delay: object = None,
        deliver_at: object = None,
    ) -> FirstHalf:
        """Return what `transaction` begins with, checked; nothing is sent. Raises as `transaction`."""
        self._check_open()
        message = self._message(body, key, tag, properties, delay, deliver_at)
        check_user_topic(topic)
        message = chosen_first(self._trace, topic, message)
        return FirstHalf(self, topic, message, text_bytes("ordering_key", ordering_key), queue)

    def close(self) -> None:
        """Answer no further checks and refuse further transactions. Closing twice is no error."""
        if not self._closing.is_set():
            self._closing.set()
            self._attempts.close()
            self._checks.begin_stop()
            self._checks_transport.close()
            self._checks.join()
            self._sessions.close()

    @property
    def is_closed(self) -> bool:
        return self._closing.is_set()

    def __enter__(self) -> TransactionProducer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- for transactions -----------------------------------------------------------

    def _check_open(self) -> None:
        if self.is_closed:
            raise Closed("The transaction producer")

    def _message(
        self,
        body: Text,
        key: Text | None,
        tag: str | None,
        properties: Mapping[str, str] | None,
        delay: object = None,
        deliver_at: object = None,
    ) -> Message:
        if delay is not None or deliver_at is not None or is_timed(properties):
            raise TransactionMisused(
                "A delayed message in a transaction", "a committed message is delivered at once",
                "Leave the delay out, or send the message with a Producer when the transaction has ended.",
            )  # fmt: skip
        found, tag, given = checked_fields(key, tag, properties)
        return Message(body_bytes(body), found, tag, given, self._clock.now_us())

    def _send_first(
        self, topic: str, message: Message, order: bytes | None, queue: MessageQueue | int | None
    ) -> tuple[str, str]:
        """Store the first half message; return the transaction's id and broker.

        Without an order it may go to any broker. Each attempt at another one is a transaction of its own:
        what the one before may have left there is rolled back.
        """
        self._check_open()
        began_ms, failed = self._attempts.now_ms(), frozenset[str]()
        made = 0
        attempts = 1 if order is not None or queue is not None else self.config.retries + 1
        while True:
            attempts -= 1
            queues = self._attempts.write_queues(topic)
            chosen = self._chosen(topic, order, queue, queues, failed)
            others = attempts > 0 and any(q.broker not in (failed | {chosen.broker}) for q in queues)
            left_ms = max(1, self.config.timeout_ms - (self._attempts.now_ms() - began_ms))
            if others:
                left_ms = attempt_ms(left_ms, self.config.timeout_ms, attempts + 1, True)
            name = HalfName(uuid.uuid4().hex, self.group, 0)
            try:
                self._send_half(name, chosen, message, left_ms, 0 if others else self.config.retries, made)
                return name.transaction, chosen.broker
            except _ELSEWHERE as error:
                if isinstance(error, SendFailed):
                    self._abandon(chosen, name.transaction, is_traced(message))
                failed |= {chosen.broker}
                made += 1
                if not others:
                    raise
                log.info("Transaction %s goes to another broker: %s", name.transaction, error)

    def _abandon(self, queue: MessageQueue, transaction: str, is_recorded: bool) -> None:
        """Roll back what an attempt without an answer may have left; a check does so where this fails."""
        begun_ms, failure = self._clock.monotonic_ms(), None
        try:
            self._api(queue.topic, queue.broker).decide(
                self.group, transaction, TransactionState.ROLLBACK, timeout_ms=_ABANDON_MS
            )
        except RocketqError as error:
            failure = error
            log.info("Transaction %s on %s is left to the check: %s", transaction, queue.broker, error)
        if is_recorded:
            self._tell(transaction, queue.topic, queue.broker, TransactionState.ROLLBACK, begun_ms, failure)

    def _tell(
        self,
        transaction: str,
        topic: str,
        broker: str,
        state: TransactionState,
        begun_ms: int,
        error: RocketqError | None = None,
    ) -> None:
        """Tell the trace what this producer says of a transaction whose way is recorded."""
        if self._trace is not None:
            found = (transaction, self.group, topic, broker)
            tell(self._trace, TransactionAnswer(*found, state, None, begun_ms, error))

    def _chosen(
        self,
        topic: str,
        order: bytes | None,
        queue: MessageQueue | int | None,
        queues: Sequence[MessageQueue],
        failed: frozenset[str] = frozenset(),
    ) -> MessageQueue:
        selector = self._selectors.of_message(topic, order, queue, queues)
        if isinstance(selector, Explicit):
            return selector.queue
        return selector.select(queues, Selection(order, failed=failed, now_ms=self._attempts.now_ms()))

    def _chosen_on(
        self, broker: str, topic: str, order: bytes | None, queue: MessageQueue | int | None
    ) -> MessageQueue:
        """Choose a queue on the broker of a transaction; raise TransactionMisused if there is none."""
        queues = self._attempts.write_queues(topic)
        own = [each for each in queues if each.broker == broker]
        if isinstance(queue, int):
            queue = MessageQueue(topic, broker, queue)
        found = self._chosen(topic, order, queue, queues if order is not None else own or queues)
        if found.broker != broker:
            raise TransactionMisused(
                f"A message for queue {found}",
                f"the transaction lies on broker {broker}, and all its messages lie there",
                "Choose a queue of that broker, create the topic there, or use a transaction of its own.",
            )
        return found

    def _send_half(
        self,
        name: HalfName,
        queue: MessageQueue,
        message: Message,
        timeout_ms: int,
        retries: int,
        attempts_made: int = 0,
    ) -> None:
        parcel = Parcel(queue.topic, (QueueSlice(queue, from_messages([message]), 0),))
        compression = self.config.compression
        half = half_post(self._transport, name, message, compression)
        post = traced_half(self._trace, half, queue, message, attempts_made)
        sent = self._attempts.send(
            parcel, Explicit(queue), compression, post, timeout_ms=timeout_ms, retries=retries
        )
        for _ in sent:
            self._checks.serve(queue.broker, self._api(queue.topic, queue.broker).address)

    def _api(self, topic: str, broker: str) -> TransactionApi:
        route = self._routes.route(topic)
        master = master_of(route, broker, self._transport, self._routes.invalidate)
        return TransactionApi.of(master, self._transport)


class FirstHalf(NamedTuple):
    """What a transaction begins with: its producer, and the first message with its place."""

    producer: TransactionProducer
    topic: str
    message: Message
    order: bytes | None
    queue: MessageQueue | int | None


class TransactionSteps:
    """What a transaction does, step by step. `Transaction` makes a block of the steps, and so does its twin
    for asyncio.

    `id` and `broker` are known once the block is entered, `state` is COMMIT or ROLLBACK once the broker has
    said so.
    """

    def __init__(self, first: FirstHalf) -> None:
        self._first, self._producer = first, first.producer
        self._parts = 0
        self._ended = False
        #: Whether the way of one of its messages is recorded.
        self._is_recorded = False
        self.id = ""
        self.broker = ""
        self.state = TransactionState.UNKNOWN

    def _claim(self) -> None:
        """Become the transaction of this thread or task; raise TransactionMisused if there is one."""
        outer = _current.get()
        if outer is not None:
            raise TransactionMisused(
                "A transaction in a transaction", f"transaction {outer.id} has not ended",
                "Send further messages with its send(), or begin the next one after its block.",
            )  # fmt: skip
        if self.id or self._ended:
            raise TransactionMisused(
                f"Transaction {self.id}", "its block was entered before", "Make a new one for each block."
            )
        _current.set(self)

    def _release(self) -> None:
        _current.set(None)

    def _begin(self) -> None:
        """Store the first half message."""
        _, topic, message, order, queue = self._first
        self.id, self.broker = self._producer._send_first(topic, message, order, queue)
        self._parts = 1
        self._is_recorded = is_traced(message)

    def _send_further(
        self, topic: str, message: Message, order: bytes | None, queue: MessageQueue | int | None
    ) -> None:
        """Store a further half message."""
        producer = self._producer
        check_user_topic(topic)
        message = chosen_further(producer._trace, topic, message, self._first.message)
        chosen = producer._chosen_on(self.broker, topic, order, queue)
        name = HalfName(self.id, producer.group, self._parts)
        producer._send_half(name, chosen, message, producer.config.timeout_ms, producer.config.retries)
        self._parts += 1
        self._is_recorded = self._is_recorded or is_traced(message)

    def _further(
        self,
        body: Text,
        key: Text | None,
        tag: str | None,
        properties: Mapping[str, str] | None,
        delay: object,
        deliver_at: object,
    ) -> Message:
        """Return a further message; raise if the transaction can take none."""
        self._check_open("A message")
        return self._producer._message(body, key, tag, properties, delay, deliver_at)

    def _leave_to_check(self) -> None:
        self._check_open("Leaving the outcome to the check")
        self._ended = True
        self._tell(TransactionState.UNKNOWN, self._producer._clock.monotonic_ms())

    def _end_block(self, error: BaseException | None) -> None:
        if self._ended:
            return
        if error is None:
            self._decide(TransactionState.COMMIT)
            return
        try:
            self._decide(TransactionState.ROLLBACK)
        except RocketqError as refused:
            # The application's own error is what the caller is to see.
            log.warning("Transaction %s was not rolled back: %s", self.id, refused)

    def _decide(self, state: TransactionState) -> None:
        """Tell the broker the outcome. Without an answer it is left to the check, which is logged."""
        self._ended = True
        producer = self._producer

        def decide() -> None:
            api = producer._api(self._first.topic, self.broker)
            api.decide(producer.group, self.id, state, timeout_ms=producer.config.timeout_ms)

        begun_ms = producer._clock.monotonic_ms()
        try:
            persist(decide, f"{state.value} of transaction {self.id}", producer.config.timeout_ms)
        except RocketqError as error:
            self._tell(state, begun_ms, error)
            if not error.retryable:
                raise
            log.warning("Transaction %s on %s is left to the check: %s", self.id, self.broker, error)
            return
        self._tell(state, begun_ms)
        self.state = state

    def _tell(self, state: TransactionState, begun_ms: int, error: RocketqError | None = None) -> None:
        if self._is_recorded:
            self._producer._tell(self.id, self._first.topic, self.broker, state, begun_ms, error)

    def _check_open(self, what: str) -> None:
        if not self.id or self._ended:
            why = "it has ended" if self._ended else "its block was not entered"
            self._misused(f"{what} in transaction {self.id or 'that was not begun'}", why)
        self._producer._check_open()

    def _misused(self, what: str, why: str) -> NoReturn:
        raise TransactionMisused(what, why, "Use it inside the block of `with producer.transaction(...)`.")


class Transaction(TransactionSteps):
    """One transaction; use it as a block, in one thread."""

    def __enter__(self) -> Transaction:
        """Store the first half message. Raises as `Producer.send`, and TransactionMisused."""
        self._claim()
        try:
            self._begin()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()
        self._end_block(error)

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
        delay: object = None,
        deliver_at: object = None,
    ) -> None:
        """Store a further half message, for a queue of the same broker; it shares the transaction's outcome.

        Raises as `Producer.send`, and TransactionMisused for a queue of another broker, a delay, or a
        transaction that has ended.
        """
        message = self._further(body, key, tag, properties, delay, deliver_at)
        self._send_further(topic, message, text_bytes("ordering_key", ordering_key), queue)

    def commit(self) -> None:
        """Commit before the block ends; what its end does too. See `rollback` and `leave_to_check`."""
        self._check_open("A commit")
        self._decide(TransactionState.COMMIT)

    def rollback(self) -> None:
        """Roll back without an exception; the block then ends without a commit."""
        self._check_open("A rollback")
        self._decide(TransactionState.ROLLBACK)

    def leave_to_check(self) -> None:
        """Leave the outcome to the check function (RocketMQ: UNKNOW): the block ends without a decision."""
        self._leave_to_check()
