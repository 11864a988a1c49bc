"""Every error of a FastAPI app is one of our documents, and bodies are read within their limit."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
import structlog
from fastapi import Depends, FastAPI, Query

from rocketq.errors import BrokerUnavailable, InvalidRequest, QueueNotFound, SystemBusy, TooLarge
from rocketq.http_server.error_answers import Disconnected, error_answer, install_error_answers, read_body
from rocketq.http_server.known_parameters import known_parameters_only
from rocketq.http_server.runner import ServerThread
from tests.support.raw_connection import Connection


def app() -> FastAPI:
    made = FastAPI(docs_url=None, redoc_url=None, dependencies=[Depends(known_parameters_only)])
    install_error_answers(made)

    @made.get("/queues/{queue}")
    async def queue(queue: int, size: Annotated[int, Query(ge=1)] = 1) -> dict[str, int]:
        if queue > 3:
            raise QueueNotFound("orders", queue, 4)
        if queue < 0:
            raise RuntimeError("a secret detail")
        return {"queue": queue, "size": size}

    return made


@pytest.mark.parametrize(
    ("path", "status", "code", "where"),
    [
        ("/queues/9", 404, "QUEUE_NOT_FOUND", "queue 9"),
        ("/queues/x", 400, "INVALID_REQUEST", "parameter queue"),
        ("/queues/1?size=0", 400, "INVALID_REQUEST", "parameter size"),
        ("/queues/1?sise=1", 400, "INVALID_REQUEST", "'sise'"),
        ("/queues/1?size=1&size=2", 400, "INVALID_REQUEST", "twice"),
        ("/nowhere", 404, "NOT_FOUND", "/nowhere"),
        ("/queues/-1", 500, "INTERNAL_ERROR", "trace"),
    ],
)
def test_every_refusal_is_a_document(path: str, status: int, code: str, where: str) -> None:
    with ServerThread(app()) as server, Connection(server.address) as client:
        got, body = client.get(path)
        document = json.loads(body)
        assert (got, document["code"]) == (status, code)
        assert where in document["message"]
        assert b"secret" not in body
        assert client.get("/queues/1?size=2") == (200, b'{"queue":1,"size":2}'), "the connection lives on"


@pytest.fixture
def printing() -> Iterator[None]:
    """The log as it is before a program configures it: an embedded cluster of another test may have."""
    before = structlog.get_config() if structlog.is_configured() else None
    structlog.reset_defaults()
    yield
    if before is not None:
        structlog.configure(**before)


@pytest.mark.usefixtures("printing")
def test_a_defect_is_logged_once_under_the_trace_id_that_the_caller_is_told(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with ServerThread(app()) as server, Connection(server.address) as client:
        body = client.get("/queues/-1")[1]
    trace_id = json.loads(body)["facts"]["trace_id"]
    shown = "".join(capfd.readouterr())
    assert len(re.findall(trace_id, shown)) == 1
    assert "a secret detail" in shown


def test_the_refusal_of_a_wrong_method_lists_the_right_ones() -> None:
    with ServerThread(app()) as server, Connection(server.address) as client:
        client.send(b"PUT /queues/1 HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
        assert b"allow: GET" in client.head()
        status, body = client.answer()
        assert (status, json.loads(body)["code"]) == (405, "METHOD_NOT_ALLOWED")


@pytest.mark.parametrize(
    ("error", "after"),
    [(SystemBusy("full", 1), b"1"), (SystemBusy("full", 2_001), b"3"), (BrokerUnavailable("a", "x"), b"1")],
)
def test_a_busy_server_says_when_to_try_again_in_whole_seconds_rounded_up(error: Any, after: bytes) -> None:
    status, headers, body = error_answer(error)
    assert dict(headers)[b"retry-after"] == after
    assert dict(headers)[b"content-length"] == b"%d" % len(body)
    assert status == error.status


def test_an_error_that_waiting_does_not_help_says_nothing_of_it() -> None:
    assert b"retry-after" not in dict(error_answer(InvalidRequest("x", "y"))[1])


# --- bodies -----------------------------------------------------------------------------------


def read(messages: list[dict[str, Any]], limit: int, announced: bytes | None = None) -> list[bytes]:
    waiting = iter(messages)

    async def receive() -> dict[str, Any]:
        return next(waiting)

    headers = [] if announced is None else [(b"content-length", announced)]
    return asyncio.run(read_body({"headers": headers}, receive, limit))


def piece(body: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


def test_a_body_is_read_to_its_end_up_to_its_limit() -> None:
    assert read([piece(b"ab"), piece(b""), piece(b"cd", more=False)], 4) == [b"ab", b"cd"]
    assert read([piece(b"", more=False)], 4, b"0") == []


def test_a_body_that_announces_too_much_is_refused_before_any_of_it_is_read() -> None:
    with pytest.raises(TooLarge, match="5 bytes"):
        read([], 4, b"5")


def test_a_body_that_grows_past_its_limit_is_refused_as_soon_as_it_does() -> None:
    with pytest.raises(TooLarge):
        read([piece(b"abc"), piece(b"de")], 4)


def test_a_client_that_hangs_up_in_the_middle_is_no_error_to_answer() -> None:
    with pytest.raises(Disconnected):
        read([piece(b"abc"), {"type": "http.disconnect"}], 4)
