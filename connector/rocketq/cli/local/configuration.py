"""`rocketq config show`: which settings are in force, and where each comes from."""

from __future__ import annotations

from typing import Final

import rich_click as click

from rocketq.cli.local.servers import become
from rocketq.cli.terminal.contexts import chosen_nameservers
from rocketq.cli.terminal.output import output_option, show

#: The module of each kind of server.
SERVERS: Final = {
    "broker": "rocketq_broker",
    "nameserver": "rocketq_nameserver",
    "console": "rocketq.console",
}


@click.group()
def config() -> None:
    """Look at settings."""


@config.command("show", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.argument("server", type=click.Choice(list(SERVERS)), required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@output_option
def show_config(server: str | None, arguments: tuple[str, ...], output: str) -> None:
    """Show the settings of this command line, or those with which a server would start, with their origins.

    For a server, give the flags with which it is started. Nothing is started. Exit code 2: the server would
    refuse them.

    \b
    Examples:
      rocketq config show
      rocketq config show broker --name broker-a --data-dir data/a --flush sync
      rocketq config show nameserver -o jsonl
    """
    if server is not None:
        become(SERVERS[server], [*arguments, "--show-config", output])
    value, origin = chosen_nameservers()
    show([{"setting": "nameservers", "value": value, "origin": origin}], output)
