"""`rocketq cluster`: who is alive, as each NameServer sees it."""

from __future__ import annotations

from typing import Any, Final

import rich_click as click

from rocketq.cli.connection import nameservers_option
from rocketq.cli.output import output_option, say, show

UNHEALTHY: Final = 10
COLUMNS: Final = ("nameserver", "cluster", "broker", "id", "address", "topics", "heard_ms", "lease_ms")


@click.command()
@nameservers_option
@output_option
def cluster(nameservers: str, output: str) -> int:
    """Show every broker each NameServer knows. Exit code 10: one NameServer or every broker is missing.

    \b
    Examples:
      rocketq cluster
      rocketq cluster -o json
      rocketq cluster -s http://10.0.0.1:9876,http://10.0.0.2:9876
    """
    from rocketq.errors import NameServersUnreachable
    from rocketq.net.nameserver_api import NameServerApi
    from rocketq.net.route_cache import nameserver_addresses
    from rocketq.net.transport import Transport

    rows: list[dict[str, Any]] = []
    down: dict[str, str] = {}
    addresses = nameserver_addresses(nameservers)
    with Transport() as transport:
        for address in addresses:
            try:
                view = NameServerApi(transport, address).cluster()
            except NameServersUnreachable as error:
                down |= error.facts["tried"]
                continue
            rows += [
                {
                    "nameserver": address,
                    "cluster": live.identity.cluster,
                    "broker": live.identity.broker,
                    "id": live.identity.broker_id,
                    "address": live.identity.address,
                    "topics": live.topics,
                    "heard_ms": live.age_ms,
                    "lease_ms": live.lease_ms,
                }
                for live in view.brokers
            ]
    if len(down) == len(addresses):
        raise NameServersUnreachable(down)
    show(rows, output, COLUMNS)
    for address, why in down.items():
        say(f"unreachable: {address}: {why}")
    if not rows:
        say("no broker is registered; start one: rocketq broker run")
    return UNHEALTHY if down or not rows else 0
