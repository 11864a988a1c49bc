"""The calls of the data plane as OpenAPI describes them: FastAPI does not know them, so `/docs` is told here.

A test holds the paths and methods equal to the routes of `app.py`, and sends each example of a query to a
broker, which refuses a parameter that it does not know.
"""

from __future__ import annotations

from typing import Any, Final

from rocketq.protocol.documents.broker import ARROW_STREAM, FRAMES, JSON, OCTET_STREAM

_NUMBER: Final = {"type": "integer", "minimum": 0}
_TEXT: Final = {"type": "string"}
_FLAG: Final = {"type": "boolean"}
_BYTES: Final = {"type": "string", "format": "binary"}
_OBJECT: Final = {"type": "object"}
_MESSAGES: Final = {
    "messages": [{"body": "text", "key": "o-1", "tag": "paid", "properties": {"region": "eu"}}]
}
_HEARTBEAT: Final = {"started_at_us": 1, "subscriptions": [{"topic": "orders"}], "language": "javascript"}


def _path(name: str, schema: dict[str, Any] = _TEXT) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _query(name: str, schema: dict[str, Any], what: str, example: object = None) -> dict[str, Any]:
    made = {"name": name, "in": "query", "schema": schema, "description": what}
    return made if example is None else made | {"example": example}


def _call(tag: str, what: str, parameters: list[dict[str, Any]], *forms: str, **more: Any) -> dict[str, Any]:
    content = {form: {"schema": _OBJECT if form == JSON else _BYTES} for form in forms or (JSON,)}
    refusal = {
        "description": "A refusal, with its code and facts.",
        "content": {JSON: {"schema": _OBJECT}},
    }
    answers = {"200": {"description": "The answer.", "content": content}, "default": refusal}
    return {"tags": [tag], "summary": what, "parameters": parameters, "responses": answers, **more}


_TOPIC: Final = _path("topic")
_GROUP: Final = _path("group")
_MEMBER: Final = [_GROUP, _path("client_id")]
_WAIT: Final = _query("wait_ms", _NUMBER, "How long the broker holds the call while there is nothing new.")
_MASTER: Final = _query("master_only", _FLAG, "A slave refuses.")

#: By path and method; what the fields of answers mean is in the protocol document.
DESCRIBED_CALLS: Final[dict[str, dict[str, dict[str, Any]]]] = {
    "/v1/topics/{topic}/messages": {
        "post": _call(
            "messages", "Send messages", [
                _TOPIC,
                _query("queue", _TEXT, "The queue, or one for each batch; else the broker rotates.", "0"),
                _query("number", _TEXT, "SLOT-SEQUENCE: the send is stored once, however often it comes."),
                _query("key", _TEXT, "Of an octet-stream: the key of the message."),
                _query("tag", _TEXT, "Of an octet-stream: the tag of the message."),
            ],
            requestBody={"required": True, "content": {
                JSON: {"schema": _OBJECT, "example": _MESSAGES},
                ARROW_STREAM: {"schema": _BYTES},
                OCTET_STREAM: {"schema": _BYTES},
            }},
        ),
        "get": _call(
            "messages", "Find messages by key or by time", [
                _TOPIC,
                _query("key", _TEXT, "The key; or `key_base64`, or `begin` alone.", "o-1"),
                _query("key_base64", _TEXT, "A key that is not text."),
                _query("begin", _NUMBER, "Stored at or after, in microseconds since 1970."),
                _query("end", _NUMBER, "Stored at or before."),
                _query("limit", _NUMBER, "At most 1,000.", 64),
                _query("page", _TEXT, "`next_page` of the answer before."),
            ],
        ),
    },
    "/v1/topics/{topic}/queues/{queue}/messages": {
        "get": _call(
            "messages", "Pull messages from an offset on", [
                _TOPIC,
                _path("queue", _NUMBER),
                _query("offset", _NUMBER, "The first message wanted.", 0) | {"required": True},
                _query("end", _NUMBER, "Nothing from this offset on is wanted."),
                _query("max_messages", _NUMBER, "Stop after the frame that reaches it.", 100),
                _query("max_bytes", _NUMBER, "Stop before the frame that would exceed it."),
                _WAIT,
                _query("tag", _TEXT, "A tag expression: only what matches is sent."),
                _query("sql", _TEXT, "An SQL filter over properties; not together with tag."),
                _query("group", _TEXT, "Who asks."),
                _query("client_id", _TEXT, "With group and epoch: the pull of a member."),
                _query("epoch", _NUMBER, "With group and client_id."),
                _MASTER,
            ], JSON, ARROW_STREAM, FRAMES,
        ),
    },
    "/v1/topics/{topic}/offsets": {
        "get": _call(
            "messages", "The range of offsets of each queue, or the offsets at a time", [
                _TOPIC,
                _query("at", _NUMBER, "A time, in microseconds since 1970."),
                _query("boundary", {"type": "string", "enum": ["lower", "upper"]}, "With at."),
                _query("after_total", _NUMBER, "Hold the call until the offsets' sum exceeds it."),
                _WAIT,
                _MASTER,
            ],
        ),
    },
    "/v1/groups/{group}/members": {
        "get": _call(
            "groups", "The members of a group, held while their version is the known one", [
                _GROUP,
                _query("client_id", _TEXT, "The member that watches."),
                _query("known", _NUMBER, "The version that is known."),
                _WAIT,
            ],
        ),
    },
    "/v1/groups/{group}/members/{client_id}": {
        "put": _call(
            "groups", "Join a group, or stay in it", _MEMBER,
            requestBody={"required": True, "content": {JSON: {"schema": _OBJECT, "example": _HEARTBEAT}}},
        ),
        "delete": _call("groups", "Leave a group", _MEMBER),
    },
}  # fmt: skip
