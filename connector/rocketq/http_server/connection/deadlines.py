"""uvicorn's HTTP protocol with deadlines and a cap, so that no client can sit on a connection.

uvicorn ends a kept-alive connection that stays silent after an answer, and nothing
else: a connection that never sends a byte, headers or a body that trickle in, and a
client that does not read its answer all stay for ever. Here every moment belongs to one side:

    client: its first request's head    header_ms     408 TOO_SLOW; without a word if no byte came
    client: a request's head            header_ms     408 TOO_SLOW
    client: the whole request           request_ms    408 TOO_SLOW
    server: its answer                  no deadline   a long poll may be held as long as it likes
    client: taking the answer           answer_ms     cut; counts only the time it keeps us waiting
    client: its next request            idle_ms       closed without a word

Time counts from the start of a phase, so a trickle gains nothing, and time during which we
do not read (the application has not asked for the body yet) is not held against the client.

Beyond `connections_max` a connection is answered 503 at once and closed. A refusal is written,
then our side is shut, then what the client still sends is read and thrown away
for `linger_ms`: closing with unread bytes would reset the connection, and the client
would never see why.

Deadlines are numbers, and a connection has at most one timer, which is lazy: it is set
when a deadline is nearer than the timer, and when it fires it looks what is due. A
request that arrives whole, and is answered at once, touches no timer.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass, field, fields
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Final

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from rocketq.errors import (
    InvalidConfiguration,
    InvalidRequest,
    RocketqError,
    TooLarge,
    TooManyConnections,
    TooSlow,
)
from rocketq.http_server.connection.large_bodies import StraightProtocol
from rocketq.http_server.connection.short_calls import Quick
from rocketq.http_server.error_answers import error_answer

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """How long a client may take, and how many may be connected; times in milliseconds."""

    header_ms: int = 10_000
    request_ms: int = 30_000
    answer_ms: int = 30_000
    idle_ms: int = 120_000
    connections_max: int = 10_000
    header_bytes_max: int = 64 * 1024
    linger_ms: int = 1_000
    #: What calls under way may take once the server was asked to stop.
    shutdown_ms: int = 10_000

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value < 1:
                raise InvalidConfiguration(each.name, value, "must be at least 1")


class Cut(Enum):
    """Why we ended a connection; the value is the metric's label."""

    SILENT = "silent"
    SLOW_HEADER = "slow_header"
    SLOW_BODY = "slow_body"
    SLOW_READER = "slow_reader"
    IDLE = "idle"
    BAD_REQUEST = "bad_request"
    TOO_MANY = "too_many"


@dataclass(slots=True)
class ConnectionCounts:
    """What the guard counts, for /metrics; `refusing` are refused but not gone yet."""

    open: int = 0
    refusing: int = 0
    cut: dict[Cut, int] = field(default_factory=lambda: dict.fromkeys(Cut, 0))


def guarded(
    limits: ServerLimits, counts: ConnectionCounts | None = None, quick: Quick | None = None
) -> type[GuardedProtocol]:
    """Return the protocol class that keeps these limits, for uvicorn's `http` setting."""
    bound: dict[str, Any] = {"limits": limits, "counts": counts or ConnectionCounts()}
    if quick is not None:
        bound |= {"has_quick": True, "quick": staticmethod(quick)}
    return type("GuardedProtocol", (GuardedProtocol,), bound)


class _Phase(Enum):
    """What the client is sending."""

    NOTHING = "nothing"
    HEAD = "head"
    BODY = "body"


class GuardedProtocol(StraightProtocol):
    """One connection under watch; `limits` and `counts` are set by `guarded`."""

    limits: ClassVar[ServerLimits] = ServerLimits()
    counts: ClassVar[ConnectionCounts] = ConnectionCounts()

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._phase = _Phase.NOTHING
        self._admitted = False
        self._refused = False
        #: Bytes of a head; after it those since the last byte of the body: sizes of chunks, trailers.
        self._head_bytes = 0
        self._read_bytes = 0
        self._body_came = False
        self._error: RocketqError | None = None
        self._request_began = 0.0
        self._drain_began = 0.0
        self._drain_left = self.limits.answer_ms / 1000
        # When something of the client is due, in the loop's time; inf where nothing is.
        self._idle_by = inf
        self._receive_by = inf
        self._drain_by = inf
        self._gone_by = inf
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf

    # --- the connection -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        limits, counts = self.limits, self.counts
        if len(self.connections) >= limits.connections_max:
            counts.cut[Cut.TOO_MANY] += 1
            self.transport = transport
            if counts.refusing >= limits.connections_max:
                # Even to say no has a price: past this many at once it is not said.
                transport.abort()
            else:
                self._write_refusal(TooManyConnections(limits.connections_max))
            return
        self._admitted = True
        counts.open += 1
        super().connection_made(transport)
        self.flow = _Flow(transport, self)
        self._idle_by = self.loop.time() + limits.header_ms / 1000
        self._arm(self._idle_by)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = -inf
        if self._refused:
            self.counts.refusing -= 1
        if self._admitted:
            self.counts.open -= 1
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._read_bytes = len(data)
        self._body_came = False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # We switch to no other protocol: the request has been answered as if it had not asked.
            self._phase = _Phase.NOTHING
        except httptools.HttpParserError:
            error = self._error or InvalidRequest("the request", "it is not valid HTTP/1.1")
            self._refuse(error, Cut.BAD_REQUEST)
            return
        if self._receive_by < self._timer_at:
            self._arm(self._receive_by)
        if self._phase is _Phase.HEAD or (self._phase is _Phase.BODY and not self._body_came):
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.header_bytes_max:
                self._refuse(self._too_large(self._head_bytes), Cut.BAD_REQUEST)

    def _too_large(self, size: int) -> TooLarge:
        what = "the request's head" if self._phase is _Phase.HEAD else "what follows the request's body"
        return TooLarge(what, size, self.limits.header_bytes_max)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._drain_began = self.loop.time()
        self._drain_by = self._drain_began + self._drain_left
        self._arm(self._drain_by)

    def resume_writing(self) -> None:
        super().resume_writing()
        now = self.loop.time()
        self._drain_by = inf
        self._drain_left -= now - self._drain_began
        if self._phase is _Phase.NOTHING and (self.cycle is None or self.cycle.response_complete):
            self._expect_next_request(now)

    def shutdown(self) -> None:
        super().shutdown()
        self._see_off()

    def reading_resumed(self, paused_s: float) -> None:
        """Give the client back the time in which we did not read."""
        if self._receive_by < inf:
            self._receive_by += paused_s
            self._arm(self._receive_by)

    # --- the parser's callbacks -----------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._phase = _Phase.HEAD
        self._head_bytes = 0
        self._request_began = self.loop.time()
        self._receive_by = self._request_began + self.limits.header_ms / 1000
        self._idle_by = inf

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase is _Phase.BODY:
            # A trailer. Nobody here reads one, and among the headers it would be one that was not admitted.
            return
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        limit = self.limits.header_bytes_max
        # A head that came in one read with more than the limit is measured; any other one is small enough.
        if self._head_bytes + self._read_bytes > limit:
            lines = sum(len(name) + len(value) + len(b": \r\n") for name, value in self.headers)
            size = len(self.parser.get_method()) + len(self.url) + len(b"  HTTP/1.1\r\n\r\n") + lines
            if size > limit:
                self._error = self._too_large(size)
                raise self._error
        super().on_headers_complete()
        self._head_bytes = 0
        self._body_came = True
        self._phase = _Phase.BODY
        self._receive_by = self._request_began + self.limits.request_ms / 1000

    def on_body(self, body: bytes) -> None:
        self._body_came = True
        self._head_bytes = 0
        # As uvicorn's, but a piece that comes when none waits is kept as it is: copied into a
        # bytearray and out again, each byte of a large body would be moved twice more.
        if self.is_offering:
            super().on_body(body)
            return
        cycle = self.cycle
        if cycle.response_complete:
            return
        cycle.body = cycle.body + body if cycle.body else body  # type: ignore[assignment]
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._phase = _Phase.NOTHING
        self._receive_by = inf
        if self.cycle.response_complete:
            # It was refused without waiting for its body.
            self._expect_next_request(self.loop.time())

    def on_response_complete(self) -> None:
        # In place of uvicorn's: it sets a timer for every answer, and closes the connection
        # on a client that is in the middle of its next request.
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            self._see_off()
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._drain_left = self.limits.answer_ms / 1000
            self._start_asgi_task(*self.pipeline.pop())
        elif self._phase is _Phase.NOTHING and not self.flow.write_paused:
            self._expect_next_request(self.loop.time())

    # --- ending a connection ----------------------------------------------------------------

    def _expect_next_request(self, now: float) -> None:
        self._drain_left = self.limits.answer_ms / 1000
        self._idle_by = now + self.limits.idle_ms / 1000
        if self._idle_by < self._timer_at:
            self._arm(self._idle_by)

    def _see_off(self) -> None:
        """Have a closing connection end even if the client never takes what is still buffered."""
        if self.transport.is_closing() and self._gone_by == inf:
            self._gone_by = self.loop.time() + self.limits.answer_ms / 1000
            self._arm(self._gone_by)

    def _refuse(self, error: RocketqError, why: Cut) -> None:
        """End the connection, with an error if one can be written where the answer belongs."""
        self.counts.cut[why] += 1
        self.decline()
        self.take_back()
        cycle = self.cycle
        answering = cycle is not None and not cycle.response_complete
        if self._phase is _Phase.BODY:
            in_turn = answering and not cycle.response_started and not self.pipeline
        else:
            in_turn = not answering
        if answering:
            cycle.disconnected = True
            cycle.message_event.set()
        if in_turn:
            self._write_refusal(error)
        else:
            self.transport.close()
            self._see_off()

    def _write_refusal(self, error: RocketqError) -> None:
        self._refused = True
        self.counts.refusing += 1
        self._idle_by = self._receive_by = self._drain_by = inf
        self.transport.write(_refusal(error))
        self.transport.write_eof()
        self._gone_by = self.loop.time() + self.limits.linger_ms / 1000
        self._arm(self._gone_by)

    def _cut(self, why: Cut) -> None:
        self.counts.cut[why] += 1
        self._abort()

    def _abort(self) -> None:
        """Let go of the connection, and have the system let go of what it still holds for it."""
        if self.transport.get_write_buffer_size():
            # Without this the system would go on offering what it has to a client that takes nothing.
            raw = self.transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    # --- the timer ----------------------------------------------------------------------------

    def _arm(self, at: float) -> None:
        if at < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = at
            self._timer = self.loop.call_at(at, self._look)

    def _look(self) -> None:
        """Do what is due and set the timer for what is next."""
        self._timer, self._timer_at = None, inf
        now = self.loop.time()
        if now >= self._gone_by:
            self._abort()
            return
        if now >= self._drain_by:
            self._cut(Cut.SLOW_READER)
            return
        if now >= self._idle_by:
            # Whatever is still buffered then was not taken in all that time.
            self._cut(Cut.SILENT if self.cycle is None else Cut.IDLE)
            return
        # While we do not read, nothing can be due; `reading_resumed` sets the timer again.
        receive_by = inf if self.flow.read_paused else self._receive_by
        if now >= receive_by:
            self._receive_by = receive_by = inf
            self._refuse_slow()
        next_at = min(self._idle_by, receive_by, self._drain_by, self._gone_by)
        if next_at < inf:
            self._arm(next_at)

    def _refuse_slow(self) -> None:
        limits = self.limits
        if self._phase is _Phase.HEAD:
            self._refuse(TooSlow("A request header", limits.header_ms), Cut.SLOW_HEADER)
        else:
            self._refuse(TooSlow("The request", limits.request_ms), Cut.SLOW_BODY)


class _Flow(FlowControl):
    """uvicorn's flow control, which also tells for how long it did not read."""

    def __init__(self, transport: asyncio.Transport, protocol: GuardedProtocol) -> None:
        super().__init__(transport)
        self._protocol = protocol
        self._paused_at = 0.0

    def pause_reading(self) -> None:
        if not self.read_paused:
            self._paused_at = self._protocol.loop.time()
            super().pause_reading()

    def resume_reading(self) -> None:
        if self.read_paused:
            super().resume_reading()
            self._protocol.reading_resumed(self._protocol.loop.time() - self._paused_at)


#: SO_LINGER on, for no time: closing resets the connection.
_RESET: Final = struct.pack("ii", 1, 0)
_CLOSE: Final = b"connection: close\r\n\r\n"


def _refusal(error: RocketqError) -> bytes:
    """Return a whole answer that refuses a connection."""
    status, headers, body = error_answer(error)
    lines = [name + b": " + value + b"\r\n" for name, value in headers]
    return b"".join([STATUS_LINE[status], *lines, _CLOSE, body])
