"""The audit log: one line for each call that changes what an operator is responsible for.

    {"event": "audit", "act": "delete_topic", "resource": "topic", "name": "orders", "status": 204,
     "client": "10.0.0.7", "user_agent": "…", "path": "/v1/topics/orders", "asked": "", …}

A call is administrative if its rule asks for Permission.ADMIN and its method can change something. The rule
of another route can ask for a line too (`is_audited`): a producer may cancel a delayed message, and so may
an operator. Refused calls have a line as well: who tried is as interesting as who did. `query` and `asked`,
the beginning of the body, say what was wanted: these bodies are JSON documents of settings, and never
messages. The line is written when the answer begins.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

import structlog

from rocketq.errors import RocketqError
from rocketq.http_server.permissions import NamedResource, Permission, Rule

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

#: Of a body, the line has at most this much.
BODY_BYTES_MAX: Final = 2_048
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})

log = structlog.get_logger("rocketq.audit")


def is_administrative(rule: Rule, method: str) -> bool:
    """Whether a call of a route with this rule is to be in the audit log."""
    return (rule.is_audited or rule.permission is Permission.ADMIN) and method not in _READING


async def audited(
    act: str,
    resource: NamedResource,
    scope: MutableMapping[str, Any],
    receive: Receive,
    send: Send,
    call: Callable[[Receive, Send], Awaitable[None]],
) -> None:
    """Make a call, and write its line; what it raises is raised."""
    body, status = bytearray(), 0

    async def reading() -> Message:
        message = await receive()
        body.extend(message.get("body", b"")[: BODY_BYTES_MAX - len(body)])
        return message

    async def answering(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        await send(message)

    try:
        await call(reading, answering)
    except RocketqError as error:
        status = status or error.status
        raise
    finally:
        headers = dict(scope["headers"])
        log.info(
            "audit",
            act=act,
            resource=resource.kind.value,
            name=resource.name,
            # Without an answer the call failed in a way that the log tells of under `unexpected_error`.
            status=status or 500,
            client=scope["client"][0] if scope.get("client") else "",
            user_agent=headers.get(b"user-agent", b"").decode("latin-1")[:200],
            path=scope["path"],
            query=scope["query_string"].decode("latin-1"),
            asked=body.decode("utf-8", "replace"),
        )
