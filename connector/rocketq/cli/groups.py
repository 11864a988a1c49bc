"""`rocketq group describe`: the progress of a consumer group, or of a Spark query."""

from __future__ import annotations

from dataclasses import asdict

import rich_click as click

from rocketq.cli.connection import administration, nameservers_option
from rocketq.cli.output import output_option, say, show


@click.group()
def group() -> None:
    """Look at consumer groups."""


@group.command("describe")
@click.argument("name")
@click.option("--topic", help="Only this topic.")
@nameservers_option
@output_option
def describe(name: str, topic: str | None, nameservers: str, output: str) -> None:
    """Show a group's progress and lag in every queue it ever committed.

    \b
    Examples:
      rocketq group describe billing
      rocketq group describe billing --topic orders
      rocketq group describe billing -o jsonl | jq -s 'map(.lag) | add'
    """
    with administration(nameservers) as admin:
        found = admin.groups.progress(name, topic)
    show([asdict(each) for each in found], output)
    if output == "table":
        say(f"lag {sum(each.lag or 0 for each in found)}")
