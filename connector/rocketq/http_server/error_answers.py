"""Between ASGI and the error tree: reading bodies with a bound, and answering errors as documents.

`ErrorBoundary` is the outermost layer of a service. It answers every exception with an error document: an
error of `rocketq.errors` with its status, a refusal of FastAPI as INVALID_REQUEST or NOT_FOUND, and any other
exception as INTERNAL_ERROR with a trace id that the log has too.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from rocketq.errors import (
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    RocketqError,
    SystemBusy,
    TooLarge,
)
from rocketq.errors.admission_errors import ServerStopping
from rocketq.http_server.byte_budget import Claim
from rocketq.protocol.documents.broker import JSON, encode

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

_log = structlog.get_logger("rocketq.http_server")
_RETRY_AFTER_S: Final = 1


class Disconnected(Exception):
    """The client went away while its request was read; there is nobody to answer."""


def error_answer(error: RocketqError) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Return status, headers and body of an error's answer."""
    body = encode(error.document())
    headers = [(b"content-type", JSON.encode()), (b"content-length", b"%d" % len(body))]
    if isinstance(error, SystemBusy):
        headers.append((b"retry-after", b"%d" % -(-error.retry_after_ms // 1000)))
    elif error.status == 503:
        headers.append((b"retry-after", b"%d" % _RETRY_AFTER_S))
    return error.status, headers, body


async def send_error(error: RocketqError, send: Send) -> None:
    """Answer a request with an error."""
    status, headers, body = error_answer(error)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def content_length(headers: list[tuple[bytes, bytes]]) -> int | None:
    """Return the announced length of the body, None if there is none; raise InvalidRequest."""
    for name, value in headers:
        if name == b"content-length":
            if not value.isdigit():
                raise InvalidRequest("Content-Length", "it is not a number")
            return int(value)
    return None


async def read_body(scope: Any, receive: Receive, bytes_max: int, claim: Claim | None = None) -> list[bytes]:
    """Read a request's body in pieces; raise TooLarge before more than `bytes_max` is held.

    The announced length is checked first, so a body that says it is too large is
    refused before any of it is read. With a `claim`, each piece is claimed when it comes: SystemBusy if
    there is no room for it. Raises Disconnected if the client goes away.
    """
    announced = content_length(scope["headers"])
    if announced is not None and announced > bytes_max:
        raise TooLarge("the request body", announced, bytes_max)
    pieces: list[bytes] = []
    size = 0
    async for piece in body_pieces(receive):
        size += len(piece)
        if size > bytes_max:
            raise TooLarge("the request body", size, bytes_max)
        if claim is not None:
            claim.grow(len(piece))
        if piece:
            pieces.append(piece)
    return pieces


async def read_body_into(place: memoryview, receive: Receive) -> None:
    """Read a request's body into `place`, whose size is the announced length; each piece is copied once.

    Raises Disconnected if the client goes away, and InvalidRequest if less comes than was announced.
    """
    at = 0
    async for piece in body_pieces(receive):
        place[at : at + len(piece)] = piece
        at += len(piece)
    if at < len(place):
        # The rest of the place is memory that nobody has written for this request.
        raise InvalidRequest("the body", f"it has {at} of the {len(place)} bytes that were announced")


async def body_pieces(receive: Receive) -> AsyncIterator[bytes]:
    """Yield a request's body as it comes; raise Disconnected if the client goes away."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        yield message.get("body", b"")
        more = message.get("more_body", False)


def unforeseen(error: Exception, where: str) -> InternalError:
    """Log an unforeseen exception with its trace and return what the client is told."""
    trace_id = uuid.uuid4().hex[:16]
    _log.error("unexpected_error", where=where, trace_id=trace_id, exc_info=error)
    return InternalError(trace_id)


def error_response(error: RocketqError, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error's answer as Starlette has it, with further headers if there are any."""
    status, raw_headers, body = error_answer(error)
    response = Response(body, status)
    response.raw_headers = raw_headers
    for name, value in (headers or {}).items():
        response.headers[name] = value
    return response


def install_error_answers(app: FastAPI) -> None:
    """Make a FastAPI app answer every error as one of ours."""

    async def ours(request: Request, error: Exception) -> Response:
        assert isinstance(error, RocketqError)
        return error_response(error)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return error_response(_invalid_request(error))

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return error_response(_refusal(error, request), error.headers)

    app.add_exception_handler(RocketqError, ours)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, refused)
    # Inside of Starlette's own last resort, which would answer in plain text.
    app.add_middleware(ErrorBoundary)


def _invalid_request(error: RequestValidationError) -> InvalidRequest:
    """Return the first of FastAPI's findings: which parameter, what is wrong, what was given."""
    first = error.errors()[0]
    place, *names = (str(part) for part in first["loc"])
    kind = "parameter" if place in ("query", "path") else place
    given = first.get("input")
    shown = f", given {given[:40]!r}" if isinstance(given, str) else ""
    return InvalidRequest(
        " ".join([kind, ".".join(names)]).strip(),
        f"{first['msg'][:1].lower()}{first['msg'][1:]}{shown}",
        hint="See docs/protocol.md for its form.",
    )


def _refusal(error: HTTPException, request: Request) -> RocketqError:
    path = str(request.scope["path"])
    if error.status_code == 405:
        return MethodNotAllowed(request.method, path)
    if error.status_code == 404:
        return NotFound("path", path)
    return InvalidRequest("the request", str(error.detail))


class ErrorBoundary:
    """The outermost ASGI layer: no exception leaves it unanswered."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        started = False

        async def watched(message: Any) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Disconnected:
            return
        except asyncio.CancelledError:
            # The server cancels what has not ended when its time to stop is over.
            if started or scope["type"] != "http":
                raise
            await send_error(ServerStopping(scope["path"]), send)
        except RocketqError as error:
            if started:
                raise
            await send_error(error, send)
        except Exception as error:
            if started or scope["type"] != "http":
                raise
            await send_error(unforeseen(error, scope.get("path", "")), send)
