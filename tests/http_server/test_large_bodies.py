"""Bodies of any size, read piece by piece or into one place, arrive as they were sent."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocketq.http_server.connection.limits import Cut, ServerLimits
from rocketq.http_server.runner import ServerThread
from tests.support.raw_connection import BODY_MAX, Connection, Probe, background, post

#: The bytes of a body above which uvicorn stops reading until the app takes them.
HIGH_WATER = 64 * 1024
LARGE = 3 * 1024 * 1024


def body_of(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.fixture
def probe() -> Probe:
    return Probe()


@pytest.fixture
def server(probe: Probe) -> Iterator[ServerThread]:
    with ServerThread(probe, limits=ServerLimits(header_ms=60_000, request_ms=60_000)) as running:
        yield running
        probe.release()


@pytest.fixture
def client(server: ServerThread) -> Iterator[Connection]:
    with Connection(server.address) as connection:
        yield connection


@pytest.mark.parametrize("size", [0, 1, HIGH_WATER - 1, HIGH_WATER, LARGE, BODY_MAX])
def test_a_body_arrives_as_it_was_sent_and_the_connection_goes_on(client: Connection, size: int) -> None:
    body = body_of(size)
    for path in ("/one-place", "/echo", "/one-place"):
        with background(lambda path=path: client.send(post(path, body))):
            assert client.answer() == (200, body)
    assert client.get("/hello") == (200, b"hello")


def test_what_follows_a_body_in_one_write_is_the_next_request(client: Connection) -> None:
    first, second = body_of(LARGE, 1), body_of(LARGE, 2)
    hello = b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n"
    ahead = [post("/one-place", first), hello, post("/one-place", second), post("/echo", b"small"), hello]
    with background(lambda: client.send(b"".join(ahead))):
        answers = [client.answer() for _ in ahead]
    assert answers == [(200, each) for each in (first, b"hello", second, b"small", b"hello")]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_requests_of_any_size_in_writes_of_any_size_are_answered_in_order(
    server: ServerThread, data: st.DataObject
) -> None:
    near = st.integers(HIGH_WATER - 2, HIGH_WATER + 2)
    sizes = data.draw(st.lists(st.one_of(near, st.integers(0, 400_000)), min_size=1, max_size=4))
    bodies = [body_of(size, number) for number, size in enumerate(sizes)]
    stream = b"".join(post(data.draw(st.sampled_from(["/one-place", "/echo"])), body) for body in bodies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))

    with Connection(server.address) as client:

        def send() -> None:
            for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
                client.send(stream[begin:end])

        with background(send):
            assert [client.answer() for _ in bodies] == [(200, body) for body in bodies]


def test_a_body_that_waits_to_be_asked_for_is_asked_for(client: Connection) -> None:
    body = body_of(LARGE)
    request = post("/one-place", body, "expect: 100-continue")
    client.send(request[: -len(body)])
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    assert client.socket.recv(len(interim)) == interim
    with background(lambda: client.send(body)):
        assert client.answer() == (200, body)


def test_a_connection_keeps_nothing_of_a_body_that_was_answered(client: Connection, probe: Probe) -> None:
    body = body_of(LARGE)
    with background(lambda: client.send(post("/one-place", body))):
        assert client.answer() == (200, body)
    assert client.get("/hello") == (200, b"hello")
    [place] = probe.places
    assert place() is None


@pytest.mark.parametrize("size", [1_000, LARGE])
def test_a_body_that_does_not_come_is_refused_and_takes_no_others_memory(
    client: Connection, size: int
) -> None:
    # The parser takes no body of a request that wants to change the protocol.
    head = post("/one-place", bytes(size), "connection: upgrade", "upgrade: other")[:-size]
    client.send(head)
    status, answer = client.answer()
    assert (status, json.loads(answer)["code"]) == (400, "INVALID_REQUEST")


def test_a_client_that_leaves_in_the_middle_of_a_body_is_noticed(server: ServerThread, probe: Probe) -> None:
    with Connection(server.address) as client:
        client.send(post("/one-place", body_of(LARGE))[: LARGE // 2])
        assert probe.held.wait(60)
    assert probe.gone.wait(60)


def test_a_large_body_that_trickles_in_is_refused_as_too_slow(probe: Probe) -> None:
    with ServerThread(probe, limits=ServerLimits(request_ms=250)) as server:
        with Connection(server.address) as client:
            client.send(post("/one-place", body_of(LARGE))[: LARGE // 2])
            client.trickle(b"x" * 50_000)
            assert client.refusal() == (408, "TOO_SLOW")
        assert probe.gone.wait(60)
        assert server.counts.cut[Cut.SLOW_BODY] == 1
        with Connection(server.address) as other:
            assert other.get("/hello") == (200, b"hello")
