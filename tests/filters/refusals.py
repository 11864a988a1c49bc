"""Asking a parser whether it takes a text."""

from __future__ import annotations

from collections.abc import Callable

from rocketq.errors import InvalidFilter


def refusal(parse: Callable[[str], object], text: str) -> InvalidFilter | None:
    """The error that a parser raises on a text, or None; any other exception passes."""
    try:
        parse(text)
    except InvalidFilter as error:
        return error
    return None
