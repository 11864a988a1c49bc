"""The control plane: topics and single messages, as FastAPI routes.

Bodies are read by the protocol's own strict decoder, within a limit; FastAPI
routes and documents. What changes the store is decided and ordered by the log
writer; a handler only waits for its answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import msgspec.structs
from fastapi import FastAPI, Request, Response

from rocketq.errors import InvalidRequest, NoPermission, TopicNotFound
from rocketq.http_server.body_types import gives, takes
from rocketq.http_server.error_answers import Receive, read_body
from rocketq.http_server.health import json_response
from rocketq.http_server.permissions import Permission, Resource, declare
from rocketq.model import TopicConfig
from rocketq.protocol.documents import broker as calls
from rocketq.protocol.documents.broker import (
    AlterTopicRequest,
    CreateTopicRequest,
    TopicDescription,
    TopicListing,
)
from rocketq.protocol.rules.reserved_names import check_user_topic
from rocketq_broker.broker import Broker
from rocketq_broker.config import MIB

CONTROL_BODY_BYTES_MAX: Final = 1 * MIB

T = TypeVar("T")


def install_topics(app: FastAPI, broker: Broker, on_delete: Callable[[str], None]) -> None:
    """Add the routes of topics to `app`; `on_delete` is told each topic that was deleted."""

    @app.get("/v1/topics")
    @gives(TopicListing)
    @declare(Permission.CONSUME, Resource.CLUSTER, Permission.PRODUCE, Permission.ADMIN)
    async def list_topics() -> Response:
        """All topics of this broker."""
        return json_response(TopicListing(broker.config.name, broker.store.topics()))

    @app.get("/v1/topics/{topic}")
    @gives(TopicDescription)
    @declare(Permission.CONSUME, Resource.TOPIC, Permission.PRODUCE, Permission.ADMIN)
    async def describe_topic(topic: str) -> Response:
        """One topic with its offsets."""
        config = broker.store.topic(topic)
        offsets = broker.store.offsets(topic)
        return json_response(TopicDescription(broker.config.name, config, offsets.total, offsets.queues))

    @app.put("/v1/topics/{topic}")
    @gives(TopicConfig, 201)
    @takes(CreateTopicRequest)
    @declare(Permission.ADMIN, Resource.TOPIC)
    async def create_topic(topic: str, request: Request) -> Response:
        """Create a topic: 201, or 200 if it exists and the request tolerates that."""
        wanted = await json_body(request, CreateTopicRequest)
        check_user_topic(topic)
        before = _incarnation(broker, topic)
        if wanted.automatic and before is None and not broker.config.auto_create_topics:
            raise NoPermission("Automatic creation", f"topic {topic!r}")
        config: TopicConfig = await broker.completions.outcome(
            partial(broker.store.create_topic, topic, wanted)
        )
        return json_response(config, 200 if before == config.incarnation else 201)

    @app.patch("/v1/topics/{topic}")
    @gives(TopicConfig)
    @takes(AlterTopicRequest)
    @declare(Permission.ADMIN, Resource.TOPIC)
    async def alter_topic(topic: str, request: Request) -> Response:
        """Change what the request gives."""
        wanted = await json_body(request, AlterTopicRequest)
        broker.store.topic(topic)
        config = await broker.completions.outcome(partial(broker.store.alter_topic, topic, wanted))
        broker.topic_altered(topic)
        return json_response(config)

    @app.delete("/v1/topics/{topic}")
    @declare(Permission.ADMIN, Resource.TOPIC)
    async def delete_topic(topic: str) -> Response:
        """Delete a topic; its messages can no longer be read."""
        broker.store.topic(topic)
        await broker.completions.outcome(partial(broker.store.delete_topic, topic))
        on_delete(topic)
        broker.forget_topic(topic)
        return json_response({})


def install_messages(app: FastAPI, read_message: Callable[[str], Awaitable[bytes]]) -> None:
    """Add the route of single messages to `app`; `read_message` returns the JSON document of an id."""

    @app.get("/v1/messages/{message_id}")
    @declare(Permission.CONSUME, Resource.TOPIC, name_of=_topic_of_message)
    async def message(message_id: str) -> Response:
        """One message by its id, `broker:topic:queue:offset`."""
        document = await read_message(message_id)
        return Response(document, media_type=calls.JSON)


def _topic_of_message(path_parameters: Mapping[str, str]) -> str:
    """Return the topic in a message id; "" if it is not one, which the handler refuses."""
    parts = path_parameters["message_id"].split(":")
    return parts[1] if len(parts) == 4 else ""


def _incarnation(broker: Broker, topic: str) -> str | None:
    try:
        return broker.store.topic(topic).incarnation
    except TopicNotFound:
        return None


async def json_body(request: Request, kind: type[T], bytes_max: int = CONTROL_BODY_BYTES_MAX) -> T:
    """Read a control call's body; no body is an empty object, an unknown field is an error."""
    return await json_document(request.scope, request.receive, kind, bytes_max)


def address_of(scope: Any) -> str:
    """Return the host and port at the other end of a call's connection; empty if they are not known."""
    client = scope.get("client")
    return "" if client is None else f"{client[0]}:{client[1]}"


async def json_document(
    scope: Any, receive: Receive, kind: type[T], bytes_max: int = CONTROL_BODY_BYTES_MAX
) -> T:
    """Read the body of a control call that comes without FastAPI."""
    body = b"".join(await read_body(scope, receive, bytes_max)) or b"{}"
    value = calls.decode_request(body, kind)
    known = {field.name for field in msgspec.structs.fields(kind)}  # type: ignore[arg-type]
    document: Any = msgspec.json.decode(body)
    unknown = sorted(set(document) - known)
    if unknown:
        raise InvalidRequest(
            "the JSON body", f"unknown field {unknown[0][:100]!r}", hint=f"Known: {', '.join(sorted(known))}."
        )
    return value
