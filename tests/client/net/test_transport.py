"""The transport: deadlines, sizes, what a failure says, and what may be repeated."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from urllib3.connection import HTTPConnection

from rocketq.config import TransportConfig
from rocketq.errors import Closed, InvalidConfiguration, QueueNotFound, RemoteError
from rocketq.net.transport import Response, Transport, TransportFailure, path_of
from rocketq.protocol.pieces import Pieces
from tests.support.small_server import Answer, Asked, SmallServer


@pytest.fixture
def transport() -> Iterator[Transport]:
    with Transport(TransportConfig(timeout_ms=60_000)) as made:
        yield made


def ok(_: Asked) -> Answer:
    return Answer(document={"fine": True})


@contextmanager
def raw_server(serve: Callable[[socket.socket], object]) -> Iterator[str]:
    """A listening socket; a thread runs `serve(connection)` for each connection, until it closes."""
    listener = socket.create_server(("127.0.0.1", 0))
    connections: list[socket.socket] = []

    def served(connection: socket.socket) -> None:
        with suppress(OSError):
            serve(connection)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(connection)
            threading.Thread(target=served, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()
        for connection in connections:
            connection.close()


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_a_call_carries_its_query_and_body_and_returns_the_answer(transport: Transport) -> None:
    with SmallServer(ok) as server:
        response = transport.call(
            "POST", server.address, path_of("topics", "a%b|c"), query={"x": 1, "y": None}, body=b"abc"
        )
    assert response.status == 200
    assert response.body == b'{"fine":true}'
    assert server.asked[0].path == "/v1/topics/a%25b%7Cc"
    assert server.asked[0].query == {"x": "1"}
    assert server.asked[0].body == b"abc"


def test_no_compression_is_asked_for(transport: Transport) -> None:
    with SmallServer(ok) as server:
        transport.call("GET", server.address, "/")
    assert server.asked[0].headers["accept-encoding"] == "identity"


def test_an_error_document_becomes_the_error_it_describes(transport: Transport) -> None:
    document = QueueNotFound("flights", 9, 4).document()
    with SmallServer(lambda _: Answer(404, document)) as server, pytest.raises(QueueNotFound) as caught:
        transport.call("GET", server.address, "/")
    assert caught.value.facts == {"topic": "flights", "queue": 9, "queues": 4}


def test_an_error_without_a_document_is_still_an_error(transport: Transport) -> None:
    with (
        SmallServer(lambda _: Answer(502, body=b"<html>")) as server,
        pytest.raises(RemoteError, match="502"),
    ):
        transport.call("GET", server.address, "/")


def test_a_refused_connection_is_said_plainly_and_was_surely_not_sent(transport: Transport) -> None:
    with pytest.raises(TransportFailure) as caught:
        transport.call("POST", f"http://127.0.0.1:{closed_port()}", "/", body=b"x")
    assert caught.value.why == "the connection was refused"
    assert not caught.value.sent


def test_a_call_without_an_answer_ends_at_its_deadline_maybe_sent(
    transport: Transport,
) -> None:
    silent = raw_server(lambda connection: connection.recv(1 << 16))
    with silent as address, pytest.raises(TransportFailure) as caught:
        transport.call("POST", address, "/", body=b"x", timeout_ms=500)
    assert caught.value.why == "no answer within 500 ms"
    assert caught.value.sent


def test_a_body_that_is_never_read_may_have_been_sent(transport: Transport) -> None:
    # The system takes the first part of the body; the rest waits until time is over.
    with raw_server(lambda _: None) as address, pytest.raises(TransportFailure) as caught:
        transport.call("POST", address, "/", body=bytes(64 << 20), timeout_ms=1_000)
    assert caught.value.sent
    assert "no answer within 1000 ms" in caught.value.why


def test_a_host_that_accepts_no_connection_ends_at_the_connect_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        waiting = []
        # The system completes connections up to the backlog; then it answers no more of them.
        with suppress(TimeoutError):
            while len(waiting) < 1_000:
                waiting.append(socket.create_connection(address, timeout=0.2))
        config = TransportConfig(connect_timeout_ms=200, timeout_ms=600_000)
        with Transport(config) as transport, pytest.raises(TransportFailure) as caught:
            transport.call("POST", f"http://127.0.0.1:{address[1]}", "/", body=b"x")
        for connection in waiting:
            connection.close()
    assert not caught.value.sent
    assert caught.value.why == "the connection was not accepted in time"


def test_a_secure_connection_that_never_comes_about_sends_nothing(transport: Transport) -> None:
    # The handshake never completes: nothing of the request can have arrived.
    def hang_up(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.close()

    with raw_server(hang_up) as address, pytest.raises(TransportFailure) as caught:
        transport.call("POST", address.replace("http:", "https:"), "/", body=b"x")
    assert not caught.value.sent


def test_a_dripping_answer_cannot_stretch_the_deadline(transport: Transport) -> None:
    stop = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
        while not stop.wait(0.01):
            try:
                connection.sendall(b"x")
            except OSError:
                return

    with raw_server(drip) as address, pytest.raises(TransportFailure, match="no answer within 1000 ms"):
        transport.call("GET", address, "/", timeout_ms=1_000)
    stop.set()


def test_an_answer_that_announces_too_much_is_not_read(transport: Transport) -> None:
    big = Answer(body=b"x", headers={"content-length": str(1 << 40)})
    with SmallServer(lambda _: big) as server, pytest.raises(TransportFailure, match="more than the 100"):
        transport.call("GET", server.address, "/", answer_bytes_max=100)


def test_an_answer_that_goes_on_without_an_announced_length_is_cut_off(transport: Transport) -> None:
    def endless(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while True:
                connection.sendall(b"x" * 4096)
        except OSError:
            return

    with raw_server(endless) as address, pytest.raises(TransportFailure, match="longer than the 10000"):
        transport.call("GET", address, "/", answer_bytes_max=10_000)


def whole_request(connection: socket.socket) -> bytes:
    """Read a request to the end of its body, which may come in a packet of its own."""
    data = b""
    while True:
        head, end, body = data.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        if end and len(body) >= (int(length[1]) if length else 0):
            return data
        piece = connection.recv(1 << 16)
        if not piece:
            return data
        data += piece


class OneAnswerEach:
    """Answers one request a connection and then hangs up on the next, as a restarted server does."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.refused = threading.Event()

    def __call__(self, connection: socket.socket) -> None:
        self.requests.append(whole_request(connection))
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        # The listener may be closed, and this connection with it, before another request comes.
        with suppress(OSError):
            if connection.recv(1 << 16):
                self.refused.set()
        connection.close()


def test_a_get_on_a_stale_connection_is_repeated_on_a_fresh_one(transport: Transport) -> None:
    serve = OneAnswerEach()
    with raw_server(serve) as address:
        assert transport.call("GET", address, "/first").body == b"ok"
        assert transport.call("GET", address, "/second").body == b"ok"
    assert serve.refused.is_set()
    assert len(serve.requests) == 2


def test_a_post_that_may_have_been_carried_out_is_not_repeated(transport: Transport) -> None:
    serve = OneAnswerEach()
    with raw_server(serve) as address:
        transport.call("POST", address, "/first", body=b"1")
        with pytest.raises(TransportFailure) as caught:
            transport.call("POST", address, "/second", body=b"2")
    assert caught.value.sent
    assert len(serve.requests) == 1


def test_a_connection_that_the_server_closed_is_replaced_also_for_a_post(transport: Transport) -> None:
    with SmallServer(ok) as first:
        transport.call("POST", first.address, "/", body=b"1")
        port = first.port
    with SmallServer(ok, port) as second:
        assert transport.call("POST", second.address, "/", body=b"2").status == 200


def test_a_short_deadline_does_not_linger_on_a_reused_connection(transport: Transport) -> None:
    with SmallServer(ok) as server:
        transport.call("GET", server.address, "/", timeout_ms=500)
        body = b"x" * (32 << 20)
        assert transport.call("POST", server.address, "/", body=body, timeout_ms=60_000).status == 200


def test_the_pieces_of_a_body_share_one_deadline(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = Pieces(tuple(memoryview(bytes([number]) * 1000) for number in range(5)))
    given: list[float] = []

    class Watched(socket.socket):
        def settimeout(self, value: float | None) -> None:
            given.append(value or 0.0)
            super().settimeout(value)

    with SmallServer(ok) as server:
        with monkeypatch.context() as patched:
            patched.setattr(socket, "socket", Watched)
            transport.call("POST", server.address, "/v1/x", body=pieces)
            given.clear()
            transport.call("POST", server.address, "/v1/x", body=pieces, timeout_ms=7_000)
        assert [asked.body for asked in server.asked] == [b"".join(pieces.parts)] * 2
    assert len(given) >= len(pieces.parts) + 2
    assert given == sorted(given, reverse=True)
    assert 0 < given[-1] < given[0] <= 7


def test_an_answer_may_take_longer_than_connecting_may(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    class Watched(socket.socket):
        def settimeout(self, value: float | None) -> None:
            given.append(value or 0.0)
            super().settimeout(value)

    config = TransportConfig(timeout_ms=20_000, connect_timeout_ms=1_000)
    with SmallServer(ok) as server, Transport(config) as transport, monkeypatch.context() as patched:
        patched.setattr(socket, "socket", Watched)
        for _ in range(2):
            given.clear()
            transport.call("GET", server.address, "/v1/x", hold_ms=30_000)
        # On a connection that is there: twice for the request, then for the answer's head and its body.
        assert all(each <= 1 for each in given[:2])
        assert len(given) > 3
        assert all(30 < each <= 50 for each in given[2:])


def test_close_cuts_a_held_call_at_once(transport: Transport) -> None:
    reached = threading.Event()
    outcome: list[Response | Exception] = []

    def hold(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        reached.set()
        connection.recv(1)

    def call(address: str) -> None:
        try:
            outcome.append(transport.call("GET", address, "/", hold_ms=600_000))
        except Closed as error:
            outcome.append(error)

    with raw_server(hold) as address:
        caller = threading.Thread(target=call, args=(address,))
        caller.start()
        assert reached.wait(60)
        transport.close()
        caller.join(60)
    assert isinstance(outcome[0], Closed)
    with pytest.raises(Closed):
        transport.call("GET", address, "/")


def test_a_call_that_connects_while_the_transport_closes_is_not_held(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Closing comes after the last look at whether it is closed, before the connection can be cut.
    def connect(connection: HTTPConnection, real: Any = HTTPConnection.connect) -> None:
        real(connection)
        transport.close()

    monkeypatch.setattr(HTTPConnection, "connect", connect)
    with raw_server(lambda connection: connection.recv(1 << 16)) as address, pytest.raises(Closed):
        transport.call("GET", address, "/", hold_ms=600_000)


def test_a_forked_child_makes_its_own_connections(transport: Transport) -> None:
    connections: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        connections.append(connection)
        while connection.recv(1 << 16):
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    with raw_server(serve) as address:
        transport.call("GET", address, "/")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = 0 if transport.call("GET", address, "/").body == b"ok" else 1
                transport.close()
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        transport.call("GET", address, "/")
        assert len(connections) == 2, "the parent went on with its connection, the child had its own"


@pytest.mark.parametrize("address", ["ftp://127.0.0.1", "nonsense", "http://", "http://h/path"])
def test_an_address_that_is_no_base_url_is_refused(transport: Transport, address: str) -> None:
    with pytest.raises(InvalidConfiguration):
        transport.call("GET", address, "/")


def test_a_password_in_an_address_is_refused_and_not_repeated(transport: Transport) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        transport.call("GET", "http://me:hush@127.0.0.1", "/")
    assert "hush" not in str(caught.value.document())
