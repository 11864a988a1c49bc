"""Typed calls to one NameServer (docs/protocol.md, "NameServer").

A call without an answer raises NameServersUnreachable naming this one server;
`rocketq.net.route_cache` tries the others.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from rocketq.errors import NameServersUnreachable
from rocketq.net.transport import Response, Transport, TransportFailure, path_of
from rocketq.protocol import broker_documents as calls
from rocketq.protocol.broker_documents import BrokerVersion
from rocketq.protocol.nameserver_documents import (
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

T = TypeVar("T")

_JSON_BODY: Final = {"content-type": calls.JSON}


class NameServerApi:
    """One NameServer. Every method raises NameServersUnreachable, or the server's refusal."""

    def __init__(self, transport: Transport, address: str, *, timeout_ms: int | None = None) -> None:
        self.address = address
        self._transport = transport
        self._timeout_ms = timeout_ms

    # --- for clients -------------------------------------------------------------

    def route(self, topic: str, *, since: int | None = None, wait_ms: int = 0) -> TopicRoute:
        """Return the route; held at most `wait_ms` while its version is `since`. Raises RouteNotFound."""
        answer = self._call("GET", path_of("routes", topic), query=_hold(since, wait_ms), hold_ms=wait_ms)
        return self._decoded(answer, TopicRoute)

    def topics(self, *, since: int | None = None, wait_ms: int = 0) -> TopicList:
        """Return all topics; held at most `wait_ms` while the list's version is `since`."""
        answer = self._call("GET", path_of("topics"), query=_hold(since, wait_ms), hold_ms=wait_ms)
        return self._decoded(answer, TopicList)

    def cluster(self) -> ClusterView:
        """Return who is alive, as this NameServer sees it."""
        return self._decoded(self._call("GET", path_of("cluster")), ClusterView)

    # --- for brokers -------------------------------------------------------------

    def register(self, request: RegisterRequest) -> RegisterAnswer:
        return self._post(path_of("brokers", "register"), request, RegisterAnswer)

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatAnswer:
        return self._post(path_of("brokers", "heartbeat"), request, HeartbeatAnswer)

    def unregister(self, request: UnregisterRequest) -> None:
        self._call("POST", path_of("brokers", "unregister"), body=calls.encode(request))

    # --- for operators -----------------------------------------------------------

    def set_write_permission(self, broker: str, writable: bool) -> WritePermissionAnswer:
        """Wipe or restore a broker group's write permission on this NameServer."""
        path = path_of("brokers", broker, "write-permission")
        answer = self._call("PUT", path, body=calls.encode(WritePermissionRequest(writable)))
        return self._decoded(answer, WritePermissionAnswer)

    def put_config(self, namespace: str, key: str, value: str) -> None:
        body = msgspec.json.encode({"value": value})
        self._call("PUT", path_of("kv", namespace, key), body=body)

    def config(self, namespace: str, key: str) -> str:
        """Return one value of the key-value configuration. Raises NotFound."""
        document = self._decoded(self._call("GET", path_of("kv", namespace, key)), dict[str, Any])
        return str(document["value"])

    def delete_config(self, namespace: str, key: str) -> None:
        self._call("DELETE", path_of("kv", namespace, key))

    def version(self) -> BrokerVersion:
        return self._decoded(self._call("GET", "/version"), BrokerVersion)

    # --- the shared way ----------------------------------------------------------

    def _post(self, path: str, request: object, kind: type[T]) -> T:
        return self._decoded(self._call("POST", path, body=calls.encode(request)), kind)

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str | int | None] | None = None,
        body: bytes | None = None,
        hold_ms: int = 0,
    ) -> Response:
        margin_ms = self._transport.config.hold_margin_ms if hold_ms else 0
        try:
            return self._transport.call(
                method,
                self.address,
                path,
                query=query,
                body=body,
                headers=_JSON_BODY if body is not None else None,
                timeout_ms=max(margin_ms, self._timeout_ms or self._transport.config.timeout_ms),
                hold_ms=hold_ms,
            )
        except TransportFailure as failure:
            raise NameServersUnreachable({self.address: failure.why}) from failure

    def _decoded(self, answer: Response, kind: type[T]) -> T:
        return calls.decode(answer.body, kind, f"the answer of the NameServer at {self.address}")


def _hold(since: int | None, wait_ms: int) -> dict[str, str | int | None]:
    return {"since": since, "wait_ms": wait_ms or None}
