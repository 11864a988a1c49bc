"""How commands speak: data to stdout, everything else to stderr.

    -o table   aligned columns; boxes and colour only on a terminal (`table_layout`), plain when piped
    -o json    one document
    -o jsonl   one document a row

Rows are dictionaries in the order of their columns. A value that is not known is None:
an empty cell in a table, null in JSON, never 0.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import rich_click as click

from rocketq.cli.terminal.table_layout import layout_of

FORMATS: Final = ("table", "json", "jsonl")
#: The exit code of a command that looks for problems and finds one.
UNHEALTHY: Final = 10

Row = Mapping[str, Any]
F = TypeVar("F", bound=Callable[..., Any])


def output_option(command: F) -> F:
    """Add `-o`, and remember it where the error handler finds it."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(FORMATS),
        default="table",
        show_default=True,
        callback=_remember,
        is_eager=True,
        help="How results (and errors) are written.",
    )(command)


def _remember(context: click.Context, _: click.Parameter, value: str) -> str:
    context.find_root().ensure_object(dict)["output"] = value
    return value


def show(rows: Sequence[Row], output: str, columns: Sequence[str] = ()) -> None:
    """Write rows in the asked form; `columns` names those of an empty table."""
    if output == "json":
        click.echo(json.dumps(list(rows), indent=2, ensure_ascii=False))
    elif output == "jsonl":
        for row in rows:
            click.echo(json.dumps(row, ensure_ascii=False))
    else:
        _table(rows, list(rows[0]) if rows else list(columns))


def show_one(row: Row, output: str) -> None:
    """Write one thing: a JSON object, or its fields below each other."""
    if output == "table":
        width = max(len(name) for name in row)
        for name, value in row.items():
            click.echo(f"{name:<{width}}  {_cell(value)}")
    else:
        click.echo(json.dumps(row, indent=2 if output == "json" else None, ensure_ascii=False))


def say(text: str) -> None:
    """Tell a person something; never part of the data."""
    click.echo(text, err=True)


def done(text: str, rows: Sequence[Row], output: str) -> None:
    """Tell a person what was done, and a program that asked for it what it was done to."""
    say(text)
    if output != "table":
        show(rows, output)


def confirm(name: str, what: str) -> None:
    """Have a person type a name before something cannot be undone; raise ClickException otherwise."""
    typed = click.prompt(f"Type {name} to {what}", err=True)
    if typed != name:
        raise click.ClickException(f"{typed!r} is not {name!r}. Nothing was changed.")


def _table(rows: Sequence[Row], columns: list[str]) -> None:
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    if sys.stdout.isatty():
        _table_on_a_terminal(columns, cells)
        return
    titles = [column.upper().replace(" ", "_") for column in columns]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    for line in [titles, *cells]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _table_on_a_terminal(columns: list[str], cells: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    layout = layout_of(columns, cells, console.width)
    if layout.as_blocks:
        longest = max(map(len, columns))
        blocks = (
            "\n".join(f"{title:<{longest}}  {cell}" for title, cell in zip(columns, line, strict=True))
            for line in cells
        )
        click.echo("\n\n".join(blocks))
        return
    table = Table(*(columns[n] for n in layout.columns))
    for line in cells:
        table.add_row(*(line[n] for n in layout.columns))
    console.print(table)
    if layout.same:
        say("in each row: " + ", ".join(f"{columns[n]} {cells[0][n]}" for n in layout.same))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value)
