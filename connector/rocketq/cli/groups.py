"""`rocketq group describe`: how far a consumer group, or a Spark query, has come."""

from __future__ import annotations

from typing import Any, Final

import rich_click as click

from rocketq.cli.connection import administration, nameservers_option
from rocketq.cli.output import output_option, say, show

COLUMNS: Final = ("topic", "broker", "queue", "committed", "max", "lag")


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
    from rocketq.errors import NotFound, TopicNotFound

    rows: list[dict[str, Any]] = []
    with administration(nameservers) as admin:
        for master in admin.masters():
            for one in master.group_offsets(name, topic).offsets:
                try:
                    queues = master.offsets(one.topic).queues
                except TopicNotFound:
                    # The topic was deleted after the commit; its lag is unknown, which is not 0.
                    queues = ()
                end = queues[one.queue].max if one.queue < len(queues) else None
                rows.append(
                    {
                        "topic": one.topic,
                        "broker": master.broker,
                        "queue": one.queue,
                        "committed": one.offset,
                        "max": end,
                        "lag": None if end is None else end - one.offset,
                    }
                )
    if not rows:
        raise NotFound("group", name)
    rows.sort(key=lambda row: (row["topic"], row["broker"], row["queue"]))
    show(rows, output, COLUMNS)
    if output == "table":
        say(f"lag {sum(row['lag'] or 0 for row in rows)}")
