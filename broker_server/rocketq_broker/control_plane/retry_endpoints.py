"""The routes of messages that members send back, and of dead letters: `rocketq_broker.retries` does it."""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI, Request, Response

from rocketq.http_server.body_types import gives, takes
from rocketq.http_server.health import json_response
from rocketq.http_server.permissions import Permission, Resource, declare
from rocketq.protocol.documents.send_backs import (
    DeadLetterMarks,
    ResendAnswer,
    ResendRequest,
    SendBackAnswer,
    SendBackRequest,
)
from rocketq.protocol.rules.reserved_names import check_user_group
from rocketq_broker.broker import Broker
from rocketq_broker.config import MIB
from rocketq_broker.control_plane.topic_endpoints import json_body

#: A call names many messages, each with why it failed.
_RETURN_BODY_BYTES_MAX: Final = 8 * MIB


def install_retries(app: FastAPI, broker: Broker) -> None:
    """Add the routes to `app`."""

    @app.post("/v1/groups/{group}/send-backs")
    @gives(SendBackAnswer)
    @takes(SendBackRequest)
    @declare(Permission.CONSUME, Resource.GROUP)
    async def send_back(group: str, request: Request) -> Response:
        """Take messages that failed: they are tried again later, or become dead letters."""
        wanted = await json_body(request, SendBackRequest, _RETURN_BODY_BYTES_MAX)
        return json_response(await broker.send_back.take(group, wanted))

    @app.get("/v1/groups/{group}/dead-letters")
    @gives(DeadLetterMarks)
    @declare(Permission.CONSUME, Resource.GROUP, Permission.ADMIN)
    async def dead_letters(group: str) -> Response:
        """How many dead letters there are, and which of them were sent again."""
        check_user_group(group)
        return json_response(broker.dead_letters.marks(group))

    @app.post("/v1/groups/{group}/dead-letters/resend")
    @gives(ResendAnswer)
    @takes(ResendRequest)
    @declare(Permission.ADMIN, Resource.GROUP)
    async def resend(group: str, request: Request) -> Response:
        """Send dead letters to their original topics again, each once."""
        check_user_group(group)
        wanted = await json_body(request, ResendRequest)
        return json_response(await broker.dead_letters.resend(group, wanted))
