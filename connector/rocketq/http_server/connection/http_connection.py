"""One HTTP/1.1 connection: uvicorn's protocol class with deadlines, limits and small calls.

This is the only place that depends on uvicorn's private code, for two reasons:

  * uvicorn ends a kept-alive connection that stays silent, and no other. A client that sends no byte, sends
    its request byte by byte, or does not read its answer would stay connected for ever. `deadlines` says when
    each of them is ended.
  * uvicorn makes a task of every request. A small POST that is here as a whole is first offered to the app
    as a `SmallCall`, which needs none.

A client that breaks a limit is answered with an error document where one can still be written:

    a head or request that is late      408 TOO_SLOW; nothing if no byte of the first request came
    a head or trailers too large        413 TOO_LARGE
    what is not HTTP                    400 INVALID_REQUEST
    one connection too many             503 TOO_MANY_CONNECTIONS
    an answer that is not read          reset
    no next request                     closed

After a refusal, the server's side of the connection is shut down if the transport can do that (a TLS
transport cannot). What the client still sends is then read and thrown away for `linger_ms`: closing a socket
that has unread bytes would reset it, and the client would not see the refusal.

A connection has at most one timer. It is set only when a deadline is nearer than the timer, and when it fires
the connection looks what is due. So a request that comes as a whole and is answered at once sets no timer.

`tests/http_server/test_uvicorn_fingerprints.py` fails when a method that is overridden here changes in
uvicorn.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Final

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from rocketq.errors import InvalidRequest, RocketqError, TooLarge, TooManyConnections, TooSlow
from rocketq.http_server.connection.deadlines import Deadlines, Due
from rocketq.http_server.connection.limits import ConnectionCounts, Cut, ServerLimits
from rocketq.http_server.connection.small_call import (
    CLOSE,
    SMALL_CALL_BYTES_MAX,
    SmallCall,
    TakeSmallCall,
)
from rocketq.http_server.error_answers import error_answer, unforeseen

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """What the connections of one server share."""

    limits: ServerLimits
    counts: ConnectionCounts
    take_small_call: TakeSmallCall | None = None


def connection_class(settings: ConnectionSettings) -> type[HttpConnection]:
    """Return the class of a server's connections, for uvicorn's `http` setting."""
    return type("HttpConnection", (HttpConnection,), {"settings": settings})


class _Receiving(Enum):
    """Which part of a request the client is sending."""

    NOTHING = "nothing"
    HEAD = "head"
    BODY = "body"


class HttpConnection(HttpToolsProtocol):
    """One connection; `connection_class` sets `settings`."""

    settings: ClassVar[ConnectionSettings]

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = self.settings.limits
        self._counts = self.settings.counts
        self._receiving = _Receiving.NOTHING
        self._is_open = False
        self._is_refused = False
        #: Bytes of a head; after it, those since the last byte of the body (sizes of chunks, trailers).
        self._head_bytes = 0
        self._read_bytes = 0
        self._body_came = False
        #: Why a callback stopped the parser.
        self._parser_stop: RocketqError | None = None
        #: The body of a request that may become a small call, as far as it is here; else None.
        self._short_body: list[bytes] | None = None
        self._deadlines = Deadlines(self._limits)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf

    # --- the connection: called by the event loop --------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        counts, connections_max = self._counts, self._limits.connections_max
        if len(self.connections) >= connections_max:
            counts.cut[Cut.TOO_MANY] += 1
            self.transport = transport
            if counts.refusing >= connections_max:
                # A refusal holds the connection for a while, so their number is limited too.
                transport.abort()
            else:
                self._write_refusal(TooManyConnections(connections_max))
            return
        self._is_open = True
        counts.open += 1
        super().connection_made(transport)
        self.flow = _TimedFlowControl(transport, self)
        self._deadlines.connected(self.loop.time())
        self._set_timer(self._deadlines.next_request_by)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = -inf
        self._short_body = None
        if self._is_refused:
            self._counts.refusing -= 1
        if self._is_open:
            self._counts.open -= 1
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._read_bytes = len(data)
        self._body_came = False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # The server switches to no other protocol and has answered as if the client had not asked.
            self._receiving = _Receiving.NOTHING
        except httptools.HttpParserError:
            error = self._parser_stop or InvalidRequest("the request", "it is not valid HTTP/1.1")
            self._refuse(error, Cut.BAD_REQUEST)
            return
        self._set_timer(self._deadlines.request_by)
        in_head = self._receiving is _Receiving.HEAD
        if in_head or (self._receiving is _Receiving.BODY and not self._body_came):
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.header_bytes_max:
                self._refuse(self._head_too_large(self._head_bytes), Cut.BAD_REQUEST)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._deadlines.writing_paused(self.loop.time())
        self._set_timer(self._deadlines.answer_by)

    def resume_writing(self) -> None:
        super().resume_writing()
        now = self.loop.time()
        self._deadlines.writing_resumed(now)
        if self._receiving is _Receiving.NOTHING and (self.cycle is None or self.cycle.response_complete):
            self._expect_next_request(now)

    def shutdown(self) -> None:
        """Called by the server when it stops."""
        self._decline_small_call()
        super().shutdown()
        self._bound_closing()

    def reading_resumed(self, paused_s: float) -> None:
        """Called by the flow control: the server reads again after so many seconds."""
        self._deadlines.reading_resumed(paused_s)
        self._set_timer(self._deadlines.request_by)

    # --- a request: called by the parser -------------------------------------------------------

    def on_message_begin(self) -> None:
        # uvicorn makes the ASGI scope here. A small call needs none, so `_start_asgi_request` makes it.
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self._receiving = _Receiving.HEAD
        self._head_bytes = 0
        self._deadlines.request_began(self.loop.time())

    def on_header(self, name: bytes, value: bytes) -> None:
        # A header after the body is a trailer. No call reads trailers, and `admit` has not seen them.
        if self._receiving is not _Receiving.BODY:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        # A head of which more than the limit came in one read is measured; any other is below the limit.
        if self._head_bytes + self._read_bytes > self._limits.header_bytes_max:
            self._check_head_size()
        if self._may_become_small_call():
            self._short_body = []
        else:
            self._start_asgi_request()
        self._head_bytes = 0
        self._body_came = True
        self._receiving = _Receiving.BODY
        self._deadlines.head_ended()

    def on_body(self, body: bytes) -> None:
        self._body_came = True
        self._head_bytes = 0
        if self._short_body is not None:
            self._short_body.append(body)
            return
        # As uvicorn does it, but the first piece is kept as the bytes that it is: copied to a bytearray and
        # from there to bytes again, each byte of a large body would be copied twice more.
        cycle = self.cycle
        if cycle.response_complete:
            return
        cycle.body = cycle.body + body if cycle.body else body  # type: ignore[assignment]
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        if self._short_body is None or not self._is_taken_as_small_call():
            self._decline_small_call()
            super().on_message_complete()
        self._receiving = _Receiving.NOTHING
        self._deadlines.request_ended()
        if self.cycle.response_complete:
            # The app answered before the whole body was here, or took and answered a small call.
            self._expect_next_request(self.loop.time())

    def on_response_complete(self) -> None:
        # In place of uvicorn's method, which sets a timer for every answer, and closes the connection of
        # a client that is in the middle of its next request.
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            self._bound_closing()
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._deadlines.answer_began()
            self._start_asgi_task(*self.pipeline.pop())
        elif self._receiving is _Receiving.NOTHING and not self.flow.write_paused:
            self._expect_next_request(self.loop.time())

    def _start_asgi_request(self) -> None:
        """Make the scope of the request, and have uvicorn start its task."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        # The scope refers to this list.
        self.headers.extend(headers)
        super().on_headers_complete()

    def _check_head_size(self) -> None:
        """Stop the parser if the head is too large."""
        lines = sum(len(name) + len(value) + len(b": \r\n") for name, value in self.headers)
        size = len(self.parser.get_method()) + len(self.url) + len(b"  HTTP/1.1\r\n\r\n") + lines
        if size > self._limits.header_bytes_max:
            self._parser_stop = self._head_too_large(size)
            raise self._parser_stop

    def _head_too_large(self, size: int) -> TooLarge:
        in_head = self._receiving is _Receiving.HEAD
        what = "the request's head" if in_head else "what follows the request's body"
        return TooLarge(what, size, self._limits.header_bytes_max)

    # --- small calls -----------------------------------------------------------------------------

    def _may_become_small_call(self) -> bool:
        """Whether the request is a POST with a small body, and no other request is under way."""
        return (
            self.settings.take_small_call is not None
            and (self.cycle is None or self.cycle.response_complete)
            and not self.expect_100_continue
            and self.parser.get_method() == b"POST"
            and 0 <= self._announced_bytes() <= SMALL_CALL_BYTES_MAX
        )

    def _announced_bytes(self) -> int:
        """Return the length that the head announces for the body; -1 if it announces none."""
        for name, value in self.headers:
            if name == b"content-length":
                return int(value) if value.isdigit() else -1
        return -1

    def _is_taken_as_small_call(self) -> bool:
        """Offer the request, which is here as a whole, to the app."""
        take = self.settings.take_small_call
        if (
            take is None
            or self._short_body is None
            or self.flow.write_paused
            or self.parser.get_http_version() != "1.1"
            or not self.parser.should_keep_alive()
        ):
            return False
        call = SmallCall(self, self.url, self.headers, b"".join(self._short_body))
        before, self.cycle = self.cycle, call  # type: ignore[assignment]
        try:
            taken = take(call)
        except Exception as error:  # noqa: BLE001  as for any request: it is logged, and the client is told
            call.answer(*error_answer(unforeseen(error, call.target.decode("latin-1"))))
            taken = True
        if taken:
            self._short_body = None
        else:
            self.cycle = before
        return taken

    def _decline_small_call(self) -> None:
        """Make an ASGI request of what may have become a small call, with the body that is here."""
        if self._short_body is not None:
            pieces, self._short_body = self._short_body, None
            self._start_asgi_request()
            for piece in pieces:
                self.on_body(piece)

    # --- ending a connection ---------------------------------------------------------------------

    def _expect_next_request(self, now: float) -> None:
        self._deadlines.answered(now)
        self._set_timer(self._deadlines.next_request_by)

    def _bound_closing(self) -> None:
        """Have a closing connection end even if the client never takes what is still buffered."""
        if self.transport.is_closing():
            self._deadlines.closing(self.loop.time())
            self._set_timer(self._deadlines.closed_by)

    def _refuse(self, error: RocketqError, why: Cut) -> None:
        """End the connection, with an error if one can be written where the answer belongs."""
        self._counts.cut[why] += 1
        self._decline_small_call()
        cycle = self.cycle
        answering = cycle is not None and not cycle.response_complete
        if self._receiving is _Receiving.BODY:
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
            self._bound_closing()

    def _write_refusal(self, error: RocketqError) -> None:
        self._is_refused = True
        self._counts.refusing += 1
        self.transport.write(_refusal(error))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._deadlines.refused(self.loop.time())
        self._set_timer(self._deadlines.closed_by)

    def _cut(self, why: Cut) -> None:
        self._counts.cut[why] += 1
        self._abort()

    def _abort(self) -> None:
        """Drop the connection, and what the system still holds to be sent on it."""
        if self.transport.get_write_buffer_size():
            # Without this the system would go on offering what it has to a client that takes nothing.
            raw = self.transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    # --- the timer ---------------------------------------------------------------------------------

    def _set_timer(self, at: float) -> None:
        """Have the timer fire at `at` or before."""
        if at < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = at
            self._timer = self.loop.call_at(at, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer, self._timer_at = None, inf
        # A connection that was refused at once has no flow control.
        is_reading = self.flow is None or not self.flow.read_paused
        due = self._deadlines.due(self.loop.time(), is_reading)
        if due is Due.CLOSE:
            self._abort()
        elif due is Due.ANSWER:
            self._cut(Cut.SLOW_READER)
        elif due is Due.NEXT_REQUEST:
            # Aborted, not closed: what is still buffered was not taken in all that time.
            self._cut(Cut.SILENT if self.cycle is None else Cut.IDLE)
        else:
            if due is Due.REQUEST:
                self._deadlines.request_ended()
                self._refuse_slow()
            self._set_timer(self._deadlines.next_at(is_reading))

    def _refuse_slow(self) -> None:
        if self._receiving is _Receiving.HEAD:
            self._refuse(TooSlow("A request header", self._limits.header_ms), Cut.SLOW_HEADER)
        else:
            self._refuse(TooSlow("The request", self._limits.request_ms), Cut.SLOW_BODY)


class _TimedFlowControl(FlowControl):
    """uvicorn's flow control, which also tells the connection for how long the server did not read."""

    def __init__(self, transport: asyncio.Transport, connection: HttpConnection) -> None:
        super().__init__(transport)
        self._connection = connection
        self._paused_at = 0.0

    def pause_reading(self) -> None:
        if not self.read_paused:
            self._paused_at = self._connection.loop.time()
            super().pause_reading()

    def resume_reading(self) -> None:
        if self.read_paused:
            super().resume_reading()
            self._connection.reading_resumed(self._connection.loop.time() - self._paused_at)


#: SO_LINGER on, for no time: closing resets the connection.
_RESET: Final = struct.pack("ii", 1, 0)


def _refusal(error: RocketqError) -> bytes:
    """Return a whole answer that refuses a connection."""
    status, headers, body = error_answer(error)
    lines = [name + b": " + value + b"\r\n" for name, value in headers]
    return b"".join([STATUS_LINE[status], *lines, CLOSE, body])
