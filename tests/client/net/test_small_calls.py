"""Small calls: the same promises as any call, over connections that a caller uses without a pool's work."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from rocketq.config import TransportConfig
from rocketq.errors import Closed, QueueNotFound, RemoteError
from rocketq.net.small_call_connection import SHORT_BODY_BYTES_MAX
from rocketq.net.transport import Transport, TransportFailure
from tests.client.net.test_transport import OneAnswerEach, closed_port, raw_server, whole_request
from tests.support.small_server import Answer, Asked, SmallServer

LINES = "content-type: text/plain\r\n"


@pytest.fixture
def transport() -> Iterator[Transport]:
    with Transport(TransportConfig(timeout_ms=60_000)) as made:
        yield made


def post(transport: Transport, address: str, body: bytes = b"x", timeout_ms: int | None = None) -> bytes:
    return transport.post(address, "/v1/x?a=b%26c", LINES, body, timeout_ms=timeout_ms)


class Scripted:
    """Gives the same bytes to every request of every connection, and counts the connections."""

    def __init__(self, *pieces: bytes, hang_up: bool = False) -> None:
        self.pieces, self.hang_up, self.connections = pieces, hang_up, 0

    def __call__(self, connection: socket.socket) -> None:
        self.connections += 1
        while whole_request(connection):
            for piece in self.pieces:
                connection.sendall(piece)
            if self.hang_up:
                connection.shutdown(socket.SHUT_RDWR)
                return


@pytest.mark.parametrize("size", [0, 100, SHORT_BODY_BYTES_MAX, SHORT_BODY_BYTES_MAX + 1])
def test_a_body_arrives_whole_whatever_its_size(transport: Transport, size: int) -> None:
    with SmallServer(lambda _: Answer(document={"fine": True})) as server:
        assert post(transport, server.address, b"y" * size) == b'{"fine":true}'
        (asked,) = server.asked
    assert (asked.method, asked.path, asked.query) == ("POST", "/v1/x", {"a": "b&c"})
    assert asked.body == b"y" * size
    assert asked.headers["content-type"] == "text/plain"
    assert asked.headers["host"] == server.address.removeprefix("http://")


@pytest.mark.parametrize(
    "pieces",
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",),
        (b"HTTP/1.1 200 OK\r\nContent-", b"Length:5\r\n\r", b"\nhel", b"lo"),
    ],
)
def test_calls_one_after_the_other_share_a_connection(
    transport: Transport, pieces: tuple[bytes, ...]
) -> None:
    serve = Scripted(*pieces)
    with raw_server(serve) as address:
        assert [post(transport, address) for _ in range(3)] == [b"hello"] * 3
    assert serve.connections == 1


@pytest.mark.parametrize(
    ("pieces", "hang_up"),
    [
        (
            (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"),
            False,
        ),
        ((b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", b"hello"), False),
        ((b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello",), False),
        ((b"HTTP/1.0 200 OK\r\n\r\nhel", b"lo"), True),
    ],
    ids=["chunks", "an interim answer", "a last answer", "no length"],
)
def test_an_answer_of_another_form_is_read_and_ends_its_connection(
    transport: Transport, pieces: tuple[bytes, ...], hang_up: bool
) -> None:
    serve = Scripted(*pieces, hang_up=hang_up)
    with raw_server(serve) as address:
        assert [post(transport, address) for _ in range(2)] == [b"hello"] * 2
    assert serve.connections == 2


def test_an_error_document_becomes_the_error_it_describes(transport: Transport) -> None:
    document = QueueNotFound("flights", 9, 4).document()
    with SmallServer(lambda _: Answer(404, document)) as server, pytest.raises(QueueNotFound):
        post(transport, server.address)
    with (
        SmallServer(lambda _: Answer(502, body=b"<html>")) as server,
        pytest.raises(RemoteError, match="502"),
    ):
        post(transport, server.address)


def test_a_refused_connection_was_surely_not_sent(transport: Transport) -> None:
    with pytest.raises(TransportFailure) as caught:
        post(transport, f"http://127.0.0.1:{closed_port()}")
    assert caught.value.why == "the connection was refused"
    assert not caught.value.sent


def test_a_host_that_accepts_no_connection_was_surely_not_sent() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        waiting = []
        with suppress(TimeoutError):
            while len(waiting) < 1_000:
                waiting.append(socket.create_connection(listener.getsockname(), timeout=0.2))
        config = TransportConfig(connect_timeout_ms=200, timeout_ms=600_000)
        with Transport(config) as transport, pytest.raises(TransportFailure) as caught:
            post(transport, f"http://127.0.0.1:{listener.getsockname()[1]}")
        for connection in waiting:
            connection.close()
    assert caught.value.why == "the connection was not accepted in time"
    assert not caught.value.sent


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\nx"])
def test_a_call_ends_at_its_deadline_and_may_have_been_sent(transport: Transport, begun: bytes) -> None:
    serve = Scripted(begun)
    with raw_server(serve) as address, pytest.raises(TransportFailure) as caught:
        post(transport, address, timeout_ms=500)
    assert caught.value.why == "no answer within 500 ms"
    assert caught.value.sent


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n", "more than the"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000, "the head of its answer is longer"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nnonsense\r\n", "not HTTP/1.1"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx", "before its answer was whole"),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 9\r\n\r\nx", "before its answer"),
        (b"", "before its answer was whole"),
    ],
)
def test_an_answer_that_is_none_fails_the_call(transport: Transport, answer: bytes, why: str) -> None:
    with raw_server(Scripted(answer, hang_up=True)) as address:
        with pytest.raises(TransportFailure, match=why) as caught:
            post(transport, address)
        assert caught.value.sent


def test_a_post_that_may_have_been_carried_out_is_not_repeated(transport: Transport) -> None:
    serve = OneAnswerEach()
    with raw_server(serve) as address:
        post(transport, address)
        with pytest.raises(TransportFailure) as caught:
            post(transport, address)
    assert caught.value.sent
    assert len(serve.requests) == 1


def test_a_connection_that_the_server_closed_is_replaced(transport: Transport) -> None:
    fine = Answer(document={})

    def respond(_: Asked) -> Answer:
        return fine

    with SmallServer(respond) as first:
        post(transport, first.address)
        port = first.port
    with SmallServer(respond, port) as second:
        assert post(transport, second.address) == b"{}"


def test_close_cuts_a_small_call_at_once(transport: Transport) -> None:
    reached, outcome = threading.Event(), []

    def hold(connection: socket.socket) -> None:
        whole_request(connection)
        reached.set()
        connection.recv(1)

    def call(address: str) -> None:
        try:
            outcome.append(post(transport, address, timeout_ms=600_000))
        except Closed as error:
            outcome.append(error)

    with raw_server(hold) as address:
        caller = threading.Thread(target=call, args=(address,))
        caller.start()
        assert reached.wait(60)
        transport.close()
        caller.join(60)
        with pytest.raises(Closed):
            post(transport, address)
    assert isinstance(outcome[0], Closed)


def test_threads_that_call_at_the_same_time_have_a_connection_each(transport: Transport) -> None:
    both = threading.Barrier(2, timeout=60)

    def serve(connection: socket.socket) -> None:
        while whole_request(connection):
            both.wait()
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    answers: list[bytes] = []
    with raw_server(serve) as address:
        threads = [
            threading.Thread(target=lambda: answers.append(post(transport, address))) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert answers == [b"ok", b"ok"]


def test_a_forked_child_makes_its_own_connections(transport: Transport) -> None:
    serve = Scripted(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
    with raw_server(serve) as address:
        post(transport, address)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = 0 if post(transport, address) == b"ok" else 1
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        post(transport, address)
    assert serve.connections == 2, "the parent went on with its connection, the child had its own"
