"""Messages as JSON lines: `consume -o jsonl` writes and `produce --jsonl` reads them, and nothing is lost.

    {"body": "text", "key": "o-1", "tag": "paid", "properties": {"amount": "42"}, "born_at_us": 1795000000000}

A field that is no text stands in base64, under its name and `_base64`. What a body is that is neither text
nor absent, is sent as its JSON. A property may be a number or true or false; messages have text, so it is
sent as that. `deliver_at` (a time, or milliseconds since 1970) and `delay` ("10s") delay a message, as the
properties do that a delayed message has. `ordering_key` chooses the queue; no broker keeps it, so no
consumer can write it. Where a message was (`message_id`, `topic`, `broker`, `queue`, `offset`,
`stored_at_us`) is read for the order alone.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import rich_click as click

if TYPE_CHECKING:
    import pyarrow as pa

    from rocketq.consuming.consumed_message import ConsumedMessage
    from rocketq.model import StoredMessage

    Shown = StoredMessage | ConsumedMessage

_BINARY: Final = ("body", "key", "ordering_key")
#: Where a message was when it was consumed, which says nothing about where it goes.
_PLACE: Final = frozenset({"message_id", "topic", "broker", "queue", "offset", "stored_at_us"})
_FIELDS: Final = frozenset(
    {
        *_BINARY,
        *(f"{name}_base64" for name in _BINARY),
        "tag",
        "properties",
        "born_at_us",
        "deliver_at",
        "delay",
    }
)


_SEPARATORS: Final = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}

# --- writing ------------------------------------------------------------------------------------


def document(message: Shown) -> dict[str, Any]:
    """Return a message in the form the broker's JSON has: text where it is text, else base64."""
    document: dict[str, Any] = {
        "message_id": message.message_id,
        "topic": message.queue.topic,
        "broker": message.queue.broker,
        "queue": message.queue.queue,
        "offset": message.offset,
        "tag": message.tag,
        "properties": message.properties,
        "born_at_us": message.born_at_us,
        "stored_at_us": message.stored_at_us,
    }
    for name, value in (("key", message.key), ("body", message.body)):
        document.update(text_or_base64(name, value))
    return document


def json_line(value: Any) -> str:
    """Return a document as one line, also for readers to whom Unicode's line separators end one."""
    text = json.dumps(value, ensure_ascii=False)
    return text.translate(_SEPARATORS)


def text_or_base64(name: str, value: bytes | None) -> dict[str, str | None]:
    """Return a value as a field of a document: as text, or in base64 under a name that says so."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


# --- reading ------------------------------------------------------------------------------------


class _WrongField(Exception):
    """What is wrong with a line; the reader says which line it is."""


def table_of(lines: Sequence[bytes], first: int, *, keep_order: bool = False) -> pa.Table:
    """Return the messages of JSON lines, of which the first has this number, as columns to send.

    With `keep_order` the messages of one queue of the lines get one ordering key. Raises
    click.ClickException, naming the line, for a line that is no message.
    """
    import pyarrow as pa

    from rocketq.protocol.message_schema import MESSAGE_SCHEMA

    rows = []
    for number, line in enumerate(lines, first):
        try:
            rows.append(_row(line, keep_order))
        except _WrongField as wrong:
            raise click.ClickException(f"line {number} {wrong}") from wrong
    types = {field.name: field.type for field in MESSAGE_SCHEMA}
    if any(row["ordering_key"] is not None for row in rows):
        types["ordering_key"] = pa.binary()
    return pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in types.items()})


def _row(line: bytes, keep_order: bool) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _WrongField(f"is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise _WrongField("must be an object with body, and perhaps key, ordering_key, tag, properties")
    unknown = sorted(set(row) - _FIELDS - _PLACE)
    if unknown:
        raise _WrongField(f"has the field {unknown[0]!r}; known are {', '.join(sorted(_FIELDS))}")
    if "body" not in row and "body_base64" not in row:
        raise _WrongField("has neither body nor body_base64")
    order = _bytes(row, "ordering_key")
    if keep_order and order is None:
        order = _source(row)
    return {
        "body": _bytes(row, "body") if "body_base64" in row else _json_or_text(row["body"], "body"),
        "key": _bytes(row, "key"),
        "ordering_key": order,
        "tag": _tag(row.get("tag")),
        "properties": list(_properties(row).items()),
        "born_at": _born_at(row.get("born_at_us")),
    }


def _bytes(row: Mapping[str, Any], name: str) -> bytes | None:
    """Return a field that is given as text or in base64; what is no text is taken as its JSON."""
    encoded = row.get(f"{name}_base64")
    if encoded is None:
        return None if row.get(name) is None else _json_or_text(row[name], name)
    if row.get(name) is not None:
        raise _WrongField(f"has both {name} and {name}_base64")
    try:
        return base64.b64decode(encoded, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise _WrongField(f"has a {name}_base64 that is no base64: {error}") from error


def _json_or_text(value: Any, name: str) -> bytes:
    try:
        return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).encode()
    except UnicodeEncodeError as error:
        raise _WrongField(f"has a {name} that is no text: {error.reason}") from error


def _source(row: Mapping[str, Any]) -> bytes:
    if not isinstance(row.get("broker"), str) or not isinstance(row.get("queue"), int):
        raise _WrongField("does not say its broker and queue, whose order is to be kept")
    return f"{row['broker']}/{row['queue']}".encode()


def _tag(tag: Any) -> str | None:
    if tag is None or isinstance(tag, str):
        return tag
    raise _WrongField(f"has the tag {tag!r}, which is no text")


def _born_at(at_us: Any) -> int | None:
    if at_us is None or (type(at_us) is int and abs(at_us) < 1 << 62):
        return at_us
    raise _WrongField(f"has the born_at_us {at_us!r}; write microseconds since 1970")


def _properties(row: Mapping[str, Any]) -> dict[str, str]:
    given = row.get("properties") or {}
    if not isinstance(given, dict):
        raise _WrongField("has properties that are no object")
    made = {name: _property(name, value) for name, value in given.items() if value is not None}
    if row.get("delay") is None and row.get("deliver_at") is None:
        return made
    from rocketq.errors import InvalidConfiguration
    from rocketq.protocol.rules.delivery_time import DELIVERY_PROPERTIES, delivery_properties

    try:
        asked = delivery_properties(row.get("delay"), _time(row.get("deliver_at")))
    except InvalidConfiguration as error:
        raise _WrongField(f"cannot be delayed: {error}") from error
    return {name: value for name, value in made.items() if name not in DELIVERY_PROPERTIES} | asked


def _property(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise _WrongField(
        f"has the property {name!r} with the value {value!r}, which is neither text nor a number"
    )


def _time(value: Any) -> datetime | int | None:
    if value is None or type(value) is int:
        return value
    try:
        return delivery_time_of(str(value))
    except ValueError as error:
        raise _WrongField(f"has the deliver_at {value!r}: {error}") from error


def delivery_time_of(text: str) -> datetime | int:
    """Return a delivery time that was written as a time with its zone, or as milliseconds since 1970.

    Raises ValueError.
    """
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise ValueError("it is neither a time with its zone (2026-11-20T08:00Z) nor milliseconds since 1970")
    return at
