"""Large bodies received straight to their place in memory.

On the usual way a byte of a body is copied three times before the app has it: into the
loop's buffer, into the piece that the parser cuts out, and to where the app gathers
the pieces; and each piece is a turn of the loop and of the request's task. An app that
knows where the body belongs says so with `receive_into`. What is there already is moved; for the
rest the connection changes hands until the place is full:

    guard ── receive_into ──> _Receiver: the system writes to the place ── full ──> guard

The length was announced and is the size of the place, so the receiver takes not one byte of
what follows. The parser never sees those bytes, so the next request gets a parser of its own.
Deadlines, refusals and the end of the connection stay the guard's.

A small body, one in chunks, one that waits for "100 Continue" and any under another server
come piece by piece, as ASGI has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from rocketq.errors import InvalidRequest
from rocketq.http_server.connection.short_calls import QuickProtocol
from rocketq.http_server.error_answers import Disconnected, Receive, body_pieces

#: For less, changing hands is not worth it.
STRAIGHT_BYTES_MIN: Final = 64 * 1024
#: The ASGI extension: what the app calls, with the place.
_EXTENSION: Final = "rocketq.receive_into"

_ReceiveInto = Callable[[memoryview], Awaitable[None]]


async def receive_into(scope: Any, receive: Receive, place: memoryview) -> None:
    """Receive a request's body into `place`, whose size is the announced length.

    Raises Disconnected, and InvalidRequest if less comes.
    """
    extension: dict[str, _ReceiveInto] | None = scope.get("extensions", {}).get(_EXTENSION)
    if extension is not None:
        await extension["into"](place)
        return
    at = 0
    async for piece in body_pieces(receive):
        place[at : at + len(piece)] = piece
        at += len(piece)
    _check_whole(at, place)


def _check_whole(size: int, place: memoryview) -> None:
    """Raise InvalidRequest if less came than was announced; what else is in the place is nobody's to read."""
    if size < len(place):
        raise InvalidRequest("the body", f"it has {size} of the {len(place)} bytes that were announced")


class StraightProtocol(QuickProtocol):
    """A connection that can write a body to its place."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._receiver: _Receiver | None = None

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        is_large = self.announced_bytes() >= STRAIGHT_BYTES_MIN
        if is_large and not self.is_offering and not self.expect_100_continue:
            self.scope["extensions"] = {_EXTENSION: {"into": partial(self._receive_into, self.cycle)}}

    def connection_lost(self, exc: Exception | None) -> None:
        if self._receiver is not None:
            self._receiver.let_go()
            self._receiver = None
        super().connection_lost(exc)

    def body_is_in_place(self) -> None:
        """Go on as if the parser had seen the body's end."""
        self.take_back()
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.on_message_complete()

    def take_back(self) -> None:
        """Have the connection's bytes come here again."""
        if self._receiver is not None:
            self._receiver.let_go()
            self._receiver = None
            self.transport.set_protocol(self)

    async def _receive_into(self, cycle: RequestResponseCycle, place: memoryview) -> None:
        at = len(cycle.body)
        place[:at] = cycle.body
        cycle.body = bytearray()
        # It refers to the request, as the request does to it.
        cycle.scope["extensions"] = {}
        if not cycle.more_body:
            _check_whole(at, place)
        elif not (cycle.disconnected or self.transport.is_closing()):
            # More is to come, so no later request can have begun: the connection is this one's.
            self._receiver = _Receiver(self, place[at:])
            self.transport.set_protocol(self._receiver)
            self.flow.resume_reading()
        while cycle.more_body and not cycle.disconnected:
            cycle.message_event.clear()
            await cycle.message_event.wait()
        if cycle.disconnected:
            raise Disconnected


class _Receiver(asyncio.BufferedProtocol):
    """Holds a connection while a body comes in; all but the bytes is the guard's."""

    def __init__(self, guard: StraightProtocol, place: memoryview) -> None:
        self._guard, self._place = guard, place
        self.eof_received = guard.eof_received  # type: ignore[method-assign]
        self.pause_writing = guard.pause_writing  # type: ignore[method-assign]
        self.resume_writing = guard.resume_writing  # type: ignore[method-assign]
        self.connection_lost = guard.connection_lost  # type: ignore[method-assign]

    def let_go(self) -> None:
        """Refer to the place no longer: the transport may keep this object until its next large body."""
        self._place = memoryview(b"")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._place

    def buffer_updated(self, nbytes: int) -> None:
        self._place = self._place[nbytes:]
        if not self._place:
            self._guard.body_is_in_place()
