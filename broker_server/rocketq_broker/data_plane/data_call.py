"""What the data plane's handlers take and give: one request, one answer.

A handler is `async (DataRequest) -> Answer | None`, None meaning that nobody waits for an
answer any more. It touches neither ASGI's `send` nor a socket, so whatever it
raises can still become an error document.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rocketq.errors import SystemBusy
from rocketq.http_server.error_answers import Receive, Send
from rocketq.protocol.documents.broker import JSON
from rocketq_broker.store.disk.files import Data

Headers = list[tuple[bytes, bytes]]

JSON_TYPE = (b"content-type", JSON.encode())

#: Chunks below this size on average are joined: a write each would cost more than the copy.
_JOIN_BELOW_BYTES = 32 * 1024
#: What a transport's buffer takes in any case.
_SMALL_BYTES = 32 * 1024
_RETRY_AFTER_MS = 200


@dataclass(frozen=True, slots=True)
class DataRequest:
    """A call of the data plane, its path taken apart and its headers by lower-case name.

    `name` is that of the topic or the group, `part` the queue or the client id in it, or empty.
    """

    name: str
    part: str
    query_string: bytes
    headers: dict[bytes, bytes]
    receive: Receive
    scope: Any


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer; the chunks go out one after the other, as they are.

    `taken` is called when the client has taken the answer, or will not.
    """

    status: int
    headers: Headers
    chunks: Sequence[Data]
    taken: Callable[[], None] | None = None


def json_answer(document: bytes) -> Answer:
    return Answer(200, [JSON_TYPE], (document,))


class Outgoing:
    """The bytes of answers that clients have not taken yet; bounds what slow readers make us hold."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max

    def check(self) -> None:
        """Raise SystemBusy if no further answer may be made now."""
        if self.bytes >= self._bytes_max:
            raise SystemBusy(f"{self.bytes} bytes of answers are not taken yet", _RETRY_AFTER_MS)

    async def deliver(self, answer: Answer, send: Send) -> None:
        """Send an answer with its length; large chunks are handed to the transport without a copy.

        Returns when the transport has let go of nearly all of it: what comes after the last chunk
        is an empty piece, and the server takes no piece while its buffer is full.
        """
        chunks = answer.chunks
        size = sum(map(len, chunks))
        if len(chunks) > 1 and size < _JOIN_BELOW_BYTES * len(chunks):
            chunks = (b"".join(chunks),)
        headers = [*answer.headers, (b"content-length", b"%d" % size)]
        self.bytes += size
        try:
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            if size <= _SMALL_BYTES:
                await send({"type": "http.response.body", "body": chunks[0] if chunks else b""})
                return
            for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            self.bytes -= size
            if answer.taken is not None:
                answer.taken()
