"""A send's JSON body, for curl and for people: from the document to batches by queue.

    {"messages": [{"body": "text", "key": "k-1", "tag": "paid", "properties": {…}, "queue": 2},
                  {"body_base64": "AAEC", "key_base64": "/w=="}]}

The broker is strict: an unknown field, a field given twice, both forms of one value, bad base64, text that is
not UTF-8, and a tag or property that no message may have are errors that name their place, and nothing of the
body is stored.
"""

from __future__ import annotations

import binascii

import msgspec

from rocketq.errors import InvalidRequest
from rocketq.model import Int64, Message
from rocketq.protocol.json_codec import decode_request, prepare
from rocketq.protocol.rules.message_rules import check_message

_FORM = "See docs/protocol.md for its form."


class MessageDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message; its body is required, in one of its two forms."""

    body: str | None = None
    body_base64: str | None = None
    key: str | None = None
    key_base64: str | None = None
    tag: str | None = None
    properties: dict[str, str] | None = None
    born_at_us: Int64 | None = None
    queue: Int64 | None = None


class SendDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole body of a JSON send."""

    messages: list[MessageDocument]


prepare(SendDocument)


def read_document(body: bytes) -> list[tuple[Message, int | None]]:
    """Return each message with the queue it names, if any; raise InvalidRequest or InvalidMessage."""
    messages = decode_request(body, SendDocument).messages
    return [(_message(one, at), one.queue) for at, one in enumerate(messages)]


def _message(one: MessageDocument, at: int) -> Message:
    body = _bytes(one.body, one.body_base64, "body", at)
    if body is None:
        raise InvalidRequest(f"messages[{at}]", "has neither body nor body_base64", hint=_FORM)
    key = _bytes(one.key, one.key_base64, "key", at)
    check_message(one.tag, one.properties or (), at)
    return Message(body, key, one.tag, one.properties, one.born_at_us)


def _bytes(text: str | None, encoded: str | None, name: str, at: int) -> bytes | None:
    if encoded is None:
        return None if text is None else text.encode("utf-8")
    if text is not None:
        raise InvalidRequest(f"messages[{at}]", f"has both {name} and {name}_base64", hint=_FORM)
    try:
        return binascii.a2b_base64(encoded, strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"messages[{at}].{name}_base64", f"is not base64: {error}") from None
