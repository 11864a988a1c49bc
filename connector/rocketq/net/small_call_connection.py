"""A connection for small calls: a request in one piece, an answer of an announced length.

For a message of 100 bytes a general HTTP client does more work than the broker. It makes a dozen objects for
each call and parses every header of the answer. Here the caller writes the head of the request itself, and of
the answer only the status, the length and whether the connection stays open are read.

An answer of another form, such as chunks from a proxy, is read by Python's own `http.client`, and the
connection is not used again.

The rules of `rocketq.net.transport` hold here too: one deadline for the whole call, a bounded answer, and a
failure that says whether the request can have reached the server.
"""

from __future__ import annotations

import http.client
import io
import re
import select
import socket
import time
from dataclasses import dataclass
from typing import Any, Final, cast

from urllib3.exceptions import ConnectTimeoutError, HTTPError, ProtocolError
from urllib3.util import wait_for_read

#: A body up to this size leaves in one piece with the head of its request.
SHORT_BODY_BYTES_MAX: Final = 64 * 1024
_HEAD_BYTES_MAX: Final = 64 * 1024
_RECEIVE_BYTES: Final = 16 * 1024
_HEAD_END: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,18})[ \t]*\r\n", re.IGNORECASE)
#: What makes an answer one of another form: it has no length of its own, or is the last on its connection.
_OTHER_FORM: Final = re.compile(rb"\r\n(?:transfer-encoding:|connection:[ \t]*close)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SmallAnswer:
    """The status and the whole body of an answer."""

    status: int
    body: bytes


class SmallCallConnection:
    """One plain HTTP/1.1 connection. Belongs to one thread at a time; `sock` may be shut by another."""

    __slots__ = ("__weakref__", "_poll", "is_open", "sock")

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        """Connect. Raises OSError, or urllib3's ConnectTimeoutError after `timeout_s` seconds."""
        try:
            self.sock = socket.create_connection((host, port), timeout_s)
        except TimeoutError as error:
            raise ConnectTimeoutError(str(error)) from error
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.is_open = True
        #: Tells whether there is something to read; Windows has no `poll`.
        self._poll = select.poll() if hasattr(select, "poll") else None
        if self._poll is not None:
            self._poll.register(self.sock, select.POLLIN)

    def is_idle(self) -> bool:
        """Whether the server has neither closed the connection nor sent what was not asked for."""
        if not self.is_open:
            return False
        return not (wait_for_read(self.sock, 0) if self._poll is None else self._poll.poll(0))

    def exchange(self, request: bytes, ends_at: float, answer_bytes_max: int) -> SmallAnswer:
        """Send a request and return its answer; `is_open` then says whether another one may follow.

        `ends_at` is a moment of `time.monotonic`. Raises OSError (TimeoutError at that moment), and urllib3's
        HTTPError for an answer that is not HTTP or has more than `answer_bytes_max` bytes.
        """
        self.is_open = False
        self.sock.settimeout(_left_s(ends_at))
        self.sock.sendall(request)
        data = self._received(ends_at)
        while (head_end := data.find(_HEAD_END)) < 0:
            if len(data) > _HEAD_BYTES_MAX:
                raise HTTPError(f"the head of its answer is longer than {_HEAD_BYTES_MAX} bytes")
            data += self._received(ends_at)
        length = _LENGTH.search(data, 0, head_end + 2)
        is_short = data.startswith(b"HTTP/1.1 ") and data[9:10] != b"1"
        if length is None or not is_short or _OTHER_FORM.search(data, 0, head_end + 2):
            return self._other_form(data, ends_at, answer_bytes_max)
        size = int(length[1])
        if size > answer_bytes_max:
            raise HTTPError(f"its answer is {size} bytes, more than the {answer_bytes_max} asked for")
        whole = head_end + len(_HEAD_END) + size
        if len(data) < whole:
            data = self._rest(data, whole, ends_at)
        self.is_open = len(data) == whole
        return SmallAnswer(int(data[9:12]), data[whole - size : whole])

    def close(self) -> None:
        self.is_open = False
        self.sock.close()

    def _received(self, ends_at: float) -> bytes:
        self.sock.settimeout(_left_s(ends_at))
        data = self.sock.recv(_RECEIVE_BYTES)
        if not data:
            raise ProtocolError("the server closed the connection before its answer was whole")
        return data

    def _rest(self, data: bytes, whole: int, ends_at: float) -> bytes:
        parts, size = [data], len(data)
        while size < whole:
            parts.append(self._received(ends_at))
            size += len(parts[-1])
        return b"".join(parts)

    def _other_form(self, begun: bytes, ends_at: float, answer_bytes_max: int) -> SmallAnswer:
        """Read an answer that has begun with `begun`, whatever its form, and close the connection."""
        try:
            answer = http.client.HTTPResponse(cast(Any, _Replayed(self, begun, ends_at)), method="POST")
            answer.begin()
            body = answer.read(answer_bytes_max + 1)
        except http.client.HTTPException as error:
            raise ProtocolError(f"the answer is not HTTP/1.1: {error!r}") from error
        finally:
            self.close()
        if len(body) > answer_bytes_max:
            raise HTTPError(f"its answer is longer than the {answer_bytes_max} bytes asked for")
        if answer.length:
            raise ProtocolError("the server closed the connection before its answer was whole")
        return SmallAnswer(answer.status, body)


class _Replayed(io.RawIOBase):
    """A connection to read from, behind what was received from it already, until a deadline."""

    def __init__(self, connection: SmallCallConnection, begun: bytes, ends_at: float) -> None:
        self._connection, self._begun, self._ends_at = connection, begun, ends_at

    def makefile(self, *_: object) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        if not self._begun:
            self._connection.sock.settimeout(_left_s(self._ends_at))
            self._begun = self._connection.sock.recv(len(into))
        taken = self._begun[: len(into)]
        into[: len(taken)] = taken
        self._begun = self._begun[len(taken) :]
        return len(taken)


def _left_s(ends_at: float) -> float:
    left = ends_at - time.monotonic()
    if left <= 0:
        raise TimeoutError("the call's time is up")
    return left
