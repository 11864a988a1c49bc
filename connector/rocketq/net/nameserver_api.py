"""Typed calls to one NameServer (docs/protocol.md, "NameServer").

A call without an answer raises NameServersUnreachable, which names this one server;
`rocketq.net.route_cache` tries the others.
"""

from __future__ import annotations

from typing import Any

from rocketq.errors import InvalidConfiguration, NameServersUnreachable, NotFound
from rocketq.net.server_api import ServerApi
from rocketq.net.transport import Query, Response, Transport, TransportFailure, path_of
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


class NameServerApi(ServerApi):
    """One NameServer. Every method raises NameServersUnreachable, or the server's refusal."""

    def __init__(self, transport: Transport, address: str, *, timeout_ms: int | None = None) -> None:
        super().__init__(transport, address, "the NameServer", timeout_ms)

    # --- for clients -------------------------------------------------------------

    def route(self, topic: str, *, since: int | None = None, wait_ms: int = 0) -> TopicRoute:
        """Return the route; held at most `wait_ms` while its version is `since`. Raises RouteNotFound."""
        query = _hold(since, wait_ms)
        return self._get(path_of("routes", topic), TopicRoute, query=query, wait_ms=wait_ms)

    def topics(self, *, since: int | None = None, wait_ms: int = 0) -> TopicList:
        """Return all topics; held at most `wait_ms` while the list's version is `since`."""
        return self._get(path_of("topics"), TopicList, query=_hold(since, wait_ms), wait_ms=wait_ms)

    def cluster(self) -> ClusterView:
        """Return who is alive, as this NameServer sees it."""
        return self._get(path_of("cluster"), ClusterView)

    # --- for brokers -------------------------------------------------------------

    def register(self, request: RegisterRequest) -> RegisterAnswer:
        return self._send("POST", path_of("brokers", "register"), request, RegisterAnswer)

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatAnswer:
        return self._send("POST", path_of("brokers", "heartbeat"), request, HeartbeatAnswer)

    def unregister(self, request: UnregisterRequest) -> None:
        self._call_json("POST", path_of("brokers", "unregister"), request)

    # --- for operators -----------------------------------------------------------

    def set_write_permission(self, broker: str, writable: bool) -> WritePermissionAnswer:
        """Wipe or restore a broker group's write permission on this NameServer."""
        path = path_of("brokers", broker, "write-permission")
        return self._send("PUT", path, WritePermissionRequest(writable), WritePermissionAnswer)

    def put_config(self, namespace: str, key: str, value: str) -> None:
        self._call_json("PUT", path_of("kv", namespace, key), {"value": value})

    def config(self, namespace: str, key: str) -> str:
        """Return one value of the key-value configuration. Raises NotFound."""
        document = self._get(path_of("kv", namespace, key), dict[str, Any])
        return str(document["value"])

    def delete_config(self, namespace: str, key: str) -> None:
        self._call("DELETE", path_of("kv", namespace, key))

    # --- answers -----------------------------------------------------------------

    def _call(self, method: str, path: str, **how: Any) -> Response:
        try:
            return super()._call(method, path, **how)
        except NotFound as error:
            if error.facts.get("kind") != "path":
                raise
            raise InvalidConfiguration(
                "nameservers", self.address, "a server answers there that is no NameServer",
                hint="A NameServer listens on port 9876 unless it was told otherwise, a broker on 10911.",
            ) from error  # fmt: skip

    def _unreachable(self, failure: TransportFailure) -> NameServersUnreachable:
        return NameServersUnreachable({self.address: failure.why})


def _hold(since: int | None, wait_ms: int) -> Query:
    return {"since": since, "wait_ms": wait_ms or None}
