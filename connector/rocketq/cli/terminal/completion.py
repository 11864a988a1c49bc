"""`rocketq completion`: a shell completes commands, options, and the topics and groups of the live cluster.

Names come from the cluster that the command line would ask. A key that is pressed must not hang: when the
cluster does not answer within half a second, there are no names.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import rich_click as click
from click import get_current_context
from click.shell_completion import get_completion_class

from rocketq.cli.terminal.contexts import default_nameservers
from rocketq.errors import RocketqError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketq.client import Client

SHELLS: Final = ("bash", "zsh", "fish")
PROGRAM: Final = "rocketq"
VARIABLE: Final = "_ROCKETQ_COMPLETE"
WAIT_MS: Final = 500

_HOW: Final = {
    "bash": "rocketq completion bash > ~/.local/share/bash-completion/completions/rocketq",
    "zsh": "rocketq completion zsh > a file _rocketq in a directory of $fpath",
    "fish": "rocketq completion fish > ~/.config/fish/completions/rocketq.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Write the script that has a shell complete commands, options, topics and groups.

    \b
    Examples:
      source <(rocketq completion bash)
      rocketq completion zsh | tee _rocketq
      rocketq completion fish | tee rocketq.fish
    """
    found = get_completion_class(shell)
    assert found is not None, shell
    root = get_current_context().find_root().command
    click.echo(found(root, {}, PROGRAM, VARIABLE).source())


def complete_topic(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the topics that begin so, but for the system's own."""
    return _names(context, incomplete, lambda client: client.topics())


def complete_group(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the consumer groups that begin so."""
    return _names(context, incomplete, lambda client: [each.group for each in client.groups.overviews()])


def _names(context: click.Context, incomplete: str, ask: Callable[[Client], list[str]]) -> list[str]:
    from rocketq.client import Client
    from rocketq.config import TransportConfig

    given = context.params.get("nameservers")
    # What the client logs would stand in the line that the user is typing.
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        transport = TransportConfig(connect_timeout_ms=WAIT_MS, timeout_ms=WAIT_MS)
        with Client(given or default_nameservers(), transport=transport) as client:
            names = ask(client)
    except RocketqError:
        # A shell that completes has no place for an error; the command itself will tell it.
        return []
    finally:
        logging.disable(disabled)
    return [name for name in sorted(names) if name.startswith(incomplete)]
