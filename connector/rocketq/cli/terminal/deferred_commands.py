"""A group of commands whose modules are imported when one of them is called.

Help and completion need the names and summaries alone, and these stand in the table from which the group
is made. Most of the time that a short command takes is the import of modules, so a call pays for its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import rich_click as click

if TYPE_CHECKING:
    from click import Command, Context


@dataclass(frozen=True, slots=True)
class DeferredCommand:
    """A command that is not imported yet: its name, its place (`package.module:attribute`), its summary."""

    name: str
    place: str
    summary: str

    def load(self) -> Command:
        """Import the command."""
        module, attribute = self.place.split(":")
        command: Command = getattr(import_module(module), attribute)
        return command


class DeferredGroup(click.RichGroup):
    """A group that knows its commands by name and summary, and imports the one that is called."""

    def __init__(self, *args: Any, deferred: Iterable[DeferredCommand], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.deferred = {each.name: each for each in deferred}
        for each in self.deferred.values():
            self.add_command(click.RichCommand(name=each.name, help=each.summary))

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        """Return the command that the arguments name, imported."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and self.deferred[str(command.name)].load(), rest
