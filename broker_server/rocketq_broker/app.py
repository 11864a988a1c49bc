"""The broker as one ASGI app: a raw data plane, and FastAPI for everything else.

    POST /v1/topics/{topic}/messages                     send
    GET  /v1/topics/{topic}/queues/{queue}/messages      pull
    GET  /v1/topics/{topic}/offsets                      offsets
    GET  /v1/topics/{topic}/messages?key=…               find
    the fetch of a slave                                 fetch_frames
    GET  /v1/groups/{group}/members                      watch, and
    PUT, DELETE /v1/groups/{group}/members/{client_id}   heartbeat and goodbye of a member
    a send of one small message                          small_send, without a task
    anything else                                        FastAPI (control, operations, docs)

Every call passes `Admission.admit` before its body is read: here, in `small_send`, or in FastAPI's routes
(`control_plane`). A data call is found by cutting its raw path at the slashes, before anything is
unescaped, so a name that holds an escaped slash never becomes another path.
Until the broker has started every call is answered 503; later every call under /v1 is, while it is not
running.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import structlog
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from rocketq.clock import Clock
from rocketq.errors import (
    BrokerUnavailable,
    CorruptFrame,
    InvalidName,
    MethodNotAllowed,
    NotFound,
    OffsetOutOfRange,
    RocketqError,
)
from rocketq.errors.registration_errors import BrokerNameTaken
from rocketq.http_server.admission import Admission
from rocketq.http_server.connection.limits import ConnectionCounts
from rocketq.http_server.connection.small_call import SmallCall
from rocketq.http_server.control_plane import control_plane, head_of
from rocketq.http_server.error_answers import ErrorBoundary, Receive, Send, error_answer
from rocketq.http_server.health import add_operations
from rocketq.http_server.openapi import add_documentation
from rocketq.http_server.permissions import CLUSTER, NO_ROUTE, NamedResource, Permission, Resource, Rule
from rocketq.model import Perm
from rocketq.protocol.documents.broker import ARROW_STREAM, JSON, OCTET_STREAM
from rocketq.protocol.documents.replication import FETCH_PATH, RANGE_PATH
from rocketq.system.memory import memory_bytes
from rocketq_broker.broker import Broker, Phase
from rocketq_broker.config import BrokerConfig
from rocketq_broker.control_plane.admin_endpoints import install_administration
from rocketq_broker.control_plane.group_endpoints import (
    install_claims,
    install_groups,
    install_producers,
    install_progress,
)
from rocketq_broker.control_plane.lease_endpoints import install_leases
from rocketq_broker.control_plane.member_calls import MemberCalls
from rocketq_broker.control_plane.replication_endpoints import install_replication
from rocketq_broker.control_plane.retry_endpoints import install_retries
from rocketq_broker.control_plane.sink_endpoints import install_batches, install_sinks
from rocketq_broker.control_plane.timer_endpoints import install_timers
from rocketq_broker.control_plane.topic_endpoints import install_messages, install_topics
from rocketq_broker.control_plane.transaction_endpoints import install_transactions
from rocketq_broker.data_plane.data_call import Answer, DataRequest, Headers, Outgoing
from rocketq_broker.data_plane.decoding_memory import DecodingRoom
from rocketq_broker.data_plane.described_calls import DESCRIBED_CALLS
from rocketq_broker.data_plane.fetch_frames import FetchProcessor, RangeProcessor
from rocketq_broker.data_plane.reads.message_query import MessageQueryProcessor
from rocketq_broker.data_plane.reads.pull import PullProcessor
from rocketq_broker.data_plane.reads.receive import ReceiveProcessor
from rocketq_broker.data_plane.reads.topic_offsets import OffsetsProcessor
from rocketq_broker.data_plane.sends.send import SendProcessor
from rocketq_broker.data_plane.sends.small_send import SmallSends
from rocketq_broker.groups.lag_ages import LagAges
from rocketq_broker.metrics.broker_metrics import BrokerCollector, Gauges, group_lags
from rocketq_broker.metrics.group_metrics import GroupCollector
from rocketq_broker.metrics.lease_metrics import LeaseCollector, topic_leases
from rocketq_broker.metrics.replication_metrics import ReplicationCollector
from rocketq_broker.metrics.sink_metrics import SinkCollector
from rocketq_broker.metrics.timer_metrics import TimerCollector
from rocketq_broker.metrics.transaction_metrics import TransactionCollector
from rocketq_broker.metrics.trouble_metrics import TroubleCollector
from rocketq_broker.replication_service.planned_stop import prepare_to_stop
from rocketq_broker.replication_service.read_advice import ReadAdvice


@dataclass(frozen=True, slots=True)
class DataRoute:
    """A call that comes without FastAPI, with its rule; the third part of its path is the resource's name."""

    method: str
    path: str
    rule: Rule


SEND: Final = DataRoute(
    "POST",
    "/v1/topics/{topic}/messages",
    Rule(
        Permission.PRODUCE,
        Resource.TOPIC,
        media_types=(ARROW_STREAM.encode(), JSON.encode(), OCTET_STREAM.encode()),
    ),
)
PULL: Final = DataRoute(
    "GET", "/v1/topics/{topic}/queues/{queue}/messages", Rule(Permission.CONSUME, Resource.TOPIC)
)
OFFSETS: Final = DataRoute(
    "GET",
    "/v1/topics/{topic}/offsets",
    Rule(Permission.CONSUME, Resource.TOPIC, (Permission.PRODUCE,)),
)
QUERY: Final = DataRoute("GET", "/v1/topics/{topic}/messages", Rule(Permission.CONSUME, Resource.TOPIC))
WATCH: Final = DataRoute(
    "GET", "/v1/groups/{group}/members", Rule(Permission.CONSUME, Resource.GROUP, (Permission.ADMIN,))
)
_MEMBER: Final = Rule(Permission.CONSUME, Resource.GROUP)
HEARTBEAT: Final = DataRoute("PUT", "/v1/groups/{group}/members/{client_id}", _MEMBER)
GOODBYE: Final = DataRoute("DELETE", "/v1/groups/{group}/members/{client_id}", _MEMBER)
DATA_ROUTES: Final = (SEND, PULL, OFFSETS, QUERY, WATCH, HEARTBEAT, GOODBYE)
#: A slave's fetch; it names no topic.
FETCH: Final = DataRoute("GET", FETCH_PATH, Rule(Permission.REPLICATE, Resource.CLUSTER, media_types=()))
#: And what a member asks whose log is damaged.
RANGE: Final = DataRoute("GET", RANGE_PATH, Rule(Permission.REPLICATE, Resource.CLUSTER, media_types=()))
_REPLICA_ROUTES: Final = {route.path.encode(): route for route in (FETCH, RANGE)}
#: What a slave answers too: calls that change nothing, and all calls about replication.
_READS: Final = frozenset({"GET", "HEAD"})
_REPLICATION: Final = b"/v1/replication/"

#: The exit code that the command line has for a conflict, too.
NAME_TAKEN: Final = 5

#: What tells data paths apart: how many parts, and those that are no names.
_PathKey = tuple[int, bytes, bytes, bytes]
_NAME_PART, _INNER_PART, _END_PART = 3, 5, 6
_KINDS: Final = {b"topics": Resource.TOPIC, b"groups": Resource.GROUP}

A = TypeVar("A")
T = TypeVar("T")

log = structlog.get_logger("rocketq.broker")


class BrokerApp:
    """The ASGI callable; its attributes are the hooks of `rocketq.http_server.runner`."""

    def __init__(
        self, config: BrokerConfig, clock: Clock | None = None, on_failure: Callable[[], None] = lambda: None
    ) -> None:
        self.connection_counts = ConnectionCounts()
        self._config = config
        self._clock = clock
        self._on_failure = on_failure
        self._admission = Admission(config.hosts())
        self._address = ""
        self._whole = ErrorBoundary(self._http)
        self._paths: dict[_PathKey, dict[str, DataRoute]] = {}
        for route in DATA_ROUTES:
            key = _path_key(route.path.encode().split(b"/"))
            self._paths.setdefault(key, {})[route.method] = route
        self._service: _Service | None = None
        self._start_failure: Exception | None = None

    @property
    def service(self) -> _Service:
        """What answers calls; raise BrokerUnavailable before the broker has started."""
        if self._service is None:
            raise BrokerUnavailable(self._config.name, Phase.STARTING.value)
        return self._service

    @property
    def broker(self) -> Broker:
        """The broker; raise BrokerUnavailable before it has started."""
        return self.service.broker

    @property
    def control(self) -> FastAPI:
        """The control plane; raise BrokerUnavailable before the broker has started."""
        return self.service.control

    def bound(self, address: str) -> None:
        """Take the address to register under."""
        self._address = address

    def take_small_call(self, call: SmallCall) -> bool:
        """Take a small send from its connection, or return False: then it becomes an ASGI request."""
        return self._service is not None and self._service.quick.take(call)

    async def prepare_shutdown(self) -> None:
        """Hand the office over, or say goodbye to the master; all calls are served meanwhile."""
        if self._service is not None and self._service.broker.replica is not None:
            await prepare_to_stop(self._service.broker.replica, self._service.broker.completions)

    def begin_shutdown(self) -> None:
        """Answer held calls now: the runner waits for them before the lifespan ends."""
        if self._service is not None:
            self._service.broker.refuse_new_calls()

    @property
    def failure(self) -> Exception | None:
        """Why the broker could not start or go on, if so."""
        return self._start_failure if self._service is None else self._service.broker.failure

    @property
    def exit_code(self) -> int:
        """0 after a stop in good order, 5 if another process has the name, 1 after any other failure."""
        failure = self.failure
        return 0 if failure is None else NAME_TAKEN if isinstance(failure, BrokerNameTaken) else 1

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._whole(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)

    # --- life ---------------------------------------------------------------------------

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            broker = await Broker.start(
                self._config, self._address, clock=self._clock, on_failure=self._on_failure
            )
        except (RocketqError, OSError) as error:
            self._start_failure = error
            await send({"type": "lifespan.startup.failed", "message": ""})
            return
        self._service = _Service(broker, self.connection_counts, self._admission)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await broker.stop()
        await send({"type": "lifespan.shutdown.complete"})

    # --- calls --------------------------------------------------------------------------

    async def _http(self, scope: Any, receive: Receive, send: Send) -> None:
        service = self.service
        raw_path: bytes = scope["raw_path"]
        if not raw_path.startswith(b"/v1/"):
            await service.control(scope, receive, send)
            return
        replica_route = _REPLICA_ROUTES.get(raw_path)
        if scope["method"] not in _READS and not raw_path.startswith(_REPLICATION):
            service.broker.check_office()
        service.broker.enter()
        try:
            if replica_route is not None:
                await self._fetch(replica_route, service, scope, receive, send)
                return
            parts = raw_path.split(b"/")
            methods = self._paths.get(_path_key(parts)) if len(parts) > 4 else None
            if methods is None:
                self._check_slashes(parts, scope)
                await service.control(scope, receive, send)
                return
            route = methods.get(scope["method"])
            resource = NamedResource(_KINDS[parts[2]], _unescaped(parts[_NAME_PART]))
            self._admission.admit(head_of(scope), NO_ROUTE if route is None else route.rule, resource)
            if route is not None:
                await service.answer(route, _data_request(parts, scope, receive), send)
            else:
                error = MethodNotAllowed(scope["method"], scope["path"])
                await _refuse(error, [(b"allow", ", ".join(methods).encode())], send)
        finally:
            service.broker.leave()

    async def _fetch(
        self, route: DataRoute, service: _Service, scope: Any, receive: Receive, send: Send
    ) -> None:
        """Answer another replica of the group."""
        rule = route.rule if scope["method"] == route.method else NO_ROUTE
        self._admission.admit(head_of(scope), rule, CLUSTER)
        if scope["method"] != route.method:
            error = MethodNotAllowed(scope["method"], scope["path"])
            await _refuse(error, [(b"allow", route.method.encode())], send)
            return
        request = DataRequest("", "", scope["query_string"], dict(scope["headers"]), receive, scope)
        await service.answer(route, request, send)

    def _check_slashes(self, parts: list[bytes], scope: Any) -> None:
        """Refuse an escaped slash, which FastAPI would take for a real one."""
        for at, part in enumerate(parts):
            if b"%" in part and "/" in (name := _unescaped(part)):
                self._admission.admit(head_of(scope), NO_ROUTE, CLUSTER)
                kind = parts[at - 1].decode("ascii").rstrip("s") if at > 1 else "path"
                raise InvalidName(kind, name)


class _Service:
    """What answers the calls of a broker that has started: the data plane's processors and FastAPI."""

    def __init__(self, broker: Broker, connections: ConnectionCounts, admission: Admission) -> None:
        config, store, pool = broker.config, broker.store, broker.executor
        self.broker = broker
        self._outgoing = Outgoing(config.outgoing_bytes_max)
        decoding = DecodingRoom(
            asyncio.get_running_loop(), config.decoded_bytes_max, config.decoded_wait_ms_max
        )
        send = SendProcessor(config, store, broker.completions, broker.measurements, pool, decoding)
        self._pull = PullProcessor(
            config, store, broker.held, self._outgoing, broker.measurements, pool, broker.readers, decoding,
            broker.check_office,
            _read_advice(broker),
        )  # fmt: skip
        members = MemberCalls(lambda: broker.members)
        self._handlers: dict[DataRoute, Callable[[DataRequest], Awaitable[Answer | None]]] = {
            SEND: send.handle,
            WATCH: members.watch,
            HEARTBEAT: members.heartbeat,
            GOODBYE: members.leave,
            FETCH: _no_fetch,
            RANGE: _no_fetch,
        }
        reads: dict[DataRoute, Callable[[DataRequest], Awaitable[Answer | None]]] = {
            PULL: self._pull.handle,
            OFFSETS: OffsetsProcessor(store, broker.held, pool, broker.check_office).handle,
            QUERY: MessageQueryProcessor(config, store, pool, decoding).handle,
        }
        if broker.replica is not None and store.replica is not None:
            reads[FETCH] = FetchProcessor(
                broker.replica, store.replica, broker.held, self._outgoing, broker.completions,
                broker.readers, broker.suspect,
            ).handle  # fmt: skip
            reads[RANGE] = RangeProcessor(
                broker.replica, store.replica, self._outgoing, broker.readers
            ).handle
        self._handlers |= {route: partial(_healed, broker, read) for route, read in reads.items()}
        #: Takes the sends of one small message.
        self.quick = SmallSends(
            config, store, broker.completions, broker.measurements, send,
            SEND.rule, admission, broker.enter_write, broker.leave,
        )  # fmt: skip
        gauges = Gauges(
            held_calls=lambda: len(broker.held),
            in_flight_bytes=lambda: send.bodies.used,
            outgoing_bytes=lambda: self._outgoing.bytes,
            decoded_bytes=lambda: decoding.budget.used,
            permission=lambda: int(Perm.READ_WRITE if broker.phase is Phase.RUNNING else Perm.NONE),
            store=store.statistics,
            lags=partial(group_lags, store),
        )
        #: Everything but the data plane.
        self.control = _control_plane(broker, send, self._pull, gauges, connections, admission)

    async def answer(self, route: DataRoute, request: DataRequest, send: Send) -> None:
        """Answer a call of the data plane."""
        try:
            answer = await self._handlers[route](request)
        except RocketqError as error:
            self.broker.measurements.refused(error.code)
            place = self._pull.place_of_error(error) if isinstance(error, OffsetOutOfRange) else []
            await _refuse(error, place, send)
            return
        if answer is not None:
            await self._outgoing.deliver(answer, send)


def create_app(
    config: BrokerConfig, clock: Clock | None = None, on_failure: Callable[[], None] = lambda: None
) -> BrokerApp:
    """Return the app of one broker; nothing is opened before its lifespan starts.

    `on_failure` is called on the loop when the broker cannot go on; it is to end the server.
    """
    return BrokerApp(config, clock, on_failure)


def _control_plane(
    broker: Broker,
    send: SendProcessor,
    pull: PullProcessor,
    gauges: Gauges,
    connections: ConnectionCounts,
    admission: Admission,
) -> FastAPI:
    app = control_plane(
        f"rocketq broker {broker.config.name}",
        "Send, pull and all other calls of this broker.",
        admission,
    )
    install_topics(app, broker, send.forget_topic)
    install_messages(app, partial(_healed, broker, pull.message))
    install_claims(app, broker)
    install_progress(app, broker)
    install_groups(app, broker)
    install_leases(
        app,
        broker,
        ReceiveProcessor(
            broker.store, broker.clock, broker.held, broker.completions, broker.readers, broker.measurements
        ),
    )
    install_producers(app, broker)
    install_retries(app, broker)
    install_sinks(app, broker)
    install_batches(app, broker)
    install_timers(app, broker)
    install_transactions(app, broker)
    install_administration(app, broker)
    install_replication(app, broker)
    registry = CollectorRegistry()
    registry.register(BrokerCollector(broker.config.cluster, broker.config.name, broker.measurements, gauges))
    ages = LagAges(broker.store, broker.clock, broker.readers)
    registry.register(
        GroupCollector(
            broker.config.cluster, broker.config.name,
            lambda: broker.members.connected(), broker.producers.connected,
            ages.latest, lambda: broker.members.held_watches, lambda: dict(broker.measurements.dead_letters),
        )
    )  # fmt: skip
    registry.register(
        SinkCollector(lambda: broker.store.sinks.table, lambda: broker.publisher.calls, broker.measurements)
    )
    config = broker.config
    registry.register(TroubleCollector(broker.store.troubles))
    waiting = partial(topic_leases, broker.store)
    registry.register(LeaseCollector(config.cluster, config.name, lambda: broker.store.leases.table, waiting))
    registry.register(
        ReplicationCollector(
            config.cluster, config.name, broker.replication, lambda: broker.measurements.slave_read_bytes
        )
    )
    registry.register(TimerCollector(config.cluster, config.name, broker.store.timers.statistics))
    registry.register(
        TransactionCollector(
            config.cluster, config.name, lambda: broker.store.transactions.table, broker.measurements,
            lambda: len(broker.check_watch),
        )
    )  # fmt: skip
    add_operations(app, "broker", broker.problems, registry, connections, broker.troubles.look)
    add_documentation(app, DESCRIBED_CALLS)
    return app


def _read_advice(broker: Broker) -> ReadAdvice:
    config, replica = broker.config, broker.replica
    return ReadAdvice(
        config.slave_read_enable, config.access_message_in_memory_max_ratio, memory_bytes(),
        None if replica is None else lambda: replica.status,
    )  # fmt: skip


def _path_key(parts: list[bytes]) -> _PathKey:
    return len(parts), parts[2], parts[4], parts[_END_PART] if len(parts) > _END_PART else b""


def _data_request(parts: list[bytes], scope: Any, receive: Receive) -> DataRequest:
    """Take the path of a data call apart."""
    return DataRequest(
        _unescaped(parts[_NAME_PART]),
        _unescaped(parts[_INNER_PART]) if len(parts) > _INNER_PART else "",
        scope["query_string"],
        dict(scope["headers"]),
        receive,
        scope,
    )


def _unescaped(part: bytes) -> str:
    text = part.decode("ascii")
    return unquote(text) if "%" in text else text


async def _healed(broker: Broker, read: Callable[[A], Awaitable[T]], asked: A) -> T:
    """Return what a read has; one that meets a damaged frame is repeated if another replica could heal it."""
    try:
        return await read(asked)
    except CorruptFrame as damage:
        if not await broker.heals(damage):
            raise
    return await read(asked)


async def _no_fetch(request: DataRequest) -> Answer | None:
    raise NotFound("replica", "this broker replicates nothing (--broker-id is 0)")


async def _refuse(error: RocketqError, more: Headers, send: Send) -> None:
    status, headers, body = error_answer(error)
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *more]})
    await send({"type": "http.response.body", "body": body})
