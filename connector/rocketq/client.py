"""The front door: one value for one cluster, from which producers and consumers are made.

    with Client("http://127.0.0.1:9876") as mq:
        mq.create_topic("orders", queues=4)
        with mq.producer() as producer:
            producer.send("orders", b"hi", key="o-1")

A client holds connections and routes, which its producers share; a consumer
has its own, so that closing it cuts only its own calls. Making a client calls nobody.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar, Unpack, overload

from rocketq.admin.groups import GroupAdmin
from rocketq.admin.live_masters import LiveMasters
from rocketq.admin.topics import TopicAdmin
from rocketq.clock import Clock, SystemClock
from rocketq.config import (
    ConsumerConfig,
    ProducerConfig,
    PullConsumerConfig,
    SimpleConsumerConfig,
    TraceConfig,
    TransportConfig,
)
from rocketq.consuming.allocation.view import AllocationStrategy
from rocketq.consuming.fetching.subscriptions import MessageFilter, Sql, Tag, Topics, filters_of
from rocketq.consuming.group_consumer import Consumer, checked_loop_config
from rocketq.consuming.group_reader import GroupReader
from rocketq.consuming.listener import Function, Listener, checked_function, checked_workers
from rocketq.consuming.pull_consumer import PullConsumer
from rocketq.consuming.simple_consumer import SimpleConsumer
from rocketq.dead_letters import DeadLetters
from rocketq.errors import Closed, InvalidConfiguration
from rocketq.message_query import Query, microseconds
from rocketq.model import DEFAULT_QUEUES, MessageQueue, Perm, TopicConfig
from rocketq.net.route_cache import DEFAULT_NAMESERVER, RouteCache, nameserver_addresses
from rocketq.net.transport import Transport
from rocketq.producing.attempts.send_trace import SendTrace
from rocketq.producing.producer import Producer
from rocketq.producing.selection.fault_avoidance import FaultTolerance
from rocketq.producing.transactions.transaction_checks import Check
from rocketq.producing.transactions.transactions import TransactionProducer
from rocketq.protocol.documents.broker import AlterTopicRequest, CreateTopicRequest, TopicDescription
from rocketq.protocol.documents.nameserver import ClusterView, TopicRoute
from rocketq.setting_names import LISTENER_ARGUMENTS, check_names
from rocketq.settings_types import (
    ConsumerSettings,
    ProducerSettings,
    PullConsumerSettings,
    SimpleConsumerSettings,
    TopicChanges,
)
from rocketq.sinks.sink import TIMEOUT_MS as SINK_TIMEOUT_MS
from rocketq.sinks.sink import Sink
from rocketq.system.extras import need
from rocketq.timers import Timers
from rocketq.tracing.client_trace import ClientTrace, trace_config
from rocketq.tracing.message_trace import MessageTrace
from rocketq.tracing.trace_query import find_trace

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from rocketq.tracing.spans import MessageSpans


class Closable(Protocol):
    """What a client makes, and closes when it is closed itself."""

    @property
    def is_closed(self) -> bool: ...

    def close(self) -> object: ...


Made = TypeVar("Made", bound=Closable)

#: Read when a Client is made without addresses.
NAMESERVERS_VARIABLE: Final = "ROCKETQ_NAMESERVERS"


class Client:
    """Access to one cluster by its NameServers. Thread-safe.

    >>> with Client(nameservers) as client:
    ...     client.create_topic("hello", queues=4, if_absent=True)["broker-a"].write_queues
    4

    `nameservers` is one address, a list, or text with commas or semicolons;
    without it, the variable ROCKETQ_NAMESERVERS, then http://127.0.0.1:9876.
    `trace` has producers and consumers of the client record the way of messages: True of all, 0.01 of one in
    a hundred, or a TraceConfig; `trace(id)` finds it. `opentelemetry` is True for spans by the global
    tracer provider, or a provider (`rocketq.tracing.spans`, extra `otel`).
    """

    def __init__(
        self,
        nameservers: str | Sequence[str] | None = None,
        *,
        transport: TransportConfig | None = None,
        clock: Clock | None = None,
        trace: TraceConfig | float | bool | None = None,
        opentelemetry: TracerProvider | bool = False,
    ) -> None:
        given = nameservers or os.environ.get(NAMESERVERS_VARIABLE) or DEFAULT_NAMESERVER
        self.nameservers = nameserver_addresses(given)
        self._clock = clock or SystemClock()
        self._transport_config = transport or TransportConfig()
        self._transport = Transport(self._transport_config)
        self._routes = RouteCache(self.nameservers, self._transport, clock=self._clock)
        self._topics = TopicAdmin(self._transport, self._routes)
        self._masters = LiveMasters(self._transport, self._routes)
        #: Lists, describes, sets, resets, clones and deletes consumer groups.
        self.groups = GroupAdmin(self._masters)
        #: Looks messages up by id, key and time.
        self.query = Query(self._transport, self._routes)
        #: Delayed messages that are not delivered yet.
        self.timers = Timers(self._transport, self._routes)
        self._fault = FaultTolerance()
        wanted = trace_config(trace)
        #: What this client records of messages; None without a trace.
        self.tracing = (
            None
            if wanted is None
            else ClientTrace(wanted, self._transport, self._routes, self._fault, self._clock)
        )
        #: The OpenTelemetry spans of this client; None without them.
        self.spans = _spans(opentelemetry, None if self.tracing is None else self.tracing.sent)
        self._lock = threading.Lock()
        self._open: list[Closable] = []
        self._closed = False

    def __repr__(self) -> str:
        return f"Client({', '.join(self.nameservers)})"

    # --- producers and consumers ---------------------------------------------------

    def producer(self, *, group: str | None = None, **settings: Unpack[ProducerSettings]) -> Producer:
        """Return a producer; `settings` are fields of ProducerConfig. The client closes it if you do not.

        With a `group` all live brokers list it as a member of this producer group until it is closed. Raises
        InvalidName and ReservedName.
        """
        self._check_open()
        config = ProducerConfig(**settings)
        made = Producer(
            self._transport, self._routes, config=config, fault=self._fault, group=group, **self._recording()
        )
        return self._kept(made)

    def transactions(
        self,
        group: str,
        check: Check | None = None,
        *,
        config: ProducerConfig | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> TransactionProducer:
        """Return the transactions of a producer group (`rocketq.producing.transactions.transactions`).

        `check(message)` returns a TransactionState. It is called, on a thread of the client, for transactions
        of the group whose outcome no broker learned. `settings` are fields of ProducerConfig. The client
        closes it if you do not. Raises TransactionMisused without a check function.
        """
        self._check_open()
        if config is not None and settings:
            name, value = next(iter(settings.items()))
            raise InvalidConfiguration(name, value, "given together with config", hint="Put it into config.")
        made = TransactionProducer(
            self._transport, self._routes, group, check, config=config or ProducerConfig(**settings),
            clock=self._clock, fault=self._fault, checks_transport=self._transport_config,
            trace=None if self.tracing is None else self.tracing.transactions,
        )  # fmt: skip
        return self._kept(made)

    def consumer(
        self,
        group: str,
        topics: Topics,
        *,
        allocation: str | AllocationStrategy | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> Consumer:
        """Return a member of a consumer group, which shares the queues of the topics with the other members.

        `topics` is a name, several, or a mapping from each to its filter: `{"orders": Sql("amount > 40")}`.
        `allocation` says how queues are shared out, the same for all members: a name of
        `rocketq.consuming.allocation.strategies.STRATEGIES` ("sticky" if none is given), or a strategy.
        `settings` are fields of ConsumerConfig.

        Raises RouteNotFound for a topic that does not exist, BrokerUnreachable if no broker answers,
        GroupDisabled, InvalidFilter, ReservedName.
        """
        config = checked_loop_config(ConsumerConfig(**settings))
        return self._kept(Consumer(self._reader(group, filters_of(topics), allocation, config)))

    @overload
    def listener(
        self,
        topics: Topics,
        function: Function,
        *,
        group: str,
        filter: Tag | Sql | None = None,
        workers: int = 4,
        allocation: str | AllocationStrategy | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> Listener: ...

    @overload
    def listener(
        self,
        topics: Topics,
        function: None = None,
        *,
        group: str,
        filter: Tag | Sql | None = None,
        workers: int = 4,
        allocation: str | AllocationStrategy | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> Callable[[Function], Listener]: ...

    def listener(
        self,
        topics: Topics,
        function: Function | None = None,
        *,
        group: str,
        filter: Tag | Sql | None = None,
        workers: int = 4,
        allocation: str | AllocationStrategy | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> Listener | Callable[[Function], Listener]:
        """Call a function for each message, from `workers` threads; a member of `group` like a consumer.

        Returns a Listener; without `function`, a decorator that makes one of the function below it. `filter`
        is that of every topic, unless `topics` is a mapping. `settings` are fields of ConsumerConfig, such as
        `ordered`; all but `ack`, since a message is acknowledged when the function returns. Raises as
        `consumer`, and InvalidConfiguration for what is no function.
        """
        filters = filters_of(topics, filter)
        check_names(ConsumerConfig, settings, also=LISTENER_ARGUMENTS)
        config = ConsumerConfig(**settings)
        if config.ack != "auto":
            why = "a listener acknowledges a message when the function returns"
            raise InvalidConfiguration("ack", config.ack, why, hint="Leave it out, or use a consumer.")
        checked_workers(workers)

        def made(chosen: Function) -> Listener:
            checked = checked_function(chosen)
            if self.spans is not None:
                checked = self.spans.handler(checked, group)
            return self._kept(Listener(self._reader(group, filters, allocation, config), checked, workers))

        return made if function is None else made(function)

    def pull_consumer(
        self,
        topics: str | Sequence[str],
        *,
        group: str | None = None,
        queues: Collection[MessageQueue] | None = None,
        **settings: Unpack[PullConsumerSettings],
    ) -> PullConsumer:
        """Return a consumer that reads all queues of the topics, or these, and shares them with nobody.

        `settings` are fields of PullConsumerConfig. Raises RouteNotFound for a topic that does not exist,
        InvalidConfiguration for a queue that does not, BrokerUnreachable if no broker answers.
        """
        config = PullConsumerConfig(**settings)
        self._check_open()
        transport, routes = self._own_connections()
        listed = (topics,) if isinstance(topics, str) else topics
        made = PullConsumer(
            transport, routes, listed, group=group, queues=queues, config=config, clock=self._clock
        )
        return self._kept(made)

    def simple_consumer(
        self, group: str, topics: Topics, **settings: Unpack[SimpleConsumerSettings]
    ) -> SimpleConsumer:
        """Return a consumer that leases messages one by one (`rocketq.consuming.simple_consumer`).

        `topics` are as in `consumer`; `settings` are fields of SimpleConsumerConfig. Raises RouteNotFound for
        a topic that does not exist, InvalidFilter, ReservedName.
        """
        config, filters = SimpleConsumerConfig(**settings), filters_of(topics)
        self._check_open()
        transport, routes = self._own_connections()
        return self._kept(SimpleConsumer(transport, routes, group, filters, config, self._clock))

    def sink(self, name: str, *, timeout_ms: int = SINK_TIMEOUT_MS) -> Sink:
        """Return the exactly-once sink of this name (`rocketq.sinks.sink`); calls nobody yet.

        Each of its calls is repeated for `timeout_ms` while a broker is away. It lives as long as the client.
        """
        self._check_open()
        return Sink(self._transport, self._routes, name, timeout_ms=timeout_ms)

    def dead_letters(self, group: str) -> DeadLetters:
        """Return the messages of a group that have had their last attempt (`rocketq.dead_letters`).

        It lives as long as the client, and calls nobody yet.
        """
        self._check_open()
        return DeadLetters(self._masters, group)

    def trace(self, message_id: str, *, allow_missing: bool = False, timeout_ms: int = 2_000) -> MessageTrace:
        """Return the way of a message: who sent it, and who received it with which outcome.

        `message_id` is its own id (`SendResult.unique_id`), or that of its place or of its transaction.
        Without a record it waits for at most `timeout_ms` while brokers have not indexed all that they store.
        Raises TraceNotFound if no client recorded it; BrokerUnreachable for a broker that may have records
        and is away, unless `allow_missing`.
        """
        return find_trace(
            self.query, message_id, self._clock, allow_missing=allow_missing, timeout_ms=timeout_ms
        )

    # --- topics --------------------------------------------------------------------

    def create_topic(
        self,
        topic: str,
        queues: int = DEFAULT_QUEUES,
        *,
        if_absent: bool = False,
        read_queues: int | None = None,
        perm: int = int(Perm.READ_WRITE),
        message_bytes_max: int | None = None,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
        brokers: Sequence[str] | None = None,
        cluster: str | None = None,
    ) -> dict[str, TopicConfig]:
        """Create a topic with `queues` queues on each broker; return it as each broker has it.

        The brokers are those named by `brokers`, else the live masters of `cluster`, else all live masters.
        It is usable when this returns. Raises Conflict if it exists, unless `if_absent`, which leaves it as
        it is and adds the chosen brokers that lack it; InvalidConfiguration for a name no live broker has.
        """
        request = CreateTopicRequest(
            read_queues=queues if read_queues is None else read_queues,
            write_queues=queues,
            perm=perm,
            message_bytes_max=message_bytes_max,
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
            if_absent=if_absent,
        )
        return self._topics.create(topic, request, brokers=brokers, cluster=cluster)

    def alter_topic(
        self, topic: str, *, queues: int | None = None, **changes: Unpack[TopicChanges]
    ) -> dict[str, TopicConfig]:
        """Change a topic on every broker that has it; `changes` are the fields of AlterTopicRequest.

        `queues` is short for as many `read_queues` and `write_queues`, as in `create_topic`. Fewer read
        queues raise UnreadMessages while those that go hold messages, unless `force=True`.
        """
        check_names(AlterTopicRequest, changes, also=("queues",))
        if queues is not None:
            if "read_queues" in changes or "write_queues" in changes:
                raise InvalidConfiguration("queues", queues, "it is given beside read_queues or write_queues")
            changes["read_queues"] = changes["write_queues"] = queues
        return self._topics.alter(topic, AlterTopicRequest(**changes))

    def remove_topic_broker(self, topic: str, broker: str, *, force: bool = False) -> dict[str, TopicConfig]:
        """Take a broker off a topic's record, and the topic off the broker if it is alive.

        For a broker that is gone for good. A live one that holds messages of the topic is refused with
        UnreadMessages, unless `force`: they are then deleted.
        """
        return self._topics.remove_broker(topic, broker, force=force)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and its messages on every broker that has it."""
        self._topics.delete(topic)

    def describe_topic(self, topic: str) -> dict[str, TopicDescription]:
        """Return a topic as each broker has it, with the extent of its queues."""
        return self._topics.describe(topic)

    def offsets_at(
        self, topic: str, at: datetime | int | Literal["earliest", "latest"]
    ) -> dict[MessageQueue, int]:
        """Return an offset of each queue, as `seek` takes it.

        That is where it begins ("earliest"), where it ends ("latest"), or its first message stored at or
        after a time, else its end. A time is a datetime with its time zone, or microseconds since 1970.
        """
        if isinstance(at, str):
            if at not in ("earliest", "latest"):
                raise InvalidConfiguration("at", at, "it is earliest, latest or a time")
            return self._topics.ends(topic, at)
        return self._topics.offsets_at(topic, microseconds("at", at))

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return sorted(self._routes.topics().topics)

    def route(self, topic: str) -> TopicRoute:
        """Return where a topic lives. Raises RouteNotFound."""
        return self._routes.route(topic)

    def invalidate_route(self, topic: str) -> None:
        """Have the next use of a topic ask a NameServer for its route, as after a change by an operator."""
        self._check_open()
        self._routes.invalidate(topic)

    def cluster(self) -> ClusterView:
        """Return which brokers are alive."""
        return self._routes.cluster()

    # --- life ----------------------------------------------------------------------

    def close(self) -> None:
        """Close what was made here, producers flushing first, then all connections. Twice is no error."""
        with self._lock:
            self._closed = True
            still_open, self._open = self._open, []
        for made in reversed(still_open):
            made.close()
        if self.tracing is not None:
            self.tracing.close()
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reader(
        self,
        group: str,
        filters: Mapping[str, MessageFilter],
        allocation: str | AllocationStrategy | None,
        config: ConsumerConfig,
    ) -> GroupReader:
        self._check_open()
        transport, routes = self._own_connections()
        reader = GroupReader(transport, routes, group, filters, allocation, config, self._clock)
        if self.tracing is not None:
            reader.add_hook(self.tracing.received)
        if self.spans is not None:
            reader.add_hook(self.spans)
        return reader

    def _own_connections(self) -> tuple[Transport, RouteCache]:
        """Return connections for one consumer alone: its close cuts the calls that brokers hold for it."""
        transport = Transport(self._transport_config)
        return transport, RouteCache(self.nameservers, transport, clock=self._clock)

    def _recording(self) -> dict[str, Any]:
        """Return what producers record of messages, as arguments of `Producer`."""
        trace = self.spans or (None if self.tracing is None else self.tracing.sent)
        return {"trace": trace, "spans": self.spans}

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("The client")

    def _kept(self, made: Made) -> Made:
        with self._lock:
            if not self._closed:
                self._open = [other for other in self._open if not other.is_closed]
                self._open.append(made)
                return made
        made.close()
        raise Closed("The client")


def _spans(opentelemetry: TracerProvider | bool, records: SendTrace | None) -> MessageSpans | None:
    """Return what makes spans; raise ExtraMissing without the package that they need."""
    if opentelemetry is False:
        return None
    need("opentelemetry=True", "otel")
    from rocketq.tracing.spans import MessageSpans

    return MessageSpans(None if opentelemetry is True else opentelemetry, version("rocketq"), records)
