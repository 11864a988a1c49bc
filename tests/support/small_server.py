"""A real HTTP server whose answers a test decides: for what a healthy server never does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

import msgspec


@dataclass(frozen=True)
class Asked:
    """A request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    body: bytes
    headers: dict[str, str]


@dataclass(frozen=True)
class Answer:
    status: int = 200
    document: Any = None
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    #: Cut the connection instead of answering.
    hang_up: bool = False


class SmallServer:
    """Answers each request with what `respond` gives for it; keeps all requests in `asked`."""

    def __init__(self, respond: Callable[[Asked], Answer], port: int = 0) -> None:
        self.asked: list[Asked] = []
        self.respond = respond
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                parts = urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Asked(self.command, parts.path, dict(parse_qsl(parts.query)), body, headers)
                server.asked.append(request)
                answer = server.respond(request)
                if answer.hang_up:
                    self.close_connection = True
                    return
                content = answer.body if answer.body is not None else msgspec.json.encode(answer.document)
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                if "content-length" not in answer.headers:
                    self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815

            def log_message(self, format: str, *args: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self.address = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server; closing twice is no error."""
        if not self._thread.is_alive():
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
