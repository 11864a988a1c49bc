"""Small requests that come whole: taken without a task or not, a client cannot tell."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from rocketq.http_server.connection.limits import Cut, ServerLimits
from rocketq.http_server.connection.small_call import SMALL_CALL_BYTES_MAX, SmallCall
from rocketq.http_server.runner import ServerThread
from tests.support.conditions import wait_until
from tests.support.raw_connection import Connection, Probe, post


class SmallCalls(Probe):
    """Answers a POST to /short with its body, to /later when it is told, and fails at /fail; else a Probe."""

    def __init__(self) -> None:
        super().__init__()
        self.offered: list[bytes] = []
        self.waiting: list[SmallCall] = []

    def take_small_call(self, call: SmallCall) -> bool:
        self.offered.append(call.target)
        if call.target == b"/fail":
            raise RuntimeError("secret")
        if call.target == b"/later":
            self.waiting.append(call)
            self.held.set()
            return True
        if call.target == b"/short":
            reply(call)
            return True
        return False


def reply(call: SmallCall) -> None:
    body = b"short " + call.body
    call.answer(200, [(b"content-length", b"%d" % len(body))], body)


@pytest.fixture
def app() -> SmallCalls:
    return SmallCalls()


@pytest.fixture
def server(app: SmallCalls) -> Iterator[ServerThread]:
    limits = ServerLimits(header_ms=60_000, request_ms=60_000, shutdown_ms=5_000)
    with ServerThread(app, limits=limits) as running:
        yield running
        app.release()


@pytest.fixture
def client(server: ServerThread) -> Iterator[Connection]:
    with Connection(server.address) as connection:
        yield connection


def release(server: ServerThread, app: SmallCalls) -> None:
    def answer() -> None:
        while app.waiting:
            reply(app.waiting.pop(0))

    server.call(answer)


def test_what_is_taken_and_what_is_not_share_a_connection(client: Connection, app: SmallCalls) -> None:
    for number in range(3):
        body = b"%d" % number
        client.send(post("/short", body))
        assert client.answer() == (200, b"short " + body)
        client.send(post("/echo", body))
        assert client.answer() == (200, body)
        assert client.get("/hello") == (200, b"hello")
    assert app.offered == [b"/short", b"/echo"] * 3


@pytest.mark.parametrize("step", [1, 7, 1_000])
@pytest.mark.parametrize("path", ["/short", "/echo"])
def test_a_request_in_pieces_is_put_together(client: Connection, path: str, step: int) -> None:
    request = post(path, b"0123456789")
    for at in range(0, len(request), step):
        client.send(request[at : at + step])
    status, body = client.answer()
    assert (status, body.removeprefix(b"short ")) == (200, b"0123456789")


def test_requests_sent_ahead_wait_for_the_short_one_and_keep_their_order(
    client: Connection, server: ServerThread, app: SmallCalls
) -> None:
    ahead = [post("/echo", b"a"), post("/short", b"b"), b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n"]
    client.send(b"".join([post("/later", b"first"), *ahead]))
    assert app.held.wait(60)
    release(server, app)
    assert client.answer() == (200, b"short first")
    # Behind a call that waits, every request is an ASGI request.
    assert [client.answer() for _ in range(3)] == [(200, b"a"), (200, b"hello"), (200, b"hello")]
    client.send(post("/short", b"again"))
    assert client.answer() == (200, b"short again")


@pytest.mark.parametrize(
    "request_bytes",
    [
        post("/echo", bytes(SMALL_CALL_BYTES_MAX + 1)),
        b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        b"GET /hello HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\nx",
    ],
)
def test_what_is_large_or_unannounced_or_no_post_is_not_offered(
    client: Connection, app: SmallCalls, request_bytes: bytes
) -> None:
    client.send(request_bytes)
    assert client.answer()[0] == 200
    assert not app.offered


def test_a_client_that_asks_to_close_is_answered_and_closed(client: Connection) -> None:
    client.send(post("/short", b"x", "connection: close"))
    assert client.answer()[0] == 200
    assert client.ended()


def test_a_defect_in_the_hook_becomes_an_error_document(client: Connection) -> None:
    client.send(post("/fail", b"x"))
    status, body = client.answer()
    assert (status, json.loads(body)["code"]) == (500, "INTERNAL_ERROR")
    assert b"secret" not in body
    client.send(post("/short", b"x"))
    assert client.answer() == (200, b"short x")


def test_an_answer_to_a_client_that_left_is_dropped(server: ServerThread, app: SmallCalls) -> None:
    with Connection(server.address) as leaving:
        leaving.send(post("/later", b"x"))
        assert app.held.wait(60)
    with Connection(server.address) as other:
        assert other.get("/hello") == (200, b"hello")
    wait_until(lambda: server.call(lambda: app.waiting[0].disconnected))
    release(server, app)
    with Connection(server.address) as other:
        other.send(post("/short", b"x"))
        assert other.answer() == (200, b"short x")


def test_a_stopping_server_answers_a_small_call_and_then_closes(app: SmallCalls) -> None:
    server: Any = ServerThread(app, limits=ServerLimits(shutdown_ms=30_000)).__enter__()
    with Connection(server.address) as client:
        client.send(post("/later", b"x"))
        assert app.held.wait(60)
        server.begin_stop()
        wait_until(lambda: not server.call(lambda: app.waiting[0].keep_alive))
        release(server, app)
        assert client.answer() == (200, b"short x")
        assert client.ended()
    server.__exit__(None, None, None)


def test_a_small_body_that_does_not_come_is_refused_as_too_slow(app: SmallCalls) -> None:
    with ServerThread(app, limits=ServerLimits(request_ms=250)) as server:
        with Connection(server.address) as client:
            client.send(post("/short", b"0123456789")[:-1])
            assert client.refusal() == (408, "TOO_SLOW")
        assert server.counts.cut[Cut.SLOW_BODY] == 1
        assert not app.offered
