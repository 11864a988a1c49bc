"""The first page: is the cluster healthy, who lags, what is stuck?"""

from __future__ import annotations

from collections.abc import Iterable

from rocketq.admin.groups import overviews_of
from rocketq.console.console import Call, Console, Page
from rocketq.console.health import Facts, problems
from rocketq.console.views.brokers import server_rows
from rocketq.protocol.documents.broker import TopicListing

#: Groups that the first page lists.
TOP_GROUPS = 8


def overview(console: Console, call: Call) -> Page:
    """Answer the first page."""
    rows, nameservers = server_rows(console)
    statistics = console.survey.ask(lambda master: master.statistics())
    groups = console.survey.ask(lambda master: master.groups())
    listings = console.survey.ask(lambda master: master.topics())
    look = console.observer.latest()
    known = tuple(overviews_of(groups.found))
    away = away_by_record(listings.found.values(), {row.broker for row in rows})
    facts = Facts(
        nameservers_down=nameservers.unreachable,
        nameservers=statistics.nameservers,
        statistics=statistics,
        away=away,
        groups=known,
        observation=look,
    )
    lags = look.lags()
    behind = sorted(
        known, key=lambda each: (-lags[each.group].messages if each.group in lags else 0, each.group)
    )
    values: dict[str, object] = {
        "problems": problems(facts),
        "servers": rows,
        "statistics": statistics,
        "nameservers_asked": nameservers,
        "away": away,
        "look": look,
        "lags": lags,
        "groups": behind[:TOP_GROUPS],
        "group_count": len(known),
        "topic_count": len({each.name for listing in listings.found.values() for each in listing.topics}),
        "totals": _totals(console),
    }
    return Page("overview.html", "Overview", values, same=("rocketq cluster", "rocketq group list"))


def away_by_record(listings: Iterable[TopicListing], registered: set[str]) -> dict[str, int]:
    """Return the brokers that topics name by their record and that are not registered: how many topics do."""
    named: dict[str, set[str]] = {}
    for listing in listings:
        for config in listing.topics:
            for broker in config.brokers:
                if broker not in registered:
                    named.setdefault(broker, set()).add(config.name)
    return {broker: len(topics) for broker, topics in sorted(named.items())}


def _totals(console: Console) -> dict[str, float | None]:
    look = console.observer.latest()
    if not look.rates:
        return dict.fromkeys(("messages_in", "messages_out", "bytes_in", "bytes_out"))
    return {
        "messages_in": sum(each.messages_in for each in look.rates.values()),
        "messages_out": sum(each.messages_out for each in look.rates.values()),
        "bytes_in": sum(each.bytes_in for each in look.rates.values()),
        "bytes_out": sum(each.bytes_out for each in look.rates.values()),
    }
