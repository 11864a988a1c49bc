"""The base classes of the error tree, and making an error again from its facts.

An error carries facts, not only a sentence: `facts` are the arguments it was
made of, `message` says what is wrong and why, `hint` says what to do next.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, Final

JsonFacts = Mapping[str, Any]

_FACT_TYPES: Final[Mapping[Any, type]] = {"int": int, "str": str}


class RocketqError(Exception):
    """Base of all errors; `code` is stable, `message` is for people."""

    code: ClassVar[str] = "ERROR"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str = "", facts: JsonFacts | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.facts: dict[str, Any] = dict(facts or {})

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()

    def __reduce__(self) -> tuple[Any, ...]:
        return (rebuild, (type(self), self.message, self.hint, self.facts))

    def document(self) -> dict[str, Any]:
        """Return the error as the JSON document that crosses the wire."""
        return {
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            "facts": self.facts,
        }


class ClientError(RocketqError):
    """Something failed before, or instead of, a server's answer."""


class RemoteError(RocketqError):
    """A server answered with an error. Nothing was changed unless the class says otherwise."""


def _walk(cls: type[RocketqError]) -> list[type[RocketqError]]:
    return [cls, *(sub for child in cls.__subclasses__() for sub in _walk(child))]


def by_code() -> dict[str, type[RocketqError]]:
    """Return the class of every code that has one of its own."""
    return {cls.code: cls for cls in _walk(RocketqError) if "code" in cls.__dict__}


def rebuild(cls: type[RocketqError], message: str, hint: str, facts: JsonFacts) -> RocketqError:
    """Make an error of `cls` from its facts, and with the sender's sentence.

    Facts that `cls` does not know (a newer sender's) are kept aside. If the others do
    not make one, it is the nearest class above whose errors have no attributes of
    their own, so that no error is ever half made.
    """
    try:
        error = cls(**_fitting(cls, facts))
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError):
        plain: type[RocketqError] = next(
            c for c in cls.__mro__ if c is RocketqError or not inspect.get_annotations(c)
        )
        error = RocketqError.__new__(plain)
        RocketqError.__init__(error, message, hint=hint, facts=facts)
    error.message, error.hint, error.facts = message, hint, dict(facts)
    return error


def _fitting(cls: type[RocketqError], facts: JsonFacts) -> dict[str, Any]:
    """Return the facts that `cls` is made of; raise TypeError for one of the wrong type."""
    known = inspect.signature(cls.__init__).parameters
    fitting = {name: fact for name, fact in facts.items() if name in known}
    for name, fact in fitting.items():
        if not isinstance(fact, _FACT_TYPES.get(known[name].annotation, object)):
            raise TypeError(f"{name} is {fact!r}")
    return fitting
