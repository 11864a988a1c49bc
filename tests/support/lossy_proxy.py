"""A TCP proxy before a broker that loses answers to sends, or to other calls, at random but seeded.

A lost answer either ends the connection, as when a network device forgets it, or never comes, as when a
packet filter begins to drop it. The broker has carried out the request in both cases.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from types import TracebackType
from typing import Any, Self

from rocketq.net.transport import Response, Transport

_RECEIVE_BYTES = 64 * 1024


class LossyProxy:
    """Forwards connections to `upstream`; a context manager.

    `loss` is the share of answers lost to requests that begin with `calls`, by default sends. With
    `losses_max` no more answers than that are lost.
    """

    def __init__(
        self,
        seed: int,
        loss: float,
        upstream: str,
        calls: bytes = b"POST /v1/topics/",
        losses_max: int | None = None,
    ) -> None:
        self.upstream, self._calls, self._losses_max = upstream, calls, losses_max
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.loss = loss
        #: How many answers were lost.
        self.lost = 0
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        with self._lock:
            for each in self._sockets:
                each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", int(self.upstream.rsplit(":", 1)[1])))
        except OSError:
            client.close()
            return
        with self._lock:
            self._sockets |= {client, server}
        is_send = threading.Event()
        answers = threading.Thread(target=self._answers, args=(client, server, is_send), daemon=True)
        answers.start()
        with contextlib.suppress(OSError):
            while data := client.recv(_RECEIVE_BYTES):
                if data.startswith(self._calls):
                    is_send.set()
                elif data.startswith((b"GET ", b"PUT ", b"POST /v1/", b"DELETE ")):
                    is_send.clear()
                server.sendall(data)
        _close(client, server)

    def _answers(self, client: socket.socket, server: socket.socket, is_send: threading.Event) -> None:
        is_silent = False
        with contextlib.suppress(OSError):
            while data := server.recv(_RECEIVE_BYTES):
                fate = self._fate() if is_send.is_set() else "forward"
                is_silent = is_silent or fate == "never comes"
                if fate == "ends":
                    break
                if not is_silent:
                    client.sendall(data)
        _close(client, server)

    def _fate(self) -> str:
        with self._lock:
            if self._rng.random() >= self.loss or self.lost == self._losses_max:
                return "forward"
            self.lost += 1
            # Each answer that never comes costs its sender an attempt's whole time.
            return "never comes" if self._rng.random() < 0.1 else "ends"


class ThroughProxy(Transport):
    """A transport whose calls to the broker behind a proxy pass the proxy."""

    def __init__(self, proxy: LossyProxy) -> None:
        super().__init__()
        self._proxy = proxy

    def call(self, method: str, address: str, path: str, **arguments: Any) -> Response:
        return super().call(method, self._through(address), path, **arguments)

    def post(
        self, address: str, target: str, headers: str, body: bytes, *, timeout_ms: int | None = None
    ) -> bytes:
        return super().post(self._through(address), target, headers, body, timeout_ms=timeout_ms)

    def _through(self, address: str) -> str:
        return self._proxy.address if address == self._proxy.upstream else address


def _close(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
