"""The servers: every NameServer, every broker as the NameServers know it, one broker, and the plots' data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rocketq.admin.cluster import NameServerViews
from rocketq.admin.replicas import GroupStandings
from rocketq.console.console import Call, Console, Page
from rocketq.errors import NameServersUnreachable, NotFound
from rocketq.protocol.documents.nameserver import MASTER_ID, BrokerIdentity


@dataclass(frozen=True, slots=True)
class ServerRow:
    """One broker process. `age_ms` is None for one that is remembered while no NameServer answers.

    `known_by` are the NameServers that list it, `missing_at` those that answer and do not.
    """

    broker: str
    broker_id: int
    cluster: str
    address: str
    age_ms: int | None
    lease_ms: int | None
    known_by: tuple[str, ...] = ()
    missing_at: tuple[str, ...] = ()

    @property
    def role(self) -> str:
        return "master" if self.broker_id == MASTER_ID else f"slave {self.broker_id}"


def server_rows(console: Console) -> tuple[list[ServerRow], NameServerViews]:
    """Return every broker process that a NameServer lists, and what the NameServers said.

    While none answers, the masters that were known last. Raises NameServersUnreachable if none ever answered.
    """
    try:
        said = console.admin.views()
    except NameServersUnreachable as error:
        remembered, _ = console.survey.live()
        rows = [
            ServerRow(name, one.broker_id, one.cluster, one.address, None, None)
            for name, one in remembered.items()
        ]
        return rows, NameServerViews({}, dict(error.facts["tried"]))
    found: dict[BrokerIdentity, dict[str, tuple[int, int]]] = {}
    for address, view in said.views.items():
        for live in view.brokers:
            found.setdefault(live.identity, {})[address] = (live.age_ms, live.lease_ms)
    rows = [
        ServerRow(
            one.broker, one.broker_id, one.cluster, one.address,
            min(age for age, _ in heard.values()), max(lease for _, lease in heard.values()), tuple(heard),
            tuple(address for address in said.views if address not in heard),
        )
        for one, heard in found.items()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (row.cluster, row.broker, row.broker_id)), said


def brokers(console: Console, call: Call) -> Page:
    """Answer the list of servers."""
    rows, nameservers = server_rows(console)
    statistics = console.survey.ask(lambda master: master.statistics())
    values: dict[str, object] = {
        "servers": rows,
        "nameservers_asked": nameservers,
        "statistics": statistics,
        "look": console.observer.latest(),
        "gone": {
            name: one
            for name, one in console.survey.gone().items()
            if name not in {row.broker for row in rows}
        },
    }
    return Page("brokers.html", "Brokers", values, same=("rocketq cluster",))


def broker(console: Console, call: Call) -> Page:
    """Answer one broker."""
    name = call.names["broker"]
    rows, _ = server_rows(console)
    own = [row for row in rows if row.broker == name]
    gone = console.survey.gone().get(name)
    if not own and gone is None:
        raise NotFound("broker", name)
    statistics = console.survey.ask(lambda master: master.statistics() if master.broker == name else None)
    listings = console.survey.ask(lambda master: master.topics() if master.broker == name else None)
    listing = listings.found.get(name)
    replicas = console.admin.replicas.known_standings(name) if own else None
    values: dict[str, object] = {
        "name": name,
        "servers": own,
        "gone": gone,
        "facts": statistics.found.get(name),
        "why": statistics.unreachable.get(name, ""),
        "topics": None if listing is None else sorted(listing.topics, key=lambda each: each.name),
        "look": console.observer.latest(),
        "replicas": replicas if isinstance(replicas, GroupStandings) else None,
        # A lone broker answers that it has no replicas: there is nothing to show.
        "replicas_unknown": "" if replicas is None or isinstance(replicas, GroupStandings | NotFound)
        else str(replicas),
    }  # fmt: skip
    same = ("rocketq cluster", f"rocketq broker clock {name}", f"rocketq broker replicas {name}")
    return Page("broker.html", f"Broker {name}", values, same=same)


def plots(console: Console) -> dict[str, Any]:
    """Return the rates of the last hour, for the plots: by broker, at the same index as `seconds`."""
    history = console.observer.history()
    seconds = next((list(each.seconds) for each in history.values()), [])
    names = ("messages_in", "messages_out", "bytes_in", "bytes_out")
    return {
        "seconds": seconds,
        "brokers": {
            broker: {
                name: [None if one is None else round(getattr(one, name), 2) for one in each.rates]
                for name in names
            }
            for broker, each in history.items()
        },
    }
