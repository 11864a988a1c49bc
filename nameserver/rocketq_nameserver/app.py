"""The NameServer's HTTP side: docs/protocol.md, "NameServer", as FastAPI routes that only translate.

Bodies are read within a limit and decoded by msgspec, not by FastAPI: a full registration
may carry ten thousand topics. FastAPI routes, checks the query, and writes `/docs`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

from fastapi import FastAPI, Query, Request
from fastapi.responses import Response
from prometheus_client import CollectorRegistry

from rocketq.clock import Clock
from rocketq.errors import InvalidRequest, RouteNotFound
from rocketq.http_server.admission import Admission
from rocketq.http_server.body_types import gives, takes
from rocketq.http_server.connection.limits import ConnectionCounts
from rocketq.http_server.control_plane import control_plane
from rocketq.http_server.error_answers import ErrorBoundary, Receive, Send, read_body
from rocketq.http_server.health import add_operations, json_response
from rocketq.http_server.openapi import add_documentation
from rocketq.http_server.permissions import Permission, Resource, declare
from rocketq.protocol.documents.broker import WAIT_MS_MAX
from rocketq.protocol.documents.nameserver import (
    ClusterView,
    HeartbeatAnswer,
    HeartbeatRequest,
    RegisterAnswer,
    RegisterRequest,
    TopicList,
    TopicRoute,
    UnregisterRequest,
    WritePermissionAnswer,
    WritePermissionRequest,
)
from rocketq.protocol.json_codec import decode_request, prepare
from rocketq.protocol.rules.reserved_names import check_name
from rocketq_nameserver.config import MIB, NameServerConfig
from rocketq_nameserver.meta_register.register_endpoints import install_registers
from rocketq_nameserver.metrics import NameServerCollector
from rocketq_nameserver.nameserver import TOPIC_LIST, NameServer

BODY_BYTES_MAX: Final = 1 * MIB
#: The largest 64-bit signed number.
NUMBER_MAX: Final = (1 << 63) - 1

T = TypeVar("T")
Since = Annotated[int | None, Query(ge=0, le=NUMBER_MAX, description="the version that is known")]
WaitMs = Annotated[
    int, Query(ge=0, le=NUMBER_MAX, description="how long to hold the call while it is `since`")
]


@dataclass(frozen=True, slots=True)
class KvValue:
    """One value of the key-value configuration."""

    value: str


prepare(KvValue)


class NameServerApp:
    """The ASGI callable; its attributes are the hooks of `rocketq.http_server.runner`."""

    exit_code = 0

    def __init__(self, config: NameServerConfig, clock: Clock | None = None) -> None:
        self.nameserver = NameServer(config, clock)
        self.connection_counts = ConnectionCounts()
        self.api = _api(self.nameserver, self.connection_counts)
        self._whole = ErrorBoundary(self.api)

    def bound(self, address: str) -> None:
        self.nameserver.listens_on(address)

    def begin_shutdown(self) -> None:
        self.nameserver.begin_shutdown()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._whole(scope, receive, send)
        elif scope["type"] == "lifespan":
            await receive()
            self.nameserver.start()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            self.nameserver.stop()
            await send({"type": "lifespan.shutdown.complete"})


def create_app(config: NameServerConfig, clock: Clock | None = None) -> NameServerApp:
    """Return the app of one NameServer; raise InvalidConfiguration if its data cannot be read."""
    return NameServerApp(config, clock)


def _api(nameserver: NameServer, connections: ConnectionCounts) -> FastAPI:
    app = control_plane(
        "rocketq NameServer",
        "Which topics there are, on which brokers, at which addresses.",
        Admission(nameserver.config.hosts()),
    )
    _install_brokers(app, nameserver)
    _install_routes(app, nameserver)
    _install_kv(app, nameserver)
    install_registers(app, nameserver.acceptor)
    registry = CollectorRegistry()
    registry.register(NameServerCollector(nameserver))
    add_operations(app, "nameserver", nameserver.problems, registry, connections)
    add_documentation(app)
    return app


def _install_brokers(app: FastAPI, nameserver: NameServer) -> None:
    limit = nameserver.config.registration_bytes_max

    @app.post("/v1/brokers/register")
    @gives(RegisterAnswer)
    @takes(RegisterRequest)
    @declare(Permission.REPLICATE, Resource.CLUSTER)
    async def register(request: Request) -> Response:
        """A broker's full registration; it is also its heartbeat."""
        return json_response(nameserver.register(await _body(request, RegisterRequest, limit)))

    @app.post("/v1/brokers/heartbeat")
    @gives(HeartbeatAnswer)
    @takes(HeartbeatRequest)
    @declare(Permission.REPLICATE, Resource.CLUSTER)
    async def heartbeat(request: Request) -> Response:
        """Renews the lease if the topics are unchanged; `registered` false asks for a full registration."""
        return json_response(nameserver.heartbeat(await _body(request, HeartbeatRequest)))

    @app.post("/v1/brokers/unregister")
    @gives(dict[str, str])
    @takes(UnregisterRequest)
    @declare(Permission.REPLICATE, Resource.CLUSTER)
    async def unregister(request: Request) -> Response:
        """A broker that goes away in good order."""
        nameserver.unregister(await _body(request, UnregisterRequest))
        return json_response({})

    @app.put("/v1/brokers/{broker}/write-permission")
    @gives(WritePermissionAnswer)
    @takes(WritePermissionRequest)
    @declare(Permission.ADMIN, Resource.CLUSTER)
    async def write_permission(broker: str, request: Request) -> Response:
        """Wipe or restore the write permission of a broker group's topics, on this NameServer only."""
        writable = (await _body(request, WritePermissionRequest)).writable
        check_name("broker", broker)
        return json_response(WritePermissionAnswer(nameserver.set_write_permission(broker, writable)))

    @app.get("/v1/cluster")
    @gives(ClusterView)
    @declare(Permission.CONSUME, Resource.CLUSTER, Permission.PRODUCE, Permission.ADMIN)
    async def cluster() -> Response:
        """Who is alive, as this NameServer sees it."""
        return json_response(nameserver.cluster())


def _install_routes(app: FastAPI, nameserver: NameServer) -> None:
    table, waiting = nameserver.table, nameserver.waiting

    @app.get("/v1/routes/{topic}")
    @gives(TopicRoute)
    @declare(Permission.CONSUME, Resource.TOPIC, Permission.PRODUCE)
    async def route(topic: str, request: Request, since: Since = None, wait_ms: WaitMs = 0) -> Response:
        """The route of a topic; with `since`, once its version is another one (0: once there is one)."""
        check_name("topic", topic)
        held_ms = _held_ms(since, wait_ms)
        if held_ms:
            await waiting.until(lambda: table.version(topic) != since, (topic,), held_ms, request.receive)
        found = table.route(topic)
        if found is None:
            raise RouteNotFound(topic)
        return json_response(found)

    @app.get("/v1/topics")
    @gives(TopicList)
    @declare(Permission.CONSUME, Resource.CLUSTER, Permission.PRODUCE)
    async def topics(request: Request, since: Since = None, wait_ms: WaitMs = 0) -> Response:
        """All topics; with `since`, once the version of the list is another one."""
        held_ms = _held_ms(since, wait_ms)
        if held_ms:
            await waiting.until(lambda: table.list_version != since, (TOPIC_LIST,), held_ms, request.receive)
        return json_response(table.topics())


def _install_kv(app: FastAPI, nameserver: NameServer) -> None:
    kv = nameserver.kv
    #: A change is written to disk on a thread; one after the other.
    changing = asyncio.Lock()

    @app.get("/v1/kv/{namespace}")
    @gives(dict[str, str])
    @declare(Permission.CONSUME, Resource.CLUSTER, Permission.PRODUCE, Permission.ADMIN)
    async def kv_namespace(namespace: str) -> Response:
        """All keys and values of a namespace."""
        return json_response(kv.namespace(namespace))

    @app.get("/v1/kv/{namespace}/{key}")
    @gives(KvValue)
    @declare(Permission.CONSUME, Resource.CLUSTER, Permission.PRODUCE, Permission.ADMIN)
    async def kv_get(namespace: str, key: str) -> Response:
        """One value of the key-value configuration."""
        return json_response(KvValue(kv.get(namespace, key)))

    @app.put("/v1/kv/{namespace}/{key}")
    @gives(KvValue)
    @takes(KvValue)
    @declare(Permission.ADMIN, Resource.CLUSTER)
    async def kv_put(namespace: str, key: str, request: Request) -> Response:
        """Set one value; on disk before it is acknowledged, if there is a data directory."""
        given = await _body(request, KvValue)
        async with changing:
            await asyncio.to_thread(kv.put, namespace, key, given.value)
        return json_response(given)

    @app.delete("/v1/kv/{namespace}/{key}")
    @gives(dict[str, str])
    @declare(Permission.ADMIN, Resource.CLUSTER)
    async def kv_delete(namespace: str, key: str) -> Response:
        """Remove one value."""
        async with changing:
            await asyncio.to_thread(kv.delete, namespace, key)
        return json_response({})


async def _body(request: Request, kind: type[T], limit: int = BODY_BYTES_MAX) -> T:
    chunks = await read_body(request.scope, request.receive, limit)
    return decode_request(chunks[0] if len(chunks) == 1 else b"".join(chunks), kind)


def _held_ms(since: int | None, wait_ms: int) -> int:
    """Return how long to hold a call; raise InvalidRequest for a wait that waits for nothing."""
    if wait_ms and since is None:
        raise InvalidRequest(
            "parameter wait_ms", "it needs `since`",
            hint="Say since which version to wait for a change; 0 waits for a topic that does not exist.",
        )  # fmt: skip
    return min(wait_ms, WAIT_MS_MAX)
