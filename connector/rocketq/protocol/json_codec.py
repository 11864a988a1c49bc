"""JSON documents: written by `encode`, read by `decode` (answers) and `decode_request` (requests).

Documents are frozen `msgspec.Struct`s: Python makes a class of them 40 times as fast as a dataclass, and each
process of Spark imports about a hundred. They are decoded strictly, so a document of the wrong shape is an
error that names the field. The few values that users hold themselves (`rocketq.model`) are dataclasses.

msgspec keeps what it knows of a class on the class itself, and makes it when the first decoder of the class
is built. Two threads that build one at the same moment crash the process. So every module that defines
documents calls `prepare_documents` when it is imported, and no decoder is built later.
"""

from __future__ import annotations

import json
import sys
from dataclasses import is_dataclass
from typing import Any, Final, TypeVar

import msgspec

from rocketq.errors import InvalidRequest

T = TypeVar("T")

_FORM: Final = "See docs/protocol.md for its form."


def encode(value: Any) -> bytes:
    """Return a protocol value as JSON."""
    return msgspec.json.encode(value)


def decode(data: bytes | memoryview, kind: type[T], where: str = "the JSON body") -> T:
    """Build a value of a prepared type from JSON; raise InvalidRequest that names the field."""
    decoder: msgspec.json.Decoder[T] | None = _decoders.get(kind)
    if decoder is None:
        raise TypeError(f"{kind} has no decoder: its module must call prepare_documents when it is imported")
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        name = getattr(kind, "__name__", str(kind))
        raise InvalidRequest(where, f"not a valid {name}: {error}", hint=_FORM) from None


def decode_request(data: bytes, kind: type[T]) -> T:
    """As `decode`, for the body of a request; refuse also an object that has a key twice.

    JSON does not say which of the two values counts (RFC 8259, section 4): a proxy and this server could
    read two different requests out of one body. msgspec takes the last value without a word, so the
    document is read a second time, by Python's own parser. That takes three times as long, and is not
    needed for what `encode` wrote, as every client of this version sends it.
    """
    value = decode(data, kind)
    if encode(value) == data:
        return value
    try:
        json.loads(data, object_pairs_hook=_check_keys, parse_int=_nothing, parse_float=_nothing)
    except RecursionError:
        raise InvalidRequest("the JSON body", "it is nested too deeply", hint=_FORM) from None
    return value


def prepare(*kinds: Any) -> None:
    """Build the decoders of these types; only called while a module is imported."""
    for kind in kinds:
        _decoders[kind] = msgspec.json.Decoder(kind)


def prepare_documents(module: str) -> None:
    """Build the decoders of all documents that a module defines; called at its end."""
    prepare(
        *(
            found
            for found in vars(sys.modules[module]).values()
            if isinstance(found, type) and found.__module__ == module and _is_document(found)
        )
    )


def _is_document(kind: type) -> bool:
    return issubclass(kind, msgspec.Struct) or is_dataclass(kind)


def _check_keys(pairs: list[tuple[str, Any]]) -> None:
    """Raise InvalidRequest if an object has a key twice."""
    if len(dict(pairs)) == len(pairs):
        return
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise InvalidRequest("the JSON body", f"key {key[:100]!r} is given twice", hint="Give it once.")
        seen.add(key)


def _nothing(text: str) -> None:
    """Stand for a number: msgspec has read it already, and Python refuses one of very many digits."""


_decoders: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}
# Documents without a type of their own: a message, a value of the key-value configuration.
prepare(Any, dict[str, Any])
