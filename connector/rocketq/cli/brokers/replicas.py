"""`rocketq broker replicas`, `handover` and `promote`: a broker group of several replicas."""

from __future__ import annotations

from typing import Final

import rich_click as click

from rocketq.cli.terminal.connection import administration, nameservers_option
from rocketq.cli.terminal.output import UNHEALTHY, output_option, say, show, show_one

COLUMNS: Final = (
    "broker", "id", "role", "epoch", "in_sync", "held", "held_percent", "lag_bytes", "lag_s", "address",
)  # fmt: skip


@click.command("replicas")
@click.argument("broker")
@nameservers_option
@output_option
def replicas(broker: str, nameservers: str, output: str) -> int:
    """Show the replicas of a broker group, as its master sees them.

    Exit code 10: a replica is not in sync, or no master answers.

    \b
    Examples:
      rocketq broker replicas broker-a
      rocketq broker replicas broker-a -o json
    """
    with administration(nameservers) as admin:
        group = admin.replicas.standings(broker)
    rows = [
        {
            "broker": broker,
            "id": each.number,
            "role": each.role,
            "epoch": group.status.epoch,
            "in_sync": each.in_sync,
            "held": each.held,
            "held_percent": each.held_percent,
            "lag_bytes": each.lag_bytes,
            "lag_s": each.lag_s,
            "address": each.address,
        }
        for each in group.replicas
    ]
    show(rows, output, COLUMNS)
    if not group.takes_writes:
        say(f"{group.in_sync} in sync, {group.status.min_in_sync} needed: the group takes no writes")
    return 0 if group.is_whole else UNHEALTHY


@click.command("handover")
@click.argument("broker")
@click.option(
    "--to", "successor", type=int, default=0, help="The id of the next master; default: any in sync."
)
@nameservers_option
@output_option
def handover(broker: str, successor: int, nameservers: str, output: str) -> None:
    """Have the master of a group give its office to a replica that is in sync. No message is lost.

    \b
    Examples:
      rocketq broker handover broker-a
      rocketq broker handover broker-a --to 2
    """
    with administration(nameservers) as admin:
        epoch = admin.replicas.hand_over(broker, successor)
    show_one({"broker": broker, "epoch": epoch}, output)


@click.command("promote")
@click.argument("broker")
@click.argument("number", type=int)
@click.option(
    "--unclean",
    is_flag=True,
    help="Also if it may lack messages that are confirmed: these are lost.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@nameservers_option
@output_option
def promote(broker: str, number: int, unclean: bool, yes: bool, nameservers: str, output: str) -> None:
    """Make a slave the master of its group. Without --unclean nothing that is confirmed is lost.

    \b
    Examples:
      rocketq broker promote broker-a 2
      rocketq broker promote broker-a 2 --unclean
    """
    if unclean and not yes:
        click.confirm(
            f"Replica {number} becomes master of {broker} even if it lacks messages that were acknowledged. "
            "Those are lost, and the other replicas drop them. Go on?",
            abort=True,
            err=True,
        )
    with administration(nameservers) as admin:
        epoch = admin.replicas.promote(broker, number, unclean=unclean)
    show_one({"broker": broker, "master": number, "epoch": epoch}, output)
