"""The least a server could do: bare ASGI applications under uvicorn with uvloop and httptools.

python -m benchmarks.ceilings append FILE    checksum each body (CRC-32C) and write it to FILE
python -m benchmarks.ceilings sync   FILE    the same, and sync the file before the answer
python -m benchmarks.ceilings serve  FILE    answer every GET with the bytes of FILE, from memory
python -m benchmarks.ceilings echo   -       answer every body with itself
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import google_crc32c
import uvicorn

from rocketq.system.durability import sync_file

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Append:
    """Takes a body, checksums it, appends it to a file and answers."""

    def __init__(self, path: str, *, syncs: bool = False) -> None:
        self._syncs = syncs
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        chunks: list[bytes] = []
        checksum = 0
        more = True
        while more:
            message = await receive()
            checksum = google_crc32c.extend(checksum, message["body"])
            chunks.append(message["body"])
            more = message.get("more_body", False)
        written, whole = 0, sum(map(len, chunks))
        # One gathering write takes no more than IOV_MAX parts.
        for first in range(0, len(chunks), 1024):
            written += os.writev(self._file, chunks[first : first + 1024])
        assert written == whole
        if self._syncs:
            sync_file(self._file)
        await answer(send, b'{"crc": %d}' % checksum, b"application/json")


class Serve:
    """Answers with the same bytes, whatever is asked."""

    def __init__(self, path: str) -> None:
        self._body = Path(path).read_bytes()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, self._body, b"application/octet-stream")


class Echo:
    """Answers every body with itself."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        body = message["body"]
        while message.get("more_body", False):
            message = await receive()
            body += message["body"]
        await answer(send, body, b"application/octet-stream")


async def answer(send: Send, body: bytes, kind: bytes) -> None:
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class AnnouncingServer(uvicorn.Server):
    """Prints its address once it listens, as a broker does."""

    async def startup(self, sockets: list[Any] | None = None) -> None:
        await super().startup(sockets)
        port = self.servers[0].sockets[0].getsockname()[1]
        print(json.dumps({"address": f"http://127.0.0.1:{port}"}), flush=True)


def main() -> None:
    form, path = sys.argv[1:]
    forms: dict[str, Callable[[], Append | Serve | Echo]] = {
        "append": lambda: Append(path),
        "sync": lambda: Append(path, syncs=True),
        "serve": lambda: Serve(path),
        "echo": Echo,
    }
    application = forms[form]()
    config = uvicorn.Config(
        application, host="127.0.0.1", port=0, loop="uvloop", http="httptools", lifespan="off",
        log_level="warning", access_log=False,
    )  # fmt: skip
    AnnouncingServer(config).run()


if __name__ == "__main__":
    main()
