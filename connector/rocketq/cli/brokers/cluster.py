"""`rocketq cluster`: who is alive, as each NameServer sees it."""

from __future__ import annotations

from typing import Final

import rich_click as click

from rocketq.cli.terminal.connection import administration, nameservers_option
from rocketq.cli.terminal.output import UNHEALTHY, output_option, say, show
from rocketq.protocol.documents.nameserver import MASTER_ID

COLUMNS: Final = (
    "nameserver",
    "cluster",
    "broker",
    "id",
    "role",
    "epoch",
    "address",
    "topics",
    "heard_ms",
    "lease_ms",
)


@click.command()
@nameservers_option
@output_option
def cluster(nameservers: str, output: str) -> int:
    """Show every broker each NameServer knows. Exit code 10: a NameServer is silent, or no broker is there.

    The epoch is 0 for a group of one broker. How far the replicas of a group are: rocketq broker replicas.

    \b
    Examples:
      rocketq cluster
      rocketq cluster -o json
      rocketq cluster -s http://10.0.0.1:9876,http://10.0.0.2:9876
    """
    with administration(nameservers) as admin:
        found = admin.views()
    rows = [
        {
            "nameserver": address,
            "cluster": live.identity.cluster,
            "broker": live.identity.broker,
            "id": live.identity.broker_id,
            "role": "master" if live.identity.broker_id == MASTER_ID else "slave",
            "epoch": live.data_version.state_version,
            "address": live.identity.address,
            "topics": live.topics,
            "heard_ms": live.age_ms,
            "lease_ms": live.lease_ms,
        }
        for address, view in found.views.items()
        for live in view.brokers
    ]
    show(rows, output, COLUMNS)
    for address, why in found.unreachable.items():
        say(f"unreachable: {address}: {why}")
    if not rows:
        say("no broker is registered; start one: rocketq broker run")
    return UNHEALTHY if found.unreachable or not rows else 0
