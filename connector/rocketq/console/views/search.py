"""The search field of every page: it goes to what was named, or lists what is like it."""

from __future__ import annotations

from rocketq.admin.groups import overviews_of
from rocketq.admin.sinks import summaries_of
from rocketq.console.console import Call, Console, Page
from rocketq.protocol.rules.reserved_names import is_reserved_topic

#: Results of one kind that are listed.
LISTED = 50


def search(console: Console, call: Call) -> Page:
    """Answer the topics, groups, sinks and brokers whose names contain a text, and where an id may be."""
    text = call.text("q")
    wanted = text.lower()
    listings = console.survey.ask(lambda master: (master.topics(), master.groups(), master.sinks()))
    found = listings.found
    topics = sorted({each.name for told, _, _ in found.values() for each in told.topics})
    groups = [each.group for each in overviews_of({name: told[1] for name, told in found.items()})]
    sinks = [each.sink for each in summaries_of(told[2] for told in found.values())]
    brokers = sorted(console.survey.live()[0])

    def like(names: list[str]) -> list[str]:
        near = [name for name in names if wanted and wanted in name.lower()]
        return sorted(near, key=lambda name: (name.lower() != wanted, name))[:LISTED]

    values: dict[str, object] = {
        "text": text,
        "topics": like(topics),
        "groups": like(groups),
        "sinks": like(sinks),
        "brokers": like(brokers),
        "is_place": text.count(":") == 3,
        "answers": listings,
        "all_topics": [name for name in topics if not is_reserved_topic(name)],
    }
    return Page("search.html", "Search", values, refreshes=False)
