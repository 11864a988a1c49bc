"""What a caller gives for one message, checked while the caller is there to hear of it.

Many messages travel in one request, and a broker that refuses one of them refuses the request. So what is
wrong with a message is found before it waits with others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from rocketq.errors import InvalidBatch, TooLarge
from rocketq.model import KEY_BYTES_MAX, TAG_BYTES_MAX
from rocketq.producing.accumulation.accumulator import NO_FIELDS, Fields
from rocketq.protocol.rules.delivery_time import check_delivery, delivery_properties
from rocketq.protocol.rules.message_rules import check_message

Text: TypeAlias = bytes | str


def body_bytes(body: Any) -> bytes:
    """Return a body as bytes, text as UTF-8; raise InvalidBatch for anything else."""
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    if body is None:
        raise InvalidBatch("a message has no body", hint="Send b'' for an empty message.")
    raise InvalidBatch(
        f"a message's body is a {type(body).__name__}, which is neither bytes nor text",
        hint="Serialise it first, for example with json.dumps(value).",
    )


def text_bytes(name: str, value: Any) -> bytes | None:
    """Return a key as bytes, text as UTF-8; raise InvalidBatch for anything else that is not None."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidBatch(
        f"a message's {name} is a {type(value).__name__}, which is neither bytes nor text",
        hint=f"Give {name} as bytes or str, for example str(value).",
    )


def checked_fields(key: Any, tag: Any, properties: Any, delay: Any = None, deliver_at: Any = None) -> Fields:
    """Return the fields of a message besides its body.

    A delay or a delivery time becomes a property. Raises InvalidBatch, InvalidMessage, TooLarge, and
    InvalidConfiguration for a delay or time that is none.
    """
    if key is None and tag is None and properties is None and delay is None and deliver_at is None:
        return NO_FIELDS
    found = text_bytes("key", key)
    if found is not None and len(found) > KEY_BYTES_MAX:
        raise TooLarge("a message's key", len(found), KEY_BYTES_MAX)
    if tag is not None and not isinstance(tag, str):
        raise InvalidBatch(
            f"a message's tag is a {type(tag).__name__}, not text", hint="Give the tag as a str."
        )
    if tag is not None and len(tag.encode()) > TAG_BYTES_MAX:
        raise TooLarge("a message's tag", len(tag.encode()), TAG_BYTES_MAX)
    check_message(tag, properties or ())
    given = None if properties is None else _checked_properties(properties)
    if delay is not None or deliver_at is not None:
        given = {**(given or {}), **delivery_properties(delay, deliver_at)}
    check_delivery(given)
    return Fields(found, tag, given)


def _checked_properties(properties: Any) -> dict[str, str]:
    """Return properties as a dict of their own; one whose value is None is left out later."""
    if isinstance(properties, Mapping):
        strange = [pair for pair in properties.items() if not _is_property(*pair)]
        if not strange:
            return dict(properties)
        what = f"the property {strange[0][0]!r} has the value {strange[0][1]!r}"
    else:
        what = f"a message's properties are a {type(properties).__name__}"
    raise InvalidBatch(what, hint="Properties map text to text: {'region': 'eu'}.")


def _is_property(name: object, value: object) -> bool:
    return isinstance(name, str) and (value is None or isinstance(value, str))
