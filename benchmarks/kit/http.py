"""A raw HTTP client over one socket, for the benchmarks of servers.

It is not the client's own transport (`rocketq.net.transport`), whose work would be measured together with the
server's, because both share this machine. It reads only what the servers answer: a status, headers and a body
of a given length. Requests are bytes that are made beforehand.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final

_RECEIVE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Response:
    """What came back: its body is only counted unless it was asked for."""

    status: int
    head: bytes
    body_bytes: int
    body: bytes = b""

    def header(self, name: bytes) -> bytes:
        for line in self.head.split(b"\r\n"):
            if line.lower().startswith(name + b":"):
                return line.split(b":", 1)[1].strip()
        raise KeyError(name.decode())


class Connection:
    """One keep-alive connection; a context manager."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._space = bytearray(_RECEIVE_BYTES)

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def exchange(self, request: Sequence[bytes], *, keep: bool = False) -> Response:
        """Send the parts of a request and read the whole answer; raise on a status that is not 2xx."""
        self.send(request)
        return self.receive(keep=keep)

    def send(self, request: Sequence[bytes]) -> None:
        """Send the parts of a request."""
        for part in request:
            self._socket.sendall(part)

    def receive(self, *, keep: bool = False) -> Response:
        """Read the whole answer to a request; raise on a status that is not 2xx."""
        head, rest = self._head()
        status = int(head[9:12])
        length = int(Response(status, head, 0).header(b"content-length"))
        kept = [rest] if keep else []
        left = length - len(rest)
        view = memoryview(self._space)
        while left:
            got = self._socket.recv_into(view[: min(left, _RECEIVE_BYTES)])
            if not got:
                raise ConnectionError("the server closed the connection within an answer")
            if keep or status >= 300:
                kept.append(bytes(view[:got]))
            left -= got
        if status >= 300:
            raise RuntimeError(f"{head!r} {b''.join([rest, *kept])!r}")
        return Response(status, head, length, b"".join(kept))

    def _head(self) -> tuple[bytes, bytes]:
        data = b""
        while b"\r\n\r\n" not in data:
            got = self._socket.recv(65_536)
            if not got:
                raise ConnectionError("the server closed the connection before an answer")
            data += got
        head, _, rest = data.partition(b"\r\n\r\n")
        return head, rest


def post(path: str, body: bytes, kind: str) -> list[bytes]:
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
    ]
    return ["\r\n".join([*lines, "", ""]).encode(), body]


def get(path: str) -> list[bytes]:
    return [f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()]


def request(method: str, path: str, body: bytes) -> list[bytes]:
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return [head.encode(), body]


def drive(
    host: str, port: int, connections: int, seconds: float, one: Callable[[Connection, int, int], int]
) -> float:
    """Call `one(connection, number, n-th call)` on every connection for a time; return the sum a second."""
    totals = [0] * connections
    failures: list[BaseException] = []
    started = time.perf_counter()
    deadline = started + seconds

    def run(number: int) -> None:
        try:
            with Connection(host, port) as connection:
                count = 0
                while time.perf_counter() < deadline:
                    totals[number] += one(connection, number, count)
                    count += 1
        except (OSError, RuntimeError) as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return sum(totals) / (time.perf_counter() - started)
