"""A consumer that leases messages one by one: no member, no queue of its own (RocketMQ 5: SimpleConsumer).

    with client.simple_consumer("billing", "orders", invisible_ms=30_000) as consumer:
        for message in consumer.receive(max_messages=16):
            handle(message)
            message.ack()

A message that was received stays hidden from the other receivers of the group for the invisible time. Who
acknowledges it in that time has handled it; otherwise it comes again, to anybody. So consumers may come and
go as they like, and there may be more of them than queues.

The consumer keeps no thread and fetches nothing ahead: what it leased, the caller has. It asks the brokers of
its topics in turn. If none has anything, it lets them hold its call, one after the other for HOLD_MS each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeVar

from rocketq.clock import Clock, SystemClock
from rocketq.config import SimpleConsumerConfig
from rocketq.consuming.fetching.subscriptions import MessageFilter
from rocketq.errors import (
    BrokerUnavailable,
    BrokerUnreachable,
    Closed,
    InvalidConfiguration,
    LeaseExpired,
    NotEnoughReplicas,
    NotMaster,
    OutcomeUnknown,
    RocketqError,
)
from rocketq.model import StartFrom, StoredMessage
from rocketq.net.broker_api import master_of
from rocketq.net.lease_api import LeaseApi
from rocketq.net.route_cache import RouteCache
from rocketq.net.transport import Transport
from rocketq.protocol.documents.broker import WAIT_MS_MAX
from rocketq.protocol.documents.groups import StartRule
from rocketq.protocol.documents.leases import (
    HANDLES_MAX,
    INVISIBLE_MS_MAX,
    RECEIVE_MESSAGES,
    RECEIVE_MESSAGES_MAX,
    LeasedDocument,
    LeaseRefusal,
    ReceiveRequest,
    RefusedHandle,
    read_handle,
)
from rocketq.protocol.documents.nameserver import MASTER_ID
from rocketq.protocol.rules.reserved_names import check_user_group

T = TypeVar("T")

#: One of several brokers holds a receive that finds nothing for so long; then the next one does.
HOLD_MS: Final = 1_000
#: While no broker answers, and a slave may become master, the route is looked at so often.
AWAY_MS: Final = 200

_STARTS: Final = {"earliest": StartFrom.FIRST, "latest": StartFrom.LAST, "time": StartFrom.TIME}


@dataclass(slots=True)
class Receipt:
    """The receipt handle of a received message; a change of its time replaces it."""

    consumer: SimpleConsumer
    handle: str


@dataclass(frozen=True, slots=True)
class LeasedMessage(StoredMessage):
    """A message that is leased to this consumer; `attempt` is 1 when it is handed out for the first time."""

    attempt: int
    receipt: Receipt = field(compare=False, repr=False)

    @property
    def receipt_handle(self) -> str:
        """What names the message and its lease. Another process may acknowledge with it."""
        return self.receipt.handle

    def ack(self) -> None:
        """Say that the message is handled: it does not come again.

        Raises LeaseExpired if its time is over: it comes again, or came to another receiver.
        """
        consumer = self.receipt.consumer
        consumer.raise_refused(consumer.ack([self]).refused)

    def nack(self) -> None:
        """Give the message back at once. Raises LeaseExpired."""
        self.change_invisible(0)

    def change_invisible(self, invisible_ms: int) -> None:
        """Hide the message for so long from now on. Raises LeaseExpired."""
        consumer = self.receipt.consumer
        consumer.raise_refused(consumer.change_invisible([self], invisible_ms))


@dataclass(frozen=True, slots=True)
class AckResult:
    """What became of acknowledged messages.

    `settled` had been settled before, and `refused` come again, because their time was over.
    """

    acknowledged: int
    settled: int
    refused: tuple[RefusedHandle, ...]


class SimpleConsumer:
    """Receives messages of some topics for a group. Thread-safe; made by `Client.simple_consumer`.

    >>> with client.simple_consumer("packing", "orders") as consumer:
    ...     for message in consumer.receive(max_messages=1):
    ...         message.ack()
    """

    def __init__(
        self,
        transport: Transport,
        routes: RouteCache,
        group: str,
        filters: dict[str, MessageFilter],
        config: SimpleConsumerConfig,
        clock: Clock | None = None,
    ) -> None:
        check_user_group(group)
        self.group = group
        self.config = config
        self._filters = filters
        self._transport, self._routes = transport, routes
        self._clock = clock or SystemClock()
        self._turn = 0
        self._closed = False
        #: The brokers that did not answer the last receive, and why.
        self.away: dict[str, RocketqError] = {}
        for topic in filters:
            routes.route(topic)

    # --- receiving ---------------------------------------------------------------

    def receive(
        self,
        max_messages: int = RECEIVE_MESSAGES,
        *,
        invisible_ms: int | None = None,
        wait_ms: int | None = None,
    ) -> list[LeasedMessage]:
        """Return the next messages, as soon as there are any; an empty list after `wait_ms`.

        They are hidden from others for `invisible_ms`; without the two, as the consumer is configured. Raises
        InvalidConfiguration, RouteNotFound, BrokerUnreachable if no broker answers (where a slave
        may become master, after `wait_ms`), Closed, and what brokers refuse: QueuesOwned,
        ReceiveFilterDiffers, TooManyLeases, GroupDisabled, NoPermission.
        """
        _check("max_messages", max_messages, 1, RECEIVE_MESSAGES_MAX)
        invisible_ms = self.config.invisible_ms if invisible_ms is None else invisible_ms
        _check("invisible_ms", invisible_ms, 1, INVISIBLE_MS_MAX)
        wait_ms = self.config.wait_ms if wait_ms is None else wait_ms
        deadline_ms = self._clock.monotonic_ms() + wait_ms
        hold_ms = 0
        while True:
            places = self._places()
            self.away = {}
            for topic, broker in places:
                request = self._request(topic, max_messages, invisible_ms, hold_ms)
                found = self._received(topic, broker, request)
                if found:
                    return found
                left_ms = deadline_ms - self._clock.monotonic_ms()
                if hold_ms and left_ms <= 0:
                    return []
                if hold_ms:
                    hold_ms = _hold_ms(left_ms, len(places))
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if len(self.away) == len({broker for _, broker in places}):
                self._await_master(left_ms)
                continue
            hold_ms = _hold_ms(left_ms, len(places))
            if hold_ms <= 0:
                return []

    def __iter__(self) -> Iterator[LeasedMessage]:
        """Yield messages one after the other, for ever; each is acknowledged when the next is asked for.

        One whose handling raised is not acknowledged, and comes again after its time.
        """
        while True:
            for message in self.receive(1):
                yield message
                message.ack()

    def _places(self) -> list[tuple[str, str]]:
        """Return the topics with their brokers, beginning with another one each time."""
        self._check_open()
        places = [
            (topic, data.broker)
            for topic in self._filters
            for data in self._routes.route(topic).brokers
            if data.master is not None
        ]
        self._turn = (self._turn + 1) % max(1, len(places))
        return places[self._turn :] + places[: self._turn]

    def _await_master(self, left_ms: int) -> None:
        """Wait for a change of the route where a slave may become master, which takes seconds; else raise."""
        topic = next(iter(self._filters))
        route = self._routes.route(topic)
        if left_ms <= 0 or not any(key != MASTER_ID for data in route.brokers for key in data.addresses):
            why = "the route names no master of the topic"
            no_master = BrokerUnreachable(topic, "no known address", why, sent=False)
            raise next(iter(self.away.values()), no_master)
        self._routes.wait_for_change(topic, route, min(left_ms, AWAY_MS))

    def _request(self, topic: str, max_messages: int, invisible_ms: int, hold_ms: int) -> ReceiveRequest:
        wanted, config = self._filters[topic], self.config
        rule = StartRule(_STARTS[config.start], config.start_timestamp_us)
        return ReceiveRequest(
            topic,
            max_messages,
            invisible_ms,
            hold_ms,
            wanted.tag,
            wanted.sql,
            rule,
            config.new_filter,
            config.ordered,
        )

    def _received(self, topic: str, broker: str, request: ReceiveRequest) -> list[LeasedMessage]:
        try:
            answer = self._api(topic, broker).receive(self.group, request)
        except (BrokerUnreachable, BrokerUnavailable, NotMaster, NotEnoughReplicas, OutcomeUnknown) as error:
            self._check_open()
            # Another broker may have messages; if none answers, `receive` raises this.
            self.away[broker] = error
            return []
        return [self._leased(topic, broker, each) for each in answer.messages]

    def _leased(self, topic: str, broker: str, document: LeasedDocument) -> LeasedMessage:
        found = document.message(topic, broker)
        return LeasedMessage(
            found.queue, found.offset, found.body, found.key, found.tag, found.properties,
            found.born_at_us, found.stored_at_us, document.attempt, Receipt(self, document.receipt_handle),
        )  # fmt: skip

    # --- settling ----------------------------------------------------------------

    def ack(self, messages: Iterable[LeasedMessage | str]) -> AckResult:
        """Acknowledge messages, or receipt handles, with a call for each broker; may be repeated.

        Those in `refused` come again. Raises BrokerUnreachable: the messages of that broker, and of those
        behind it, may come again; acknowledge them once more.
        """
        acknowledged = settled = 0
        refused: list[RefusedHandle] = []
        for api, handles in self._by_broker(_handle(each) for each in messages):
            try:
                answer = api.acknowledge(self.group, handles)
            except LeaseExpired as error:
                refused += _refused(error)
            else:
                acknowledged, settled = acknowledged + answer.acknowledged, settled + answer.settled
                refused += answer.refused
        return AckResult(acknowledged, settled, tuple(refused))

    def change_invisible(
        self, messages: Iterable[LeasedMessage], invisible_ms: int
    ) -> tuple[RefusedHandle, ...]:
        """Hide messages for so long from now on, 0: no longer. Return those that are refused."""
        _check("invisible_ms", invisible_ms, 0, INVISIBLE_MS_MAX)
        own = {each.receipt.handle: each.receipt for each in messages}
        refused: list[RefusedHandle] = []
        for api, handles in self._by_broker(own):
            try:
                answer = api.change_invisible_time(self.group, handles, invisible_ms)
            except LeaseExpired as error:
                refused += _refused(error)
            else:
                refused += answer.refused
                for changed in answer.changed:
                    own[changed.before].handle = changed.receipt_handle
        return tuple(refused)

    def _by_broker(self, handles: Iterable[str]) -> Iterator[tuple[LeaseApi, list[str]]]:
        """Yield each broker with its handles, as many as one call takes."""
        self._check_open()
        found: dict[str, list[tuple[str, str]]] = {}
        for handle in handles:
            read = read_handle(handle)
            found.setdefault(read.broker, []).append((read.topic, handle))
        for broker, own in found.items():
            api = self._api(own[0][0], broker)
            for first in range(0, len(own), HANDLES_MAX):
                yield api, [handle for _, handle in own[first : first + HANDLES_MAX]]

    def raise_refused(self, refused: tuple[RefusedHandle, ...]) -> None:
        """Raise LeaseExpired if a handle was refused."""
        if refused:
            facts = [{"receipt_handle": e.receipt_handle, "reason": e.reason.value} for e in refused]
            raise LeaseExpired(self.group, read_handle(refused[0].receipt_handle).broker, facts)

    # --- life --------------------------------------------------------------------

    def close(self) -> None:
        """Close the connections; a receive that is held ends. What is leased comes again after its time."""
        self._closed = True
        self._transport.close()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def __enter__(self) -> SimpleConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _api(self, topic: str, broker: str) -> LeaseApi:
        route = self._routes.route(topic)
        return LeaseApi.of(
            master_of(route, broker, self._transport, self._routes.invalidate), self._transport
        )

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("The consumer")


def _hold_ms(left_ms: int, places: int) -> int:
    """Return how long one broker may hold a receive; only a single one may hold it to the end."""
    return max(0, min(left_ms, WAIT_MS_MAX if places == 1 else HOLD_MS))


def _handle(message: LeasedMessage | str) -> str:
    return message if isinstance(message, str) else message.receipt.handle


def _refused(error: LeaseExpired) -> list[RefusedHandle]:
    return [RefusedHandle(each["receipt_handle"], LeaseRefusal(each["reason"])) for each in error.refused]


def _check(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidConfiguration(name, value, f"must be from {low} to {high}")
