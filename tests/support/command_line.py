"""The command line inside the test's own process: the same `main`, without the time that a process needs."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any
from unittest import mock

import click

from rocketq.cli.main import main
from rocketq.cli.main import rocketq as root


def all_commands() -> click.Group:
    """Return the tree of commands with every command imported."""
    return click.Group("rocketq", {name: each.load() for name, each in root.deferred.items()})


def leaves(command: click.Command, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield each command below this one that has no subcommands, with the words that call it."""
    if not isinstance(command, click.Group):
        yield path, command
    else:
        for name, below in command.commands.items():
            yield from leaves(below, *path, name)


@dataclass(frozen=True)
class Said:
    """What a command wrote, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def rows(self) -> list[Any]:
        """The documents of `-o jsonl`."""
        return [json.loads(line) for line in self.out.splitlines()]


def rocketq(*arguments: object, stdin: str = "") -> Said:
    """Run one command to its end."""
    out, err = io.StringIO(), io.StringIO()
    given = io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin.encode())))  # type: ignore[type-var]
    code: Any = 0
    with redirect_stdout(out), redirect_stderr(err), mock.patch.object(sys, "stdin", given):
        try:
            main([str(each) for each in arguments])
        except SystemExit as ended:
            code = ended.code
    return Said(int(code or 0), out.getvalue(), err.getvalue())
