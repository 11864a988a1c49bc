"""Output of the demo: progress on stderr, results on stdout; colour only on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

#: Without a terminal, the counter is written at this interval.
PLAIN_EVERY_S: Final = 2.0


class Step:
    """One step that is running: `advance_to` moves its counter, `note` is shown behind its name."""

    def __init__(self, name: str, total: int | None, progress: Progress | None) -> None:
        self._name, self._total, self._progress = name, total, progress
        self._task = progress.add_task(name, total=total) if progress else None
        self._written_at = time.monotonic()
        self._done = 0
        self.note = ""

    def advance_to(self, done: int) -> None:
        """Show how far the step is."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done)
        elif done != self._done and time.monotonic() - self._written_at >= PLAIN_EVERY_S:
            self._written_at, self._done = time.monotonic(), done
            print(
                f"        {done:,} of {self._total:,}" if self._total else f"        {done:,}",
                file=sys.stderr,
            )


class Display:
    """Writes progress and results of the demo."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._out = Console(highlight=False)
        self._started = time.monotonic()

    @contextmanager
    def step(self, name: str, total: int | None = None) -> Iterator[Step]:
        """Show a step while it runs, and one line with its time and note when it is done."""
        started = time.monotonic()
        if not self._console.is_terminal:
            print(f"  …     {name}", file=sys.stderr, flush=True)
            step = Step(name, total, None)
            yield step
        else:
            columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=30)]
            counter = [MofNCompleteColumn()] if total else []
            with Progress(
                *columns, *counter, TimeElapsedColumn(), console=self._console, transient=True
            ) as progress:
                step = Step(name, total, progress)
                yield step
        took = time.monotonic() - started
        self._line(f"[green]{took:5.1f} s[/] {name}" + (f": {step.note}" if step.note else ""))

    def done(self, name: str) -> None:
        """Show that something is done that was no step; the time counts from the beginning."""
        self._line(f"[green]{self.elapsed_s:5.1f} s[/] after the beginning: {name}")

    def _line(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def say(self, text: str = "") -> None:
        """Write a line of the result."""
        self._out.print(text, soft_wrap=True)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Write a table of the result; the first column is text, the others numbers."""
        if self._out.is_terminal:
            table = Table(title=title, title_justify="left")
            for number, column in enumerate(columns):
                table.add_column(column, justify="right" if number else "left")
            for row in rows:
                table.add_row(*row)
            self._out.print(table)
            return
        print(title)
        widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
        for line in (columns, *rows):
            print("  " + "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))

    @property
    def elapsed_s(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self._started
