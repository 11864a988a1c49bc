"""`rocketq broker clock`: do brokers believe their wall clocks? And agreeing to the clock of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import rich_click as click

from rocketq.cli.terminal.connection import administration, nameservers_option
from rocketq.cli.terminal.output import UNHEALTHY, output_option, say, show

if TYPE_CHECKING:
    from rocketq.protocol.documents.broker import BrokerStatistics

COLUMNS = ("broker", "doubt", "ahead_s", "believe_at")


@click.command("clock")
@click.argument("name", required=False)
@click.option("--agree", is_flag=True, help="The broker's clock is right: delete by age again.")
@nameservers_option
@output_option
def clock(name: str | None, agree: bool, nameservers: str, output: str) -> int:
    """Show which brokers doubt their wall clocks and so delete nothing by age. Exit code 10: one does.

    With --agree this machine's time is sent along; the broker refuses if its own differs by an hour or more.

    \b
    Examples:
      rocketq broker clock
      rocketq broker clock broker-a
      rocketq broker clock broker-a --agree
    """
    from rocketq.clock import SystemClock

    if agree and name is None:
        raise click.UsageError("--agree needs the broker's name: rocketq broker clock NAME --agree")
    with administration(nameservers) as admin:
        brokers = admin.masters.apis() if name is None else [admin.masters.named(name)]
        told = [each.agree_clock(SystemClock().now_us()) if agree else each.statistics() for each in brokers]
    show([_row(each) for each in told], output, COLUMNS)
    doubting = [each.broker for each in told if each.clock_doubt]
    if doubting:
        say(
            f"nothing is deleted by age on {', '.join(doubting)}; rocketq broker clock NAME --agree ends that"
        )
    return UNHEALTHY if doubting else 0


def _row(statistics: BrokerStatistics) -> dict[str, Any]:
    from datetime import UTC, datetime

    at_us = statistics.believe_at_us
    return {
        "broker": statistics.broker,
        "doubt": statistics.clock_doubt,
        "ahead_s": statistics.clock_ahead_us // 1_000_000,
        "believe_at": None if at_us is None else datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(),
    }
