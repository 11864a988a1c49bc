"""`rocketq broker drain`, `resume` and `list`: taking a broker out of service, and giving it back.

drain      tells the broker itself: it registers its topics without write permission, and takes no sends.
           It lasts until `resume`, or until the broker is started again
--routes   tells each NameServer instead, for a broker that does not answer: producers are sent elsewhere
           until its next registration with changed topics
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import rich_click as click

from rocketq.cli.terminal.connection import administration, nameservers_option
from rocketq.cli.terminal.output import done, output_option, show

if TYPE_CHECKING:
    from rocketq.protocol.documents.broker import BrokerStatistics

COLUMNS: Final = ("broker", "draining", "topics", "queues", "held_calls", "log_bytes", "disk_free_bytes")

routes_option = click.option(
    "--routes",
    is_flag=True,
    help="Change the NameServers instead of the broker: for a broker that does not answer.",
)


@click.command("list")
@nameservers_option
@output_option
def list_brokers(nameservers: str, output: str) -> None:
    """Show every live broker: whether it takes sends, and its load.

    \b
    Examples:
      rocketq broker list
      rocketq broker list -o jsonl | jq -r 'select(.draining).broker'
    """
    with administration(nameservers) as admin:
        found = [api.statistics() for api in admin.masters.apis()]
    show([_row(each) for each in found], output, COLUMNS)


@click.command()
@click.argument("name")
@routes_option
@click.option("--dry-run", is_flag=True, help="Show the broker, and change nothing.")
@nameservers_option
@output_option
def drain(name: str, routes: bool, dry_run: bool, nameservers: str, output: str) -> None:
    """Send producers to other brokers; consumers read on. Do this before maintenance.

    \b
    Examples:
      rocketq broker drain broker-a --dry-run
      rocketq broker drain broker-a
      rocketq broker drain broker-a --routes
    """
    _set_duty(name, draining=True, routes=routes, dry_run=dry_run, nameservers=nameservers, output=output)


@click.command()
@click.argument("name")
@routes_option
@nameservers_option
@output_option
def resume(name: str, routes: bool, nameservers: str, output: str) -> None:
    """Let producers send to a drained broker again.

    \b
    Examples:
      rocketq broker resume broker-a
    """
    _set_duty(name, draining=False, routes=routes, dry_run=False, nameservers=nameservers, output=output)


def _set_duty(
    name: str, *, draining: bool, routes: bool, dry_run: bool, nameservers: str, output: str
) -> None:
    what = "sends go to other brokers" if draining else "it takes sends again"
    with administration(nameservers) as admin:
        if routes and not dry_run:
            changed = admin.set_write_permission(name, writable=not draining)
            rows: list[dict[str, Any]] = [
                {"nameserver": address, "broker": name, "topics": topics}
                for address, topics in changed.items()
            ]
            done(f"{name}: {what}, by {len(rows)} NameServer(s)", rows, output)
            return
        broker = admin.masters.named(name)
        statistics = broker.statistics() if dry_run else broker.drain(draining)
    told = "nothing was changed" if dry_run else what
    done(f"{name}: {told}; {statistics.topics} topic(s)", [_row(statistics)], output)


def _row(statistics: BrokerStatistics) -> dict[str, Any]:
    return {
        "broker": statistics.broker,
        "draining": statistics.draining,
        "topics": statistics.topics,
        "queues": statistics.queues,
        "held_calls": statistics.held_calls,
        "log_bytes": statistics.log_end - statistics.log_begin,
        "disk_free_bytes": statistics.disk_free_bytes,
    }
