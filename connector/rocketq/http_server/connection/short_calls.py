"""Small requests that come whole, answered without a task of their own.

uvicorn makes a task, an event and two writes of every request: as much work as the broker has
with a small message. So an app may have a hook `quick(call) -> bool`. It is offered each POST that
announced a small body, once that is here, on a connection where nothing else is under way, as
a `QuickCall`; it says whether it takes it, and answers by `QuickCall.answer`, at once or later.
What it does not take goes the usual way, as if it had not been offered, and so does at once a request
that is ended before it is whole.

A quick call stands where uvicorn has the cycle of a request, with what of it uvicorn and the
guard look at. So pipelined requests wait for it, a connection that is told to close does so
after its answer, and every deadline holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from rocketq.http_server.error_answers import error_answer, unforeseen

Headers = Sequence[tuple[bytes, bytes]]
_CLOSE: Final = b"connection: close\r\n\r\n"
#: What is offered is held for its connection until it is whole.
OFFERED_BYTES_MAX: Final = 64 * 1024


class _Deaf:
    """The event that wakes a request's task: a quick call has no task."""

    def set(self) -> None:
        pass


_DEAF: Final = _Deaf()


class QuickCall:
    """One request with its whole body, and the way to answer it."""

    __slots__ = (
        "_protocol", "body", "disconnected", "headers", "keep_alive", "message_event", "response_complete",
        "response_started", "target",
    )  # fmt: skip

    def __init__(self, protocol: QuickProtocol, target: bytes, headers: Headers, body: bytes) -> None:
        self._protocol = protocol
        self.target = target
        self.headers = headers
        self.body = body
        # What uvicorn and the guard look at, and set.
        self.keep_alive = True
        self.disconnected = False
        self.response_started = False
        self.response_complete = False
        self.message_event = _DEAF

    @property
    def local(self) -> str:
        """The address of this machine that the connection was made to."""
        server = self._protocol.server
        return server[0] if server else ""

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Answer on the loop's thread; `headers` has everything but the connection's own."""
        lines = [name + b": " + value + b"\r\n" for name, value in headers]
        self.answer_head(b"".join([STATUS_LINE[status], *lines]), body)

    def answer_head(self, head: bytes, body: bytes) -> None:
        """Answer with a head that was made before: status line and headers, each with its line's end."""
        if self.response_complete:
            return
        self.response_started = self.response_complete = True
        if self.disconnected:
            return
        protocol = self._protocol
        end = b"\r\n" if self.keep_alive else _CLOSE
        protocol.transport.write(b"".join((head, end, body)))
        if not self.keep_alive:
            protocol.transport.close()
        protocol.on_response_complete()


Quick = Callable[[QuickCall], bool]


class QuickProtocol(HttpToolsProtocol):
    """uvicorn's protocol with a hook for quick calls."""

    has_quick: ClassVar[bool] = False

    @staticmethod
    def quick(call: QuickCall) -> bool:
        """The app's hook, if it has one."""
        return False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        #: The body of a request that may become a quick call, as far as it has come.
        self._offered: list[bytes] | None = None

    @property
    def is_offering(self) -> bool:
        """Whether what comes of a body is kept here."""
        return self._offered is not None

    def on_message_begin(self) -> None:
        # uvicorn makes an ASGI scope here, which a quick call has no use for.
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def _go_the_usual_way(self) -> None:
        """Make the scope that was not made, and have uvicorn start the request."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        # The scope has this list.
        self.headers.extend(headers)
        super().on_headers_complete()

    def on_headers_complete(self) -> None:
        cycle = self.cycle
        if (
            not self.has_quick
            or (cycle is not None and not cycle.response_complete)
            or self.expect_100_continue
            or self.parser.get_method() != b"POST"
            or not 0 <= self.announced_bytes() <= OFFERED_BYTES_MAX
        ):
            self._go_the_usual_way()
        else:
            self._offered = []

    def on_body(self, body: bytes) -> None:
        if self._offered is None:
            super().on_body(body)
        else:
            self._offered.append(body)

    def on_message_complete(self) -> None:
        if self._offered is not None:
            pieces, self._offered = self._offered, None
            body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            if self._is_taken(body):
                return
            self._go_the_usual_way()
            if body:
                self.on_body(body)
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._offered = None
        super().connection_lost(exc)

    def shutdown(self) -> None:
        self.decline()
        super().shutdown()

    def decline(self) -> None:
        """Let a request go the usual way of which more is to come."""
        if self._offered is not None:
            pieces, self._offered = self._offered, None
            self._go_the_usual_way()
            for piece in pieces:
                self.on_body(piece)

    def announced_bytes(self) -> int:
        """Return the length that the head announces for the body; -1 if it announces none."""
        for name, value in self.headers:
            if name == b"content-length":
                return int(value) if value.isdigit() else -1
        return -1

    def _is_taken(self, body: bytes) -> bool:
        if (
            self.flow.write_paused
            or self.parser.get_http_version() != "1.1"
            or not self.parser.should_keep_alive()
        ):
            return False
        call = QuickCall(self, self.url, self.headers, body)
        before, self.cycle = self.cycle, call  # type: ignore[assignment]
        try:
            taken = self.quick(call)
        except Exception as error:  # noqa: BLE001  as for any request, it is logged and told
            call.answer(*error_answer(unforeseen(error, call.target.decode("latin-1"))))
            return True
        if not taken:
            self.cycle = before
        return taken
