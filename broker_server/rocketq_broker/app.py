"""The broker as one ASGI app: a raw data plane, and FastAPI for everything else.

    POST /v1/topics/{topic}/messages                     send
    GET  /v1/topics/{topic}/queues/{queue}/messages      pull
    GET  /v1/topics/{topic}/offsets                      offsets
    GET  /v1/topics/{topic}/messages?key=…               find
    a send of one small message                          send_single, without a task
    anything else                                        FastAPI (control, operations, docs)

Every call passes `Admission.admit` before its body is read: here, in `send_single`, or in FastAPI's routes
(`control_plane`). A data call is found by cutting its raw path at the slashes, before anything is
unescaped, so a name that holds an escaped slash never becomes another path.
While the broker is not running every call under /v1 is answered 503.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import structlog
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from rocketq.clock import Clock
from rocketq.errors import InvalidName, MethodNotAllowed, OffsetOutOfRange, RocketqError
from rocketq.errors.registration_errors import BrokerNameTaken
from rocketq.http_server.admission import Admission
from rocketq.http_server.connection.limits import ConnectionCounts
from rocketq.http_server.connection.short_call import ShortCall
from rocketq.http_server.control_plane import control_plane, head_of
from rocketq.http_server.error_answers import ErrorBoundary, Receive, Send, error_answer
from rocketq.http_server.health import add_operations
from rocketq.http_server.openapi import add_documentation
from rocketq.http_server.permissions import CLUSTER, NO_ROUTE, NamedResource, Permission, Resource, Rule
from rocketq.protocol.broker_documents import ARROW_STREAM, JSON
from rocketq_broker.broker import Broker
from rocketq_broker.config import BrokerConfig
from rocketq_broker.control_plane.admin_routes import install_administration
from rocketq_broker.control_plane.sink_routes import install_batches, install_sinks
from rocketq_broker.control_plane.topic_routes import install_groups, install_topics
from rocketq_broker.data_plane.data_call import Answer, DataRequest, Headers
from rocketq_broker.data_plane.send_single import QuickSends
from rocketq_broker.metrics.broker_metrics import BrokerCollector
from rocketq_broker.metrics.sink_metrics import SinkCollector


@dataclass(frozen=True, slots=True)
class DataRoute:
    """A route of the data plane, with its rule; `{topic}` is the third part of its path."""

    method: str
    path: str
    rule: Rule


SEND: Final = DataRoute(
    "POST",
    "/v1/topics/{topic}/messages",
    Rule(Permission.PRODUCE, Resource.TOPIC, media_types=(ARROW_STREAM.encode(), JSON.encode())),
)
PULL: Final = DataRoute(
    "GET", "/v1/topics/{topic}/queues/{queue}/messages", Rule(Permission.CONSUME, Resource.TOPIC)
)
OFFSETS: Final = DataRoute(
    "GET",
    "/v1/topics/{topic}/offsets",
    Rule(Permission.CONSUME, Resource.TOPIC, (Permission.PRODUCE,)),
)
FIND: Final = DataRoute("GET", "/v1/topics/{topic}/messages", Rule(Permission.CONSUME, Resource.TOPIC))
DATA_ROUTES: Final = (SEND, PULL, OFFSETS, FIND)

#: The exit code that the command line has for a conflict, too.
NAME_TAKEN: Final = 5

#: What tells data paths apart: how many parts, and those that are no names.
_PathKey = tuple[int, bytes, bytes, bytes]
_TOPIC_PART, _QUEUE_PART = 3, 5

log = structlog.get_logger("rocketq.broker")


class BrokerApp:
    """The ASGI callable; its attributes are the hooks of `rocketq.http_server.runner`."""

    def __init__(self, config: BrokerConfig, clock: Clock | None = None) -> None:
        self.broker = Broker(config, clock=clock)
        self.connection_counts = ConnectionCounts()
        self._admission = Admission(config.hosts())
        self.control = _control_plane(self.broker, self.connection_counts, self._admission)
        self._address = ""
        self._whole = ErrorBoundary(self._http)
        self._paths: dict[_PathKey, dict[str, DataRoute]] = {}
        for route in DATA_ROUTES:
            key = _path_key(route.path.encode().split(b"/"))
            self._paths.setdefault(key, {})[route.method] = route
        self._quick: QuickSends | None = None
        self._handlers: dict[DataRoute, Callable[[DataRequest], Awaitable[Answer | None]]] = {}

    def bound(self, address: str) -> None:
        """Take the address to register under."""
        self._address = address

    def take_short_call(self, call: ShortCall) -> bool:
        """Take a small send from its connection, or return False: then it becomes an ASGI request."""
        return self._quick is not None and self._quick.take(call)

    def begin_shutdown(self) -> None:
        """Answer held calls now: the runner waits for them before the lifespan ends."""
        self.broker.refuse_new_calls()

    @property
    def exit_code(self) -> int:
        """0 after a stop in good order, 5 if another process has the name, 1 after any other failure."""
        failure = self.broker.failure
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
            await self.broker.start(self._address)
        except (RocketqError, OSError) as error:
            self.broker.failure = error
            await send({"type": "lifespan.startup.failed", "message": ""})
            return
        broker = self.broker
        self._handlers = {
            SEND: broker.send.handle,
            PULL: broker.pull.handle,
            OFFSETS: broker.offsets.handle,
            FIND: broker.find.handle,
        }
        self._quick = QuickSends(
            broker.config, broker.store, broker.completions, broker.measurements, broker.send,
            SEND.rule, self._admission, broker.enter, broker.leave,
        )  # fmt: skip
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await broker.stop()
        await send({"type": "lifespan.shutdown.complete"})

    # --- calls --------------------------------------------------------------------------

    async def _http(self, scope: Any, receive: Receive, send: Send) -> None:
        raw_path: bytes = scope["raw_path"]
        if not raw_path.startswith(b"/v1/"):
            await self.control(scope, receive, send)
            return
        self.broker.enter()
        try:
            parts = raw_path.split(b"/")
            methods = self._paths.get(_path_key(parts)) if len(parts) > 4 else None
            if methods is None:
                self._check_slashes(parts, scope)
                await self.control(scope, receive, send)
                return
            route = methods.get(scope["method"])
            topic = NamedResource(Resource.TOPIC, _unescaped(parts[_TOPIC_PART]))
            self._admission.admit(head_of(scope), NO_ROUTE if route is None else route.rule, topic)
            if route is not None:
                await self._data(route, parts, scope, receive, send)
            else:
                error = MethodNotAllowed(scope["method"], scope["path"])
                await _refuse(error, [(b"allow", ", ".join(methods).encode())], send)
        finally:
            self.broker.leave()

    async def _data(
        self, route: DataRoute, parts: list[bytes], scope: Any, receive: Receive, send: Send
    ) -> None:
        request = DataRequest(
            _unescaped(parts[_TOPIC_PART]),
            _unescaped(parts[_QUEUE_PART]) if len(parts) > _QUEUE_PART else "",
            scope["query_string"],
            dict(scope["headers"]),
            receive,
            scope,
        )
        try:
            answer = await self._handlers[route](request)
        except RocketqError as error:
            self.broker.measurements.refused(error.code)
            place = self.broker.pull.place_of_error(error) if isinstance(error, OffsetOutOfRange) else []
            await _refuse(error, place, send)
            return
        if answer is not None:
            await self.broker.outgoing.deliver(answer, send)

    def _check_slashes(self, parts: list[bytes], scope: Any) -> None:
        """Refuse an escaped slash, which FastAPI would take for a real one."""
        for at, part in enumerate(parts):
            if b"%" in part and "/" in (name := _unescaped(part)):
                self._admission.admit(head_of(scope), NO_ROUTE, CLUSTER)
                kind = parts[at - 1].decode("ascii").rstrip("s") if at > 1 else "path"
                raise InvalidName(kind, name)


def create_app(config: BrokerConfig, clock: Clock | None = None) -> BrokerApp:
    """Return the app of one broker; nothing is opened before its lifespan starts."""
    return BrokerApp(config, clock)


def _control_plane(broker: Broker, connections: ConnectionCounts, admission: Admission) -> FastAPI:
    app = control_plane(
        f"rocketq broker {broker.config.name}",
        "Send, pull and offsets are served beside what is listed here: see docs/protocol.md.",
        admission,
    )
    install_topics(app, broker)
    install_groups(app, broker)
    install_sinks(app, broker)
    install_batches(app, broker)
    install_administration(app, broker)
    registry = CollectorRegistry()
    registry.register(
        BrokerCollector(broker.config.cluster, broker.config.name, broker.measurements, broker.gauges)
    )
    registry.register(
        SinkCollector(lambda: broker.store.sinks.table, lambda: broker.settler.calls, broker.measurements)
    )
    add_operations(app, "broker", broker.problems, registry, connections)
    add_documentation(app)
    return app


def _path_key(parts: list[bytes]) -> _PathKey:
    return len(parts), parts[2], parts[4], parts[-1]


def _unescaped(part: bytes) -> str:
    text = part.decode("ascii")
    return unquote(text) if "%" in text else text


async def _refuse(error: RocketqError, more: Headers, send: Send) -> None:
    status, headers, body = error_answer(error)
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *more]})
    await send({"type": "http.response.body", "body": body})
