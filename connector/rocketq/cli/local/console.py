"""`rocketq console`: the console's process in this one's place."""

from __future__ import annotations

import rich_click as click

from rocketq.cli.local.servers import become
from rocketq.cli.terminal.connection import nameservers_option


@click.command()
@nameservers_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--port", default=9080, show_default=True, help="Its port; 0: any.")
@click.option(
    "--allow-changes", is_flag=True, help="Let the pages change the cluster: without it they only show."
)
@click.option(
    "--allowed-hosts", multiple=True, metavar="HOST[,HOST…]",
    help="Further names that it is called by; may be given several times.",
)  # fmt: skip
@click.option("--insecure", is_flag=True, help="Allow an address that others can reach; nobody logs in.")
def console(
    nameservers: str,
    host: str,
    port: int,
    allow_changes: bool,
    allowed_hosts: tuple[str, ...],
    insecure: bool,
) -> None:
    """Show the cluster on web pages, until Ctrl-C.

    \b
    Examples:
      rocketq console
      rocketq console --allow-changes --port 9081
      rocketq console -s http://10.0.0.1:9876,http://10.0.0.2:9876
    """
    arguments = ["--nameservers", nameservers, "--host", host, "--port", str(port)]
    arguments += [f"--allowed-hosts={each}" for each in allowed_hosts]
    arguments += ["--allow-changes"] * allow_changes + ["--insecure"] * insecure
    become("rocketq.console", arguments)
