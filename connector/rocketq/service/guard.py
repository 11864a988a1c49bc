"""uvicorn's HTTP protocol with deadlines and a cap, so that no client can sit on a connection.

uvicorn by itself waits for ever for a silent connection, a trickled header, a
trickled body, and a client that does not read its answer. Here one timer per
connection watches whichever of these it is waiting for:

    opened, no request yet  ->  header_ms     a whole header must arrive
    header arrived          ->  request_ms    the whole body must arrive
    body arrived            ->  none          the server works, or holds a long poll
    answer not taken        ->  answer_ms     the socket must take what is written
    answered                ->  idle_ms       keep-alive, uvicorn's own

A deadline is measured from the start of its phase, not from the last byte, so
trickling does not extend it. A request that is too slow is answered with a TOO_SLOW
document where that is still possible, and the connection is closed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rocketq.errors import BrokerUnavailable, InvalidConfiguration, RocketqError, TooSlow
from rocketq.protocol.calls import encode


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """How long a client may take, and how many may be connected; times in milliseconds."""

    header_ms: int = 10_000
    request_ms: int = 30_000
    answer_ms: int = 30_000
    idle_ms: int = 75_000
    connections_max: int = 10_000
    header_bytes_max: int = 64 * 1024

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) < 1:
                raise InvalidConfiguration(name, getattr(self, name), "must be at least 1")


def guarded(limits: ServerLimits) -> type[HttpToolsProtocol]:
    """Return the protocol class that keeps these limits, for uvicorn's `http` setting."""
    return type("GuardedProtocol", (GuardedProtocol,), {"limits": limits})


class GuardedProtocol(HttpToolsProtocol):
    """One connection under watch; `limits` is set by `guarded`."""

    limits = ServerLimits()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._in_header = True
        self._requests_open = 0

    # --- the phases ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections_max:
            self._answer_and_close(
                BrokerUnavailable("here", f"{self.limits.connections_max} clients are connected")
            )
            return
        self._watch(self.limits.header_ms, "A request header")

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._in_header:
            if self._deadline is None:
                self._watch(self.limits.header_ms, "A request header")
            self._header_bytes += len(data)
        super().data_received(data)
        if self._in_header and self._header_bytes > self.limits.header_bytes_max:
            self.transport.close()

    def on_headers_complete(self) -> None:
        self._in_header = False
        self._header_bytes = 0
        self._requests_open += 1
        self._watch(self.limits.request_ms, "The request")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_header = True
        self._unwatch()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._requests_open -= 1
        if not self._in_header:
            # Answered before the body had arrived: what is left of it keeps its deadline.
            self._watch(self.limits.request_ms, "The request")
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_deadline = self.loop.call_later(self.limits.answer_ms / 1000, self._answer_not_taken)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_write_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        self._cancel_write_deadline()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    # --- deadlines ----------------------------------------------------------------------

    def _watch(self, limit_ms: int, what: str) -> None:
        self._unwatch()
        self._deadline = self.loop.call_later(limit_ms / 1000, self._too_slow, what, limit_ms)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _cancel_write_deadline(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None

    def _too_slow(self, what: str, limit_ms: int) -> None:
        self._deadline = None
        if self.transport.is_closing():
            return
        answering = self.cycle is not None and self.cycle.response_started
        if self._in_header and not self._header_bytes:
            self.transport.close()
        elif answering and not self.cycle.response_complete:
            self.transport.abort()
        else:
            self._answer_and_close(TooSlow(what, limit_ms))

    def _answer_not_taken(self) -> None:
        # What is buffered for this client is dropped with the connection.
        self._write_deadline = None
        self.transport.abort()

    def _answer_and_close(self, error: RocketqError) -> None:
        body = encode(error.document())
        head = (
            f"HTTP/1.1 {error.status} {error.code}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
