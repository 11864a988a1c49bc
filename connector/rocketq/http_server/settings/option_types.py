"""Kinds of values that options have beside click's own.

Each reads the text of a flag or a variable, and the list of a file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    _Texts = click.ParamType[tuple[str, ...]]
    _Numbers = click.ParamType[tuple[int, ...]]
else:
    # Only the newest releases of click can be asked for a type of values.
    _Texts = _Numbers = click.ParamType


class CommaList(_Texts):
    """Several texts with commas between them; in a file it may also be a list."""

    name = "list"

    def __init__(self, metavar: str) -> None:
        self.metavar = metavar

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return self.metavar

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        parts = value.split(",") if isinstance(value, str) else value
        if not all(isinstance(part, str) for part in parts):
            self.fail(f"{value!r} is not a list of texts", param, ctx)
        return tuple(part.strip() for part in parts if part.strip())


class Percentages(_Numbers):
    """A fixed number of percentages with commas between them; in a file it may also be a list."""

    name = "percentages"

    def __init__(self, count: int) -> None:
        self.count = count

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        try:
            found = tuple(int(part) for part in (value.split(",") if isinstance(value, str) else value))
        except (TypeError, ValueError):
            found = ()
        if len(found) != self.count:
            self.fail(f"{value!r} is not {self.count} percentages with commas between them", param, ctx)
        return found
