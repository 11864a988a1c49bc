"""An app that does what a test wants, and a client made of a bare socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import weakref
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from rocketq.http_server.error_answers import (
    Disconnected,
    ErrorBoundary,
    content_length,
    read_body,
    read_body_into,
)

#: Below what uvicorn lets a connection buffer before it has the application wait.
SOME = 48 * 1024
BIG = 16 * 1024 * 1024
BODY_MAX = 8 * 1024 * 1024


def post(path: str, body: bytes, *headers: str) -> bytes:
    """A request with a body of announced length."""
    lines = [f"POST {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Probe:
    """Any path is answered `hello`, some otherwise: read `_answer`. /hold and /late wait for `release`."""

    def __init__(self) -> None:
        self.held = threading.Event()
        self.gone = threading.Event()
        #: Where bodies were written that were read into one place.
        self.places: list[weakref.ref[bytearray]] = []
        self._app = ErrorBoundary(self._answer)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            self._loop = asyncio.get_running_loop()
            self._released = asyncio.Event()
            for answer in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{answer}.complete"})
            return
        await self._app(scope, receive, send)

    def release(self) -> None:
        self._loop.call_soon_threadsafe(self._released.set)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        body = b"hello"
        if path == "/hold":
            self.held.set()
            await self._released.wait()
        elif path == "/big":
            body = bytes(BIG)
        elif path == "/some":
            body = bytes(SOME)
        elif path == "/echo":
            body = b"".join(await read_body(scope, receive, BODY_MAX))
        elif path == "/late":
            self.held.set()
            await self._released.wait()
            body = b"%d" % sum(map(len, await read_body(scope, receive, BODY_MAX)))
        elif path == "/one-place":
            body = await self._read_into_one_place(scope, receive)
        elif path == "/fail":
            raise RuntimeError("secret")
        elif path == "/watch":
            self.held.set()
            while (await receive())["type"] != "http.disconnect":
                pass
            self.gone.set()
            return
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _read_into_one_place(self, scope: Any, receive: Any) -> bytes:
        """Read a body of announced length into one place, and send it back."""
        memory = _Memory(content_length(scope["headers"]) or 0)
        self.places.append(weakref.ref(memory))
        place = memoryview(memory)
        self.held.set()
        try:
            await read_body_into(place, receive)
        except Disconnected:
            self.gone.set()
            raise
        return bytes(place)


class _Memory(bytearray):
    """A bytearray that can be referred to weakly."""


class Connection:
    """One TCP connection; answers are read to their announced end."""

    def __init__(self, address: str, receive_buffer: int = 0) -> None:
        parts = urlsplit(address)
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(60)
        self.socket.connect((parts.hostname, parts.port))
        self._read = bytearray()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def get(self, path: str) -> tuple[int, bytes]:
        self.send(b"GET " + path.encode() + b" HTTP/1.1\r\nhost: localhost\r\n\r\n")
        return self.answer()

    def head(self) -> bytes:
        """Wait for the status line and headers of the next answer, which `answer` still returns."""
        while b"\r\n\r\n" not in self._read:
            self._take()
        return bytes(self._read[: self._read.index(b"\r\n\r\n")])

    def answer(self) -> tuple[int, bytes]:
        """Status and body of the next answer."""
        head = self.head()
        del self._read[: len(head) + 4]
        lines = head.decode().lower().split("\r\n")
        size = int(next(line for line in lines if line.startswith("content-length")).split(":")[1])
        while len(self._read) < size:
            self._take()
        body = bytes(self._read[:size])
        del self._read[:size]
        return int(lines[0].split()[1]), body

    def refusal(self) -> tuple[int, str]:
        """Status and code of the error that comes next, after which the server must have closed."""
        status, body = self.answer()
        assert self.ended()
        return status, json.loads(body)["code"]

    def ended(self) -> bool:
        """Whether the server closed without sending anything more; waits for it."""
        if self._read:
            return False
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def trickle(self, data: bytes) -> None:
        """Send one byte after the other until all is sent or the server says something."""
        self.socket.settimeout(0.005)
        try:
            for at in range(len(data)):
                self.socket.sendall(data[at : at + 1])
                with contextlib.suppress(TimeoutError):
                    self._read += self.socket.recv(65536)
                    return
        finally:
            self.socket.settimeout(60)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self) -> None:
        data = self.socket.recv(1 << 20)
        if not data:
            raise EOFError(f"the connection ended after {self._read!r}")
        self._read += data


@contextlib.contextmanager
def background(function: Any) -> Iterator[None]:
    """Run `function` on a thread beside the block and wait for it."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    yield
    thread.join(60)
    assert not thread.is_alive()
