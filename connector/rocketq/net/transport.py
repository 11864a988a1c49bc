"""HTTP calls with one deadline each, over pooled connections.

What urllib3 leaves open is closed here:

  * a deadline is for the *whole* call: before each send and each receive the
    socket is given what is left of it, so a server that drips bytes cannot
    stretch it;
  * an answer's size is checked against a limit before and while it is read;
  * making a connection has a limit of its own, so that a host that does not
    answer at all leaves time for another attempt;
  * a failure says whether the request can have reached the server: whether the
    first byte of it was given to a connection that existed. A request that
    surely did not arrive may be repeated by anybody;
    a GET that dies on a reused connection is repeated once here, because the
    server closes idle connections when it restarts;
  * `close` cuts the calls that are in flight, so a held pull ends at once.

Pools are made on first use in each process: a child of `fork` never shares a
socket with its parent.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast
from urllib.parse import quote, urlencode

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NewConnectionError,
    ProtocolError,
    ReadTimeoutError,
    SSLError,
)

from rocketq.config import TransportConfig
from rocketq.errors import Closed
from rocketq.errors.documents import from_document
from rocketq.model import PULL_BYTES_MAX
from rocketq.net.connection_pools import ConnectionPools
from rocketq.net.small_call_connection import SHORT_BODY_BYTES_MAX, SmallAnswer
from rocketq.protocol.pieces import Pieces
from rocketq.protocol.sizes import FRAME_BYTES_MAX

if TYPE_CHECKING:
    import pyarrow as pa

#: JSON answers; a topic list of 100,000 names fits.
CONTROL_BYTES_MAX: Final = 32 * 1024 * 1024
#: A pull stops after the frame that reaches its limit, so one frame comes on top.
PULL_ANSWER_BYTES_MAX: Final = PULL_BYTES_MAX + FRAME_BYTES_MAX

#: One receive: a block that stays in the processor's cache and in the allocator's hands.
_RECEIVE_BYTES: Final = 256 * 1024
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})

Body: TypeAlias = "bytes | bytearray | memoryview | pa.Buffer | Pieces"
Query: TypeAlias = Mapping[str, str | int | None]


class TransportFailure(Exception):
    """A call got no answer. Inside the client only: the API classes name the server.

    `sent` is False where the request cannot have reached the server.
    """

    def __init__(self, address: str, why: str, *, sent: bool) -> None:
        super().__init__(f"{address}: {why}")
        self.address, self.why, self.sent = address, why, sent


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer with a status below 400; header names are matched without case."""

    status: int
    headers: Mapping[str, str] = field(hash=False)
    body: bytes | memoryview


class Deadline:
    """A moment that a call must be over by."""

    __slots__ = ("ends_at", "timeout_ms")

    def __init__(self, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        #: The moment, as `time.monotonic` counts.
        self.ends_at = time.monotonic() + timeout_ms / 1000

    def left_s(self) -> float:
        """Return the seconds that are left; raise TimeoutError when none are."""
        left = self.ends_at - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no answer within {self.timeout_ms} ms")
        return left


class Transport:
    """Calls to any server of the cluster. Thread-safe; usable on both sides of a fork."""

    def __init__(self, config: TransportConfig | None = None) -> None:
        self.config = config or TransportConfig()
        self._pools = ConnectionPools(self.config)
        self._closed = False

    def call(
        self,
        method: str,
        address: str,
        path: str,
        *,
        query: Query | None = None,
        body: Body | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_ms: int | None = None,
        hold_ms: int = 0,
        answer_bytes_max: int = CONTROL_BYTES_MAX,
    ) -> Response:
        """Make one call and return its whole answer.

        `timeout_ms` is for everything, `hold_ms` is added to it for calls the
        server may hold. `query` leaves out what is None. Raises the server's error as it is drawn
        in `rocketq.errors`, TransportFailure without an answer, Closed.
        """
        deadline = Deadline((timeout_ms or self.config.timeout_ms) + hold_ms)
        target = path + _query_string(query)
        given = body if body is None or isinstance(body, Pieces) else memoryview(body)
        if isinstance(given, Pieces):
            headers = {**(headers or {}), "content-length": str(given.nbytes)}
        try:
            return self._attempt(method, address, target, given, headers, deadline, answer_bytes_max)
        except TransportFailure as failure:
            if method not in _SAFE_METHODS or not isinstance(failure.__cause__, ProtocolError):
                raise
            # A connection from the pool was dead on arrival, or the server closed just now.
            self._drop_idle(address)
        return self._attempt(method, address, target, given, headers, deadline, answer_bytes_max)

    def post(
        self, address: str, target: str, headers: str, body: bytes, *, timeout_ms: int | None = None
    ) -> bytes:
        """POST a small body and return the body of the answer: `call` with less work.

        `target` is the path with its query, encoded; `headers` are lines that each end with CR LF. A large
        body and an address with https go the way of `call`. Raises as `call`.
        """
        if len(body) > SHORT_BODY_BYTES_MAX or not address.startswith("http://"):
            named = dict(line.split(": ", 1) for line in headers.splitlines())
            answered = self.call("POST", address, target, body=body, headers=named, timeout_ms=timeout_ms)
            return bytes(answered.body)
        host = address.removeprefix("http://").rstrip("/")
        head = f"POST {target} HTTP/1.1\r\nhost: {host}\r\n{headers}content-length: {len(body)}\r\n\r\n"
        answer = self._exchanged(address, head.encode("ascii") + body, timeout_ms or self.config.timeout_ms)
        if answer.status >= 400:
            raise from_document(_document(answer.body), answer.status)
        return answer.body

    def _exchanged(self, address: str, request: bytes, timeout_ms: int) -> SmallAnswer:
        """Make a small call; raise TransportFailure or Closed."""
        deadline = Deadline(timeout_ms)
        pools = self._own_pools()
        connection = None
        try:
            connection = pools.small_call_connection(address, deadline.left_s())
            if pools.is_cut:
                # See `_refuse_if_cut`: this connection was opened or taken too late to be cut.
                raise ConnectionAbortedError("the transport was closed")
            answer = connection.exchange(request, deadline.ends_at, CONTROL_BYTES_MAX)
        except (HTTPError, OSError) as error:
            if connection is not None:
                connection.close()
            if self._closed:
                raise Closed("The transport") from error
            sent = connection is not None
            raise TransportFailure(address, _explained(error, deadline, sent), sent=sent) from error
        pools.keep_short(address, connection)
        return answer

    def close(self) -> None:
        """Cut all connections; calls in flight raise Closed. Closing twice is no error."""
        self._closed = True
        if self._pools.pid == os.getpid():
            self._pools.cut()

    def __enter__(self) -> Transport:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _attempt(
        self,
        method: str,
        address: str,
        target: str,
        body: memoryview | Pieces | None,
        headers: Mapping[str, str] | None,
        deadline: Deadline,
        answer_bytes_max: int,
    ) -> Response:
        if self._closed:
            raise Closed("The transport")
        pool = self._own_pools().pool(address)
        response = None
        self._pools.call.sent = False
        try:
            left = deadline.left_s()
            response = pool.urlopen(
                method,
                target,
                body=cast(Any, body.parts if isinstance(body, Pieces) else body),
                headers=headers,
                redirect=False,
                assert_same_host=False,
                timeout=_timeout(left, self.config.connect_timeout_ms, body),
                preload_content=False,
                decode_content=False,
            )
            data = _read(response, deadline, answer_bytes_max)
        except (HTTPError, OSError) as error:
            if response is not None:
                response.close()
            if self._closed:
                raise Closed("The transport") from error
            sent: bool = self._pools.call.sent
            raise TransportFailure(address, _explained(error, deadline, sent), sent=sent) from error
        if response.status >= 400:
            raise from_document(_document(data), response.status)
        return Response(response.status, cast(Mapping[str, str], response.headers), data)

    def _own_pools(self) -> ConnectionPools:
        if self._pools.pid != os.getpid():
            # After a fork. The parent's sockets are only forgotten here: to shut
            # them down would end the parent's calls.
            self._pools = ConnectionPools(self.config)
        return self._pools

    def _drop_idle(self, address: str) -> None:
        pool = self._pools.by_address.pop(address, None)
        if pool is not None:
            pool.close()


def path_of(*parts: str | int) -> str:
    """Join parts of a path under /v1, each escaped: names may hold % and |."""
    return "/v1/" + "/".join(quote(str(part), safe="") for part in parts)


def _query_string(query: Query | None) -> str:
    given = {name: value for name, value in (query or {}).items() if value is not None}
    return "?" + urlencode(given, safe=",") if given else ""


def _timeout(left_s: float, connect_timeout_ms: int, body: object | None) -> urllib3.Timeout:
    # The connect timeout is also the send's: a request with a body gets all that is left. Making the
    # connection has its own limit (`_Tracked.connect`).
    connect = left_s if body is not None else min(left_s, connect_timeout_ms / 1000)
    return urllib3.Timeout(connect=connect, read=left_s)


def _read(response: urllib3.BaseHTTPResponse, deadline: Deadline, limit: int) -> bytes | memoryview:
    """Take in the body, at most `limit` bytes, giving each receive what is left of the deadline."""
    announced = response.headers.get("content-length", "")
    if not announced.isdigit():
        return b"".join(_received(response, deadline, limit))
    size = int(announced)
    if size > limit:
        raise HTTPError(f"its answer is {announced} bytes, more than the {limit} asked for")
    if size <= _RECEIVE_BYTES:
        return b"".join(_received(response, deadline, limit))
    import numpy as np  # only here: a control call needs neither it nor Arrow

    # Put in place as it comes: its parts and the whole are never there both. Not a bytearray, which is
    # filled with zeros first.
    whole = np.empty(size, np.uint8).data
    at = 0
    for part in _received(response, deadline, size):
        whole[at : at + len(part)] = part
        at += len(part)
    if at < size:
        raise ProtocolError(f"the answer ended after {at} of {size} bytes")
    return whole


def _received(response: urllib3.BaseHTTPResponse, deadline: Deadline, limit: int) -> Iterator[bytes]:
    """Yield the body as it comes in; raise HTTPError if it is more than `limit` bytes."""
    sock = getattr(response.connection, "sock", None)
    size = 0
    while True:
        left = deadline.left_s()
        if sock is not None:
            sock.settimeout(left)
        part = cast(Any, response).read1(_RECEIVE_BYTES)
        if not part:
            return
        size += len(part)
        if size > limit:
            raise HTTPError(f"its answer is longer than the {limit} bytes asked for")
        yield part


def _explained(error: Exception, deadline: Deadline, sent: bool) -> str:
    """Say plainly what happened."""
    if isinstance(error, NewConnectionError):
        return _plain(error.__cause__ or error)
    if isinstance(error, ConnectTimeoutError):
        return "the connection was not accepted in time"
    if isinstance(error, SSLError):
        what = "the secure connection failed" if sent else "no secure connection could be made"
        return f"{what}: {error}"
    inner = error.args[-1] if isinstance(error, ProtocolError) and error.args else error
    if isinstance(inner, ReadTimeoutError | TimeoutError):
        return f"no answer within {deadline.timeout_ms} ms" if sent else "there was no time left to send it"
    return _plain(inner if isinstance(inner, BaseException) else error)


def _plain(error: BaseException) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "the connection was refused"
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return "the connection was reset"
    if isinstance(error, socket.gaierror):
        return f"the host name is unknown ({error.strerror})"
    return str(error).rstrip(".") or type(error).__name__


def _document(data: bytes | memoryview) -> Any:
    try:
        return json.loads(bytes(data))
    except (ValueError, RecursionError):
        return None
