"""The routes of an acceptor, which proposers in brokers call: a change is on disk before the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import Response

from rocketq.errors import InvalidRequest, NotFound, TooLarge
from rocketq.http_server.body_types import gives, takes
from rocketq.http_server.error_answers import read_body
from rocketq.http_server.health import json_response
from rocketq.http_server.permissions import Permission, Resource, declare
from rocketq.protocol.documents.meta_register import (
    RECORD_CHARS_MAX,
    AcceptorAnswer,
    AcceptRequest,
    Ballot,
    PrepareRequest,
)
from rocketq.protocol.json_codec import decode_request
from rocketq.protocol.rules.reserved_names import check_name
from rocketq_nameserver.meta_register.acceptor import Acceptor

#: The largest record, in JSON that escapes each of its characters.
BODY_BYTES_MAX: Final = 12 * RECORD_CHARS_MAX + 4096
NAME_CHARS_MAX: Final = 128

T = TypeVar("T", PrepareRequest, AcceptRequest)


def install_registers(app: FastAPI, acceptor: Acceptor | None) -> None:
    """Add the routes; without an acceptor they answer that there is no register."""
    #: The acceptor takes one call at a time; it writes on a thread.
    one_at_a_time = asyncio.Lock()

    async def answered(
        cluster: str,
        broker: str,
        request: Request,
        kind: type[T],
        name: Callable[[Acceptor], Callable[[str, T], AcceptorAnswer]],
    ) -> Response:
        check_name("cluster", cluster)
        check_name("broker", broker)
        if acceptor is None:
            raise NotFound("register", f"{cluster}/{broker}")
        asked = decode_request(
            b"".join(await read_body(request.scope, request.receive, BODY_BYTES_MAX)), kind
        )
        _check(asked)
        async with one_at_a_time:
            answer = await asyncio.to_thread(name(acceptor), f"{cluster}/{broker}", asked)
        return json_response(answer)

    @app.post("/v1/registers/{cluster}/{broker}/prepare")
    @gives(AcceptorAnswer)
    @takes(PrepareRequest)
    @declare(Permission.REPLICATE, Resource.CLUSTER)
    async def prepare(cluster: str, broker: str, request: Request) -> Response:
        """The first call of a round: promise to accept nothing below a ballot."""
        return await answered(cluster, broker, request, PrepareRequest, lambda acceptor: acceptor.prepare)

    @app.post("/v1/registers/{cluster}/{broker}/accept")
    @gives(AcceptorAnswer)
    @takes(AcceptRequest)
    @declare(Permission.REPLICATE, Resource.CLUSTER)
    async def accept(cluster: str, broker: str, request: Request) -> Response:
        """The second call of a round: accept a value in a ballot."""
        return await answered(cluster, broker, request, AcceptRequest, lambda acceptor: acceptor.accept)


def _check(request: PrepareRequest | AcceptRequest) -> None:
    _check_ballot(request.ballot)
    if isinstance(request, AcceptRequest):
        value = request.value
        if len(value.record) > RECORD_CHARS_MAX:
            raise TooLarge("the record", len(value.record), RECORD_CHARS_MAX)
        if value.version < 0 or len(value.author) > NAME_CHARS_MAX:
            raise InvalidRequest("value", "its version is below 0, or its author is too long")


def _check_ballot(ballot: Ballot) -> None:
    if ballot.number < 1 or not 1 <= len(ballot.proposer) <= NAME_CHARS_MAX:
        raise InvalidRequest("ballot", "its number is from 1 on, and its proposer has a name")
