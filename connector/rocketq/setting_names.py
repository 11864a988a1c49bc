"""Refuses a setting that does not exist, and names the one that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from functools import wraps
from typing import Any, Final, TypeVar, cast

import msgspec

from rocketq.errors import InvalidConfiguration

Config = TypeVar("Config")

#: What a listener takes beside the settings of its consumer.
LISTENER_ARGUMENTS: Final = ("filter", "workers", "allocation")


def refuses_unknown(kind: type[Config]) -> type[Config]:
    """Have a dataclass refuse a keyword that is none of its fields with InvalidConfiguration."""
    plain = cast("Callable[..., None]", kind.__init__)

    @wraps(plain)
    def checked(self: Any, *given: Any, **settings: Any) -> None:
        check_names(kind, settings)
        plain(self, *given, **settings)

    kind.__init__ = checked  # type: ignore[method-assign]
    return kind


def check_names(kind: type, settings: Mapping[str, object], also: Collection[str] = ()) -> None:
    """Raise InvalidConfiguration for the first name that is neither a field of `kind` nor one of `also`."""
    if not settings:
        return
    known = [*_fields_of(kind), *also]
    for name, value in settings.items():
        if name not in known:
            raise InvalidConfiguration(
                name, value, f"{kind.__name__} has no such setting", hint=_meant(name, known)
            )


def _fields_of(kind: Any) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass or of a document."""
    names: Iterable[str]
    if issubclass(kind, msgspec.Struct):
        names = kind.__struct_fields__
    else:
        names = (field.name for field in fields(kind))
    return tuple(names)


def _meant(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), 1)
    return f"Did you mean {close[0]}?" if close else f"Its settings are: {', '.join(sorted(known))}."
