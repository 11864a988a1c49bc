"""Showing where in an expression something is wrong."""

from __future__ import annotations

from typing import Final

_SHOWN_AROUND: Final = 50


def pointed(expression: str, position: int) -> str:
    """Return two lines: the expression around a position, and a caret below it."""
    first, last = max(0, position - _SHOWN_AROUND), position + _SHOWN_AROUND
    before, after = "…" if first else "", "…" if last < len(expression) else ""
    # A tab or a line break would move the caret away from its place.
    part = "".join(c if c.isprintable() else " " for c in expression[first:last])
    return f"  {before}{part}{after}\n  {' ' * (len(before) + position - first)}^"
