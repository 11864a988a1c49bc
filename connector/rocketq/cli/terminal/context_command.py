"""`rocketq context`: give clusters names, and choose one."""

from __future__ import annotations

from typing import Any, Final

import rich_click as click

from rocketq.cli.terminal.contexts import Contexts, complete_context, read_contexts, write_contexts
from rocketq.cli.terminal.output import done, output_option, show

COLUMNS: Final = ("context", "nameservers", "in use")


@click.group()
def context() -> None:
    """Give clusters names, and choose the one that commands ask."""


@context.command("list")
@output_option
def list_contexts(output: str) -> None:
    """Show the contexts of this user.

    \b
    Examples:
      rocketq context list
      rocketq context list -o json
    """
    show(_rows(read_contexts()), output, COLUMNS)


@context.command("add")
@click.argument("name")
@click.argument("nameservers")
@click.option("--replace", "replaces", is_flag=True, help="Change the context if there is one of this name.")
@output_option
def add_context(name: str, nameservers: str, replaces: bool, output: str) -> None:
    """Name a cluster by its NameServers, with commas between them. The first context is in use at once.

    \b
    Examples:
      rocketq context add test http://127.0.0.1:9876
      rocketq context add prod http://10.0.0.1:9876,http://10.0.0.2:9876
      rocketq context add local http://127.0.0.1:9877 --replace
    """
    from rocketq.net.route_cache import nameserver_addresses

    addresses = ",".join(nameserver_addresses(nameservers))
    changed = read_contexts().with_one(name, addresses, replaces=replaces)
    write_contexts(changed)
    done(f"{name} is {addresses}; in use: {changed.current}", _rows(changed), output)


@context.command("use")
@click.argument("name", shell_complete=complete_context)
@output_option
def use_context(name: str, output: str) -> None:
    """Have commands ask this cluster from now on. ROCKETQ_CONTEXT does so for one shell, -s for one command.

    \b
    Examples:
      rocketq context use local
    """
    changed = read_contexts().using(name)
    write_contexts(changed)
    done(f"in use: {name} ({changed.of(name)})", _rows(changed), output)


@context.command("remove")
@click.argument("name", shell_complete=complete_context)
@output_option
def remove_context(name: str, output: str) -> None:
    """Forget a context. The cluster is not touched.

    \b
    Examples:
      rocketq context remove old
    """
    changed = read_contexts().without(name)
    write_contexts(changed)
    done(f"{name} is forgotten; in use: {changed.current or 'none'}", _rows(changed), output)


def _rows(contexts: Contexts) -> list[dict[str, Any]]:
    return [
        {"context": name, "nameservers": nameservers, "in use": name == contexts.current}
        for name, nameservers in sorted(contexts.nameservers.items())
    ]
