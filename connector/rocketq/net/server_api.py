"""What typed calls to any server have in common: the request, its deadline, and the answer as a value.

`BrokerApi` and `NameServerApi` add one method for each endpoint. A call is made once: whoever asks decides
whether to repeat it. A refusal raises the error that the server sent; a call without an answer raises the
error of the subclass. Both may mean that the address is no longer the right one, which `on_lost` is told:
whoever took it from a route has the route renewed, so a later call finds the broker group's present master.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, TypeVar

from rocketq.errors import BrokerUnavailable, NotMaster, RocketqError
from rocketq.net.transport import CONTROL_BYTES_MAX, Body, Query, Response, Transport, TransportFailure
from rocketq.protocol.documents.broker import JSON, BrokerVersion
from rocketq.protocol.json_codec import decode, encode

T = TypeVar("T")

_JSON_BODY: Final = {"content-type": JSON}


class ServerApi(ABC):
    """One server process. Cheap to make: the transport owns the connections.

    `address` is its HTTP base URL, `title` how error messages name the server.
    """

    def __init__(self, transport: Transport, address: str, title: str, timeout_ms: int | None) -> None:
        self.address = address
        self._title = title
        self._transport = transport
        self.on_lost: Callable[[], None] | None = None
        self._timeout_ms = timeout_ms or transport.config.timeout_ms

    @abstractmethod
    def _unreachable(self, failure: TransportFailure) -> RocketqError:
        """Return the error of a call without an answer."""

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Body | None = None,
        headers: dict[str, str] | None = None,
        timeout_ms: int | None = None,
        hold_ms: int = 0,
        answer_bytes_max: int = CONTROL_BYTES_MAX,
    ) -> Response:
        """Make one call. The server may hold it for `hold_ms`, which are added to the timeout."""
        margin_ms = self._transport.config.hold_margin_ms if hold_ms else 0
        try:
            return self._transport.call(
                method,
                self.address,
                path,
                query=query,
                body=body,
                headers=headers,
                timeout_ms=timeout_ms or max(margin_ms, self._timeout_ms),
                hold_ms=hold_ms,
                answer_bytes_max=answer_bytes_max,
            )
        except TransportFailure as failure:
            self._tell_lost()
            raise self._unreachable(failure) from failure
        except (NotMaster, BrokerUnavailable):
            self._tell_lost()
            raise

    def _tell_lost(self) -> None:
        if self.on_lost is not None:
            self.on_lost()

    def _call_json(
        self, method: str, path: str, request: object, *, timeout_ms: int | None = None
    ) -> Response:
        return self._call(method, path, body=encode(request), headers=_JSON_BODY, timeout_ms=timeout_ms)

    def _get(self, path: str, kind: type[T], *, query: Query | None = None, wait_ms: int = 0) -> T:
        """Return the answer to a GET that the server may hold for `wait_ms`."""
        return self._decoded(self._call("GET", path, query=query, hold_ms=wait_ms), kind)

    def _send(
        self, method: str, path: str, request: object, kind: type[T], *, timeout_ms: int | None = None
    ) -> T:
        """Return the answer to a call whose body is JSON."""
        return self._decoded(self._call_json(method, path, request, timeout_ms=timeout_ms), kind)

    def version(self) -> BrokerVersion:
        return self._get("/version", BrokerVersion)

    def metrics(self) -> str:
        """Return the server's metrics in Prometheus' text format."""
        return bytes(self._call("GET", "/metrics").body).decode("utf-8")

    def _decoded(self, answer: Response, kind: type[T]) -> T:
        return decode(answer.body, kind, f"the answer of {self._title} at {self.address}")
