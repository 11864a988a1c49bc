"""The types of the JSON bodies that a handler takes and gives, for its description in `/openapi.json`.

A handler reads its body and writes its answer itself, so its signature names neither: marks do,
`@takes(RegisterRequest)` and `@gives(RegisterAnswer)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

_BODY: Final = "__rocketq_body__"
_ANSWER: Final = "__rocketq_answer__"

F = TypeVar("F", bound=Callable[..., Any])


def takes(kind: type) -> Callable[[F], F]:
    """Mark a handler with the type of the JSON body that it reads."""

    def mark(handler: F) -> F:
        setattr(handler, _BODY, kind)
        return handler

    return mark


def gives(kind: Any, status: int = 200) -> Callable[[F], F]:
    """Mark a handler with the type of the JSON answer that it writes, and the status of that answer."""

    def mark(handler: F) -> F:
        setattr(handler, _ANSWER, (kind, status))
        return handler

    return mark


def body_type(handler: Any) -> Any:
    """Return the type of the body that a handler takes; None if it is not marked."""
    return getattr(handler, _BODY, None)


def answer_type(handler: Any) -> tuple[Any, int] | None:
    """Return the type of a handler's answer and its status; None if it is not marked."""
    found: tuple[Any, int] | None = getattr(handler, _ANSWER, None)
    return found
