"""A small request that is here as a whole, and its answer, without a task.

uvicorn makes a task, an event and two writes of every request. For a small message that is as much work as
storing it. So an app may have a hook, `take_small_call(call) -> bool`, which `http_connection` calls with a
`SmallCall`. The hook either takes the call and answers it, at once or later, or returns False. Then the
request becomes an ASGI request as if it had not been offered.

In `HttpConnection.cycle` a small call stands in the place of uvicorn's `RequestResponseCycle`, and has the
attributes that uvicorn and the connection read and set there. So pipelined requests wait for it, a connection
that was told to close does so after its answer, and every deadline holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

if TYPE_CHECKING:
    from rocketq.http_server.connection.http_connection import HttpConnection

Headers = Sequence[tuple[bytes, bytes]]
CLOSE: Final = b"connection: close\r\n\r\n"
#: The largest body of a small call; the connection holds it until it is whole.
SMALL_CALL_BYTES_MAX: Final = 64 * 1024


class _NoTask:
    """Stands for the event that wakes the task of a request: a small call has no task."""

    def set(self) -> None:
        pass


_NO_TASK: Final = _NoTask()


class SmallCall:
    """One request with its whole body, and the way to answer it."""

    __slots__ = (
        "_connection", "body", "disconnected", "headers", "keep_alive", "message_event", "response_complete",
        "response_started", "target",
    )  # fmt: skip

    def __init__(self, connection: HttpConnection, target: bytes, headers: Headers, body: bytes) -> None:
        self._connection = connection
        self.target = target
        self.headers = headers
        self.body = body
        # The attributes of a RequestResponseCycle that uvicorn and HttpConnection read and set.
        self.keep_alive = True
        self.disconnected = False
        self.response_started = False
        self.response_complete = False
        self.message_event = _NO_TASK

    @property
    def local(self) -> str:
        """The address of this machine that the connection was made to."""
        server = self._connection.server
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
        connection = self._connection
        end = b"\r\n" if self.keep_alive else CLOSE
        connection.transport.write(b"".join((head, end, body)))
        if not self.keep_alive:
            connection.transport.close()
        connection.on_response_complete()


#: The app's hook: whether it takes a call. It runs on the loop's thread.
TakeSmallCall = Callable[[SmallCall], bool]
