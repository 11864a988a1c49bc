"""`rocketq version` and `rocketq --version`."""

from __future__ import annotations

import rich_click as click

from rocketq.cli.terminal.output import output_option, show_one


def installed_version() -> str:
    """Return the version of the installed package."""
    from importlib.metadata import version as installed

    return installed("rocketq")


@click.command()
@output_option
def version(output: str) -> None:
    """Show the version.

    \b
    Examples:
      rocketq version
      rocketq version -o json | jq -r .version
    """
    if output == "table":
        click.echo(f"rocketq {installed_version()}")
    else:
        show_one({"version": installed_version()}, output)
