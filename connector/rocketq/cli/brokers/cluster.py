"""`rocketq cluster`: who is alive, as each NameServer sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import rich_click as click

from rocketq.cli.terminal.connection import administration, nameservers_option
from rocketq.cli.terminal.output import UNHEALTHY, output_option, say, show
from rocketq.protocol.documents.nameserver import MASTER_ID, LiveBroker

if TYPE_CHECKING:
    from rocketq.admin.cluster import ClusterAdmin, NameServerViews
    from rocketq.admin.replicas import ReplicaStanding

COLUMNS: Final = (
    "nameserver",
    "cluster",
    "broker",
    "id",
    "role",
    "epoch",
    "in_sync",
    "lag_bytes",
    "lag_s",
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

    The epoch is 0 for a group of one broker. Of several replicas you see which are in sync, and what each
    lacks of the master's log; a cell is empty if nobody knows. More of them: rocketq broker replicas.

    \b
    Examples:
      rocketq cluster
      rocketq cluster -o json
      rocketq cluster -s http://10.0.0.1:9876,http://10.0.0.2:9876
    """
    with administration(nameservers) as admin:
        found = admin.views()
        replicas = _replicas(admin, found)
    rows = [
        {
            "nameserver": address,
            "cluster": live.identity.cluster,
            "broker": live.identity.broker,
            "id": live.identity.broker_id,
            "role": "master" if live.identity.broker_id == MASTER_ID else "slave",
            "epoch": live.data_version.state_version,
            **_standing(replicas, live),
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


def _replicas(admin: ClusterAdmin, found: NameServerViews) -> dict[str, dict[str, ReplicaStanding]]:
    """Return how the replicas of each group are that has some, by the name of the group and by address."""
    from rocketq.admin.replicas import GroupStandings

    groups = {
        live.identity.broker
        for view in found.views.values()
        for live in view.brokers
        if live.data_version.state_version
    }
    known = {group: admin.replicas.known_standings(group) for group in sorted(groups)}
    return {
        group: {each.address: each for each in standings.replicas}
        for group, standings in known.items()
        if isinstance(standings, GroupStandings)
    }


def _standing(replicas: dict[str, dict[str, ReplicaStanding]], live: LiveBroker) -> dict[str, Any]:
    """Return the cells of a broker that say how it is as a replica; a lone broker lacks nothing."""
    if not live.data_version.state_version:
        return {"in_sync": "yes", "lag_bytes": 0, "lag_s": 0.0}
    standing = replicas.get(live.identity.broker, {}).get(live.identity.address)
    if standing is None:
        return {"in_sync": None, "lag_bytes": None, "lag_s": None}
    return {"in_sync": standing.in_sync, "lag_bytes": standing.lag_bytes, "lag_s": standing.lag_s}
