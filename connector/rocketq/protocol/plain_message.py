"""The plain form of a message that travels alone: its body is the request's body, the rest is in the query.

    POST /v1/topics/orders/messages?queue=0&key=o-17&tag=paid&property.region=eu
    Content-Type: application/octet-stream

    key or key_base64    the message's key: text, or base64 of bytes that are not UTF-8
    tag                  the message's tag
    property.NAME        the property NAME; once for each property
    born_at_us           when the message was made, in microseconds since 1970

Names and values are percent-encoded UTF-8, as in any query (WHATWG URL, "application/x-www-form-urlencoded").
A parameter that is not given is null. So the form cannot say that a message has properties, but none of them:
`parameters_of` gives None for such a message, and a client sends it as an Arrow stream.
"""

from __future__ import annotations

import base64
import re
from functools import lru_cache
from typing import Final
from urllib.parse import quote_plus

from rocketq.model import Message

KEY: Final = "key"
KEY_BASE64: Final = "key_base64"
TAG: Final = "tag"
BORN_AT: Final = "born_at_us"
#: What the name of a parameter begins with that gives a property.
PROPERTY_PREFIX: Final = "property."

_UNRESERVED: Final = re.compile(r"[A-Za-z0-9_.~-]*")


def parameters_of(message: Message) -> dict[str, str] | None:
    """Return the query parameters of a message, not yet encoded; None if this form cannot say what it has."""
    # A property whose value is null is one that the message does not have (`message_schema`).
    properties = {name: value for name, value in (message.properties or {}).items() if value is not None}
    if message.properties is not None and not properties:
        return None
    given = {} if message.key is None else _key_parameter(message.key)
    if message.tag is not None:
        given[TAG] = message.tag
    if message.born_at_us is not None:
        given[BORN_AT] = str(message.born_at_us)
    for name, value in properties.items():
        given[PROPERTY_PREFIX + name] = value
    return given


def query_of(message: Message) -> str | None:
    """Return `parameters_of` as a part of a query, encoded; None if this form cannot say what it has."""
    parameters = parameters_of(message)
    if parameters is None:
        return None
    return "&".join([f"{_encoded_name(name)}={_encoded(value)}" for name, value in parameters.items()])


def _encoded(text: str) -> str:
    # Of most texts nothing needs to be encoded, and `quote_plus` takes longer to find that out.
    return text if _UNRESERVED.fullmatch(text) else quote_plus(text)


#: Names of parameters are few, and each is in many queries.
_encoded_name: Final = lru_cache(4_096)(_encoded)


def _key_parameter(key: bytes) -> dict[str, str]:
    try:
        return {KEY: key.decode("utf-8")}
    except UnicodeDecodeError:
        return {KEY_BASE64: base64.b64encode(key).decode("ascii")}
