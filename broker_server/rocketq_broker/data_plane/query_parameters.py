"""Query parameters of the data plane: each known, given once, and within its range.

A parameter that is not known is an error, never ignored: a misspelt `max_byte`
would otherwise look as if it worked.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from rocketq.errors import InvalidRequest

#: The largest 64-bit signed number: offsets and times fit.
NUMBER_MAX = (1 << 63) - 1
INT64_MIN = -(1 << 63)
#: Longer names are read anew each time, so that what is remembered stays small.
_SHORT_NAME_BYTES = 64


def parse(query_string: bytes, known: frozenset[str], known_prefix: str | None = None) -> dict[str, str]:
    """Return the parameters of a query string; raise InvalidRequest for an unknown or repeated one.

    Any parameter whose name begins with `known_prefix` is known, too.
    """
    found: dict[str, str] = {}
    if not query_string:
        return found
    for pair in query_string.split(b"&"):
        raw_name, equals, raw_value = pair.partition(b"=")
        name = _short_name(raw_name) if len(raw_name) <= _SHORT_NAME_BYTES else _text(raw_name)
        value = _text(raw_value)
        if name not in known and (known_prefix is None or not name.startswith(known_prefix)):
            names = sorted(known) + ([f"{known_prefix}NAME"] if known_prefix else [])
            listed = ", ".join(names) or "none"
            raise InvalidRequest("the query", f"unknown parameter {name[:100]!r}", hint=f"Known: {listed}.")
        if not equals or name in found:
            raise InvalidRequest(f"parameter {name}", "is given twice" if equals else "has no value")
        found[name] = value
    return found


def whole_number(
    parameters: Mapping[str, str], name: str, low: int, high: int, default: int | None = None
) -> int:
    """Return a parameter as an int in [low, high]; raise InvalidRequest."""
    text = parameters.get(name)
    if text is None:
        if default is None:
            raise InvalidRequest(f"parameter {name}", "is required")
        return default
    return number(text, f"parameter {name}", low, high)


def number(text: str, where: str, low: int, high: int) -> int:
    """Read a decimal number in [low, high]; raise InvalidRequest that says `where`."""
    digits = text[1:] if text.startswith("-") else text
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 19:
        raise InvalidRequest(where, f"{text[:40]!r} is not a whole number")
    value = int(text)
    if not low <= value <= high:
        raise InvalidRequest(where, f"{value} is not from {low} to {high}")
    return value


def is_set(parameters: Mapping[str, str], name: str) -> bool:
    """Return a parameter that is `true` or `false`, by default false; raise InvalidRequest."""
    text = parameters.get(name, "false")
    if text not in ("true", "false"):
        raise InvalidRequest(f"parameter {name}", f"{text[:40]!r} is neither true nor false")
    return text == "true"


def key_of(parameters: Mapping[str, str]) -> bytes | None:
    """Return the key of a message, given as `key` or as `key_base64`; raise InvalidRequest if as both."""
    text, encoded = parameters.get("key"), parameters.get("key_base64")
    if encoded is None:
        return None if text is None else text.encode("utf-8")
    if text is not None:
        raise InvalidRequest("the query", "has both key and key_base64", hint="Give the key once.")
    try:
        return binascii.a2b_base64(encoded.encode("ascii"), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise InvalidRequest("parameter key_base64", f"is not base64: {error}") from None


@lru_cache(maxsize=1_024)
def _short_name(raw: bytes) -> str:
    """Return the name of a parameter; clients use few, again and again."""
    return _text(raw)


def _text(raw: bytes) -> str:
    try:
        if b"%" in raw or b"+" in raw:
            return unquote_to_bytes(raw.replace(b"+", b" ")).decode("utf-8")
        return raw.decode("ascii")
    except UnicodeDecodeError:
        raise InvalidRequest("the query", "is not UTF-8") from None
