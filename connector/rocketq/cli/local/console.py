"""`rocketq console`: the console's process in this one's place.

Only what is given is handed on: the console itself reads the environment and the file of settings.
"""

from __future__ import annotations

from collections.abc import Sequence

import rich_click as click

from rocketq.cli.local.servers import become
from rocketq.cli.terminal.contexts import chosen_nameservers


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("-s", "--nameservers", help="NameServer addresses, comma-separated.")
@click.option("--host", help="Where to listen; otherwise 127.0.0.1.")
@click.option("--port", type=int, help="Its port; otherwise 9080. 0: any.")
@click.option(
    "--allow-changes", is_flag=True, help="Let the pages change the cluster: without it they only show."
)
@click.option(
    "--allowed-hosts", multiple=True, metavar="HOST[,HOST…]",
    help="Further names that it is called by; may be given several times.",
)  # fmt: skip
@click.option("--insecure", is_flag=True, help="Allow an address that others can reach; nobody logs in.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[SETTINGS]...")
def console(
    nameservers: str | None,
    host: str | None,
    port: int | None,
    allow_changes: bool,
    allowed_hosts: tuple[str, ...],
    insecure: bool,
    arguments: Sequence[str],
) -> None:
    """Show the cluster on web pages, until Ctrl-C.

    Every setting can also be a variable, such as ROCKETQ_CONSOLE_PORT, or a line of the file that --config
    names. `rocketq config show console` lists them with their values.

    \b
    Examples:
      rocketq console
      rocketq console --allow-changes --port 9081
      rocketq console -s http://10.0.0.1:9876,http://10.0.0.2:9876
    """
    values = {"--nameservers": nameservers or _of_context(), "--host": host, "--port": port}
    given = [f"{flag}={value}" for flag, value in values.items() if value is not None]
    given += [f"--allowed-hosts={each}" for each in allowed_hosts]
    given += ["--allow-changes"] * allow_changes + ["--insecure"] * insecure
    become("rocketq.console", [*given, *arguments])


def _of_context() -> str | None:
    """Return the NameServers of the chosen context; the console reads the other places itself."""
    value, origin = chosen_nameservers()
    return value if origin.startswith("context ") else None
