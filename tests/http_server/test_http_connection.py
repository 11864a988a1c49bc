"""No client can sit on a connection: each of them over a real socket, with limits of milliseconds."""

from __future__ import annotations

import contextlib
import select
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketq.errors import InvalidConfiguration
from rocketq.http_server.connection.limits import Cut, ServerLimits
from rocketq.http_server.runner import ServerThread
from tests.support.conditions import wait_until
from tests.support.raw_connection import BIG, Connection, Probe, background

#: Where a limit is not what a test is about.
LONG = 60_000
#: For a client that lets it pass.
SHORT = 250
#: For a client that keeps it first, also on a busy machine, and lets it pass then.
ENOUGH = 1_500
TLS = Path(__file__).parents[1] / "support" / "tls"

Serve = Callable[..., ServerThread]


@pytest.fixture
def probe() -> Probe:
    return Probe()


@pytest.fixture
def serve(probe: Probe) -> Iterator[Serve]:
    """Serve the probe with these limits, the others being long."""
    running: list[ServerThread] = []

    def start(**short: int) -> ServerThread:
        limits = {
            "header_ms": LONG,
            "request_ms": LONG,
            "answer_ms": LONG,
            "idle_ms": LONG,
            "shutdown_ms": 1000,
        }
        running.append(ServerThread(probe, limits=ServerLimits(**limits | short)).__enter__())
        return running[-1]

    yield start
    for server in running:
        probe.release()
        server.__exit__(None, None, None)


def let_pass(server: ServerThread) -> None:
    """Let the server's header_ms pass once: a connection that stays silent so long is ended."""
    with Connection(server.address) as silent:
        assert silent.ended()


def test_a_connection_that_never_sends_a_byte_is_closed(serve: Serve) -> None:
    server = serve(header_ms=SHORT)
    let_pass(server)
    assert server.counts.cut[Cut.SILENT] == 1


def test_a_head_that_trickles_in_is_refused_as_too_slow(serve: Serve) -> None:
    server = serve(header_ms=SHORT)
    with Connection(server.address) as client:
        client.trickle(b"GET /hello HTTP/1.1\r\n" + b"x: y\r\n" * 10_000)
        assert client.refusal() == (408, "TOO_SLOW")
    assert server.counts.cut[Cut.SLOW_HEADER] == 1


def test_empty_lines_before_a_request_gain_no_time(serve: Serve) -> None:
    server = serve(header_ms=SHORT)
    with Connection(server.address) as client:
        client.trickle(b"\r\n" * 20_000)
        assert client.ended()


def test_a_body_that_trickles_in_is_refused_as_too_slow(serve: Serve) -> None:
    server = serve(request_ms=SHORT)
    with Connection(server.address) as client:
        client.send(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n")
        client.trickle(b"x" * 50_000)
        assert client.refusal() == (408, "TOO_SLOW")
    assert server.counts.cut[Cut.SLOW_BODY] == 1


def test_a_chunked_body_that_never_ends_is_refused_as_too_slow(serve: Serve) -> None:
    server = serve(request_ms=SHORT)
    with Connection(server.address) as client:
        client.send(b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        client.trickle(b"1\r\nx\r\n" * 10_000)
        assert client.refusal() == (408, "TOO_SLOW")


def test_a_client_that_does_not_take_its_answer_is_cut(serve: Serve) -> None:
    server = serve(answer_ms=SHORT)
    with Connection(server.address, receive_buffer=4096) as client:
        client.send(b"GET /big HTTP/1.1\r\nhost: x\r\n\r\n")
        poll = select.poll()
        poll.register(client.socket, 0)
        assert poll.poll(30_000), "the server resets the connection though nothing is read"
    assert server.counts.cut[Cut.SLOW_READER] == 1


def test_a_client_that_takes_its_answer_gets_all_of_it(serve: Serve) -> None:
    server = serve(answer_ms=20_000)
    with Connection(server.address) as client:
        status, body = client.get("/big")
        assert (status, len(body)) == (200, BIG)
        assert client.get("/hello") == (200, b"hello")
    assert not any(server.counts.cut.values())


def test_a_closing_connection_does_not_wait_for_a_client_that_takes_nothing(serve: Serve) -> None:
    server = serve(answer_ms=SHORT)
    with Connection(server.address, receive_buffer=4096) as client:
        client.send(b"GET /big HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        poll = select.poll()
        poll.register(client.socket, 0)
        assert poll.poll(30_000)


def test_a_closing_connection_ends_though_its_last_answer_was_not_taken(serve: Serve) -> None:
    server = serve(answer_ms=SHORT)
    with Connection(server.address, receive_buffer=4096) as client:
        client.send(b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n")
        wait_until(lambda: server.call(lambda: _answered(server)))
        buffered = 0
        while not buffered:
            answered = server.call(lambda: _answered(server))
            client.send(b"GET /some HTTP/1.1\r\nhost: x\r\n\r\n")
            wait_until(lambda: server.call(lambda: _answered(server)) > answered)  # noqa: B023
            buffered = server.call(lambda: _connection(server).transport.get_write_buffer_size())
        assert not server.call(lambda: _connection(server).flow.write_paused)
        client.send(b"GET /hello HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        poll = select.poll()
        poll.register(client.socket, 0)
        assert poll.poll(30_000)


def _connection(server: ServerThread) -> Any:
    (only,) = server.state.connections
    return only


def _answered(server: ServerThread) -> int:
    return server.state.total_requests


def test_a_held_call_is_under_no_deadline(serve: Serve, probe: Probe) -> None:
    server = serve(header_ms=ENOUGH, request_ms=ENOUGH, answer_ms=ENOUGH, idle_ms=ENOUGH)
    with Connection(server.address) as client:
        client.send(b"GET /hold HTTP/1.1\r\nhost: x\r\n\r\n")
        assert probe.held.wait(60)
        let_pass(server)
        let_pass(server)
        probe.release()
        assert client.answer() == (200, b"hello")


def test_time_in_which_the_server_does_not_read_is_not_counted(serve: Serve, probe: Probe) -> None:
    server = serve(header_ms=ENOUGH, request_ms=ENOUGH)
    # More than is read ahead, and little enough to be there at once when it is wanted.
    size = 1024 * 1024
    with Connection(server.address) as client:

        def upload() -> None:
            client.send(b"POST /late HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % size + bytes(size))

        with background(upload):
            assert probe.held.wait(60)
            let_pass(server)
            let_pass(server)
            probe.release()
        assert client.answer() == (200, b"%d" % size)


def test_a_connection_is_used_again_and_closed_when_it_stays_idle(serve: Serve) -> None:
    server = serve(idle_ms=ENOUGH)
    with Connection(server.address) as client:
        assert client.get("/hello") == (200, b"hello")
        assert client.get("/hello") == (200, b"hello")
        assert client.ended()
    assert server.counts.cut[Cut.IDLE] == 1


def test_a_second_request_that_never_ends_is_refused(serve: Serve) -> None:
    server = serve(header_ms=ENOUGH)
    with Connection(server.address) as client:
        assert client.get("/hello") == (200, b"hello")
        client.send(b"GET /hello HTT")
        assert client.refusal() == (408, "TOO_SLOW")


def test_pipelined_requests_are_answered_in_order(serve: Serve) -> None:
    server = serve()
    with Connection(server.address) as client:
        post = b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n"
        client.send(b"".join(post + b"%d" % n for n in range(5)))
        assert [client.answer() for _ in range(5)] == [(200, b"%d" % n) for n in range(5)]


def test_a_refusal_is_never_written_before_the_answer_to_an_earlier_request(
    serve: Serve, probe: Probe
) -> None:
    server = serve(header_ms=ENOUGH)
    with Connection(server.address) as client:
        client.send(b"GET /hold HTTP/1.1\r\nhost: x\r\n\r\nGET /hello HTT")
        assert client.ended()
    assert server.counts.cut[Cut.SLOW_HEADER] == 1


def test_a_body_refused_unread_keeps_its_deadline_and_gets_one_answer(serve: Serve) -> None:
    server = serve(request_ms=ENOUGH)
    with Connection(server.address) as client:
        client.send(b"POST /early HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n")
        assert client.answer() == (200, b"hello")
        assert client.ended()


def test_after_a_body_that_was_not_waited_for_the_next_request_is(serve: Serve) -> None:
    server = serve(idle_ms=SHORT)
    with Connection(server.address) as client:
        client.send(b"POST /early HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n")
        assert client.answer() == (200, b"hello")
        client.send(b"12345")
        assert client.ended()
    assert server.counts.cut[Cut.IDLE] == 1


def test_a_connection_stays_usable_after_a_refused_body(serve: Serve) -> None:
    server = serve()
    size = 32 * 1024 * 1024
    with Connection(server.address) as client:
        client.send(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % size)
        client.send(bytes(size))
        assert client.answer()[0] == 413
        assert client.get("/hello") == (200, b"hello")


def test_one_connection_too_many_is_told_so_and_closed(serve: Serve) -> None:
    server = serve(connections_max=2)
    with Connection(server.address) as first, Connection(server.address) as second:
        assert first.get("/hello")[0] == second.get("/hello")[0] == 200
        with Connection(server.address) as third:
            third.send(b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n")
            assert third.refusal() == (503, "TOO_MANY_CONNECTIONS")
        first.send(b"GET /hello HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert first.answer() == (200, b"hello")
        assert first.ended()
        with Connection(server.address) as fourth:
            assert fourth.get("/hello") == (200, b"hello")
    assert server.counts.cut[Cut.TOO_MANY] == 1


def test_a_refused_connection_is_let_go_even_if_its_client_stays(serve: Serve) -> None:
    server = serve(connections_max=1, linger_ms=SHORT)
    with Connection(server.address) as first, Connection(server.address) as second:
        assert first.get("/hello")[0] == 200
        assert second.refusal()[0] == 503
        poll = select.poll()
        poll.register(second.socket, 0)
        second.send(b"x")
        # Our side stays open: only the server's own deadline can end it, by a reset.
        while not poll.poll(5):
            second.socket.send(b"x")
    assert server.call(lambda: server.counts.refusing) == 0


def test_past_as_many_refusals_as_connections_nothing_is_said_any_more(serve: Serve) -> None:
    server = serve(connections_max=1, linger_ms=LONG)
    with (
        Connection(server.address) as first,
        Connection(server.address) as second,
        Connection(server.address) as third,
    ):
        assert first.get("/hello")[0] == 200
        assert third.ended()
        assert second.refusal()[0] == 503


def test_a_head_over_its_limit_is_refused(serve: Serve) -> None:
    server = serve(header_bytes_max=4096)
    with Connection(server.address) as client:
        client.send(b"GET /hello HTTP/1.1\r\n" + b"x: y\r\n" * 1000)
        assert client.refusal() == (413, "TOO_LARGE")


def test_a_client_that_goes_on_sending_still_reads_why_it_was_refused(serve: Serve) -> None:
    server = serve(header_bytes_max=4096)
    with Connection(server.address) as client:
        client.send(b"GET /hello HTTP/1.1\r\n" + b"x: y\r\n" * 2_000_000)
        assert client.refusal() == (413, "TOO_LARGE")


def test_what_is_not_http_is_refused_with_a_document(serve: Serve) -> None:
    server = serve()
    with Connection(server.address) as client:
        client.send(b"\x16\x03\x01\x02\x00 hello\r\n\r\n")
        assert client.refusal() == (400, "INVALID_REQUEST")


def test_a_request_to_upgrade_the_protocol_is_ignored(serve: Serve) -> None:
    server = serve()
    with Connection(server.address) as client:
        client.send(b"GET /hello HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
        assert client.answer() == (200, b"hello")


def test_an_unforeseen_error_is_a_document_with_a_trace_id_and_no_detail(serve: Serve) -> None:
    server = serve()
    with Connection(server.address) as client:
        status, body = client.get("/fail")
        assert status == 500
        assert b"INTERNAL_ERROR" in body
        assert b"trace_id" in body
        assert b"secret" not in body
        assert client.get("/hello") == (200, b"hello")


def test_a_client_that_hangs_up_is_noticed_while_its_call_is_held(serve: Serve, probe: Probe) -> None:
    server = serve()
    with Connection(server.address) as client:
        client.send(b"GET /watch HTTP/1.1\r\nhost: x\r\n\r\n")
        assert probe.held.wait(60)
    assert probe.gone.wait(60)
    assert server.call(lambda: server.counts.open) == 0


CHUNKED = b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("extra", [-100, 1, 40_000, 300_000])
def test_a_head_that_comes_in_one_write_has_the_same_limit(serve: Serve, extra: int) -> None:
    limit = 64 * 1024
    server = serve(header_bytes_max=limit)
    start = b"GET /hello HTTP/1.1\r\nhost: x\r\nx: "
    head = start + b"y" * (limit + extra - len(start) - 4) + b"\r\n\r\n"
    with Connection(server.address) as client:
        client.send(head)
        if extra < 0:
            assert client.answer() == (200, b"hello")
        else:
            assert client.refusal() == (413, "TOO_LARGE")


def test_a_large_body_and_the_next_head_in_one_write_are_no_large_head(serve: Serve) -> None:
    body = bytes(200_000)
    with Connection(serve().address) as client:
        ahead = b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        with background(lambda: client.send((ahead + body) * 3 + CHUNKED + b"1\r\nx\r\n0\r\n\r\n")):
            assert [client.answer() for _ in range(3)] == [(200, body)] * 3
        assert client.answer() == (200, b"x")


@pytest.mark.parametrize("line", [b"t: " + b"y" * 1_000 + b"\r\n", b"y" * 1_000])
def test_trailers_without_end_are_refused_at_the_limit_of_a_head(serve: Serve, line: bytes) -> None:
    server = serve()
    with Connection(server.address) as client:
        client.send(CHUNKED + b"5\r\nhello\r\n0\r\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(10_000):
                client.send(line)
        # The probe has had the whole body, and may have answered before the trailers were too many.
        assert client.refusal() == (413, "TOO_LARGE")
    assert server.counts.cut[Cut.BAD_REQUEST] == 1


def test_trailers_are_read_and_are_no_headers(serve: Serve) -> None:
    with Connection(serve().address) as client:
        for _ in range(2):
            client.send(CHUNKED + b"5\r\nhello\r\n0\r\nhost: y\r\ncontent-type: text/plain\r\n\r\n")
            assert client.answer() == (200, b"hello")


def test_a_body_of_many_small_chunks_is_under_no_limit_of_a_head(serve: Serve) -> None:
    with Connection(serve().address) as client:
        client.send(CHUNKED + b"1;x=y\r\nz\r\n" * 40_000 + b"0\r\n\r\n")
        assert client.answer() == (200, b"z" * 40_000)


@contextlib.contextmanager
def tls_server(probe: Probe, limits: ServerLimits) -> Iterator[ServerThread]:
    """Serve over TLS, whose transports cannot shut one side down (`can_write_eof` is False)."""
    server = ServerThread(probe, limits=limits)
    server.settings.ssl_certfile = TLS / "test_certificate.pem"
    server.settings.ssl_keyfile = str(TLS / "test_key.pem")
    with server:
        yield server
        probe.release()


def over_tls(server: ServerThread) -> Connection:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(TLS / "test_certificate.pem")
    connection = Connection(server.address)
    connection.socket = context.wrap_socket(connection.socket)
    return connection


@pytest.mark.parametrize(
    ("sent", "refusal"),
    [
        (b"not HTTP\r\n\r\n", (400, "INVALID_REQUEST")),
        (b"GET /hello HTTP/1.1\r\n" + b"x: y\r\n" * 1_000, (413, "TOO_LARGE")),
        (b"GET /hello HTTP/1.1\r\n", (408, "TOO_SLOW")),
        (b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n", (408, "TOO_SLOW")),
    ],
)
def test_refusals_need_no_transport_that_can_shut_one_side_down(
    probe: Probe, sent: bytes, refusal: tuple[int, str]
) -> None:
    # Long enough for a handshake on a busy machine: the deadline begins with the first request.
    limits = ServerLimits(header_ms=2_000, request_ms=SHORT, header_bytes_max=4_096, linger_ms=SHORT)
    with tls_server(probe, limits) as server, over_tls(server) as client:
        assert client.get("/hello") == (200, b"hello")
        client.send(sent)
        assert client.refusal() == refusal
        assert server.call(lambda: server.counts.refusing) == 0


def test_one_connection_too_many_is_told_so_over_tls(probe: Probe) -> None:
    limits = ServerLimits(connections_max=1, linger_ms=SHORT)
    with tls_server(probe, limits) as server, over_tls(server) as first:
        assert first.get("/hello") == (200, b"hello")
        with over_tls(server) as second:
            assert second.refusal() == (503, "TOO_MANY_CONNECTIONS")


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="request_ms"):
        ServerLimits(request_ms=0)


def test_the_limits_are_the_documented_ones() -> None:
    limits = ServerLimits()
    answer_s = limits.answer_ms // 1000
    table = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    for line in (
        f"| no byte on a new connection | {limits.header_ms // 1000} s |",
        f"| a request's head | {limits.header_ms // 1000} s, {limits.header_bytes_max // 1024} KiB |",
        f"| a whole request | {limits.request_ms // 1000} s |",
        f"| the client does not take the answer: total time that the server waits | {answer_s} s |",
        f"| nothing between two requests | {limits.idle_ms // 1000} s |",
        f"| open connections | {limits.connections_max:,} |",
        f"within {limits.shutdown_ms // 1000} s",
    ):
        assert line in table
    for reason in Cut:
        assert f"`{reason.value}`" in table
