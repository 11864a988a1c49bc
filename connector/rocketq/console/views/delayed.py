"""Delayed messages of a topic, the next first; one of them; cancelling it."""

from __future__ import annotations

import heapq
from typing import Final

from rocketq.console.console import Call, Console, Page
from rocketq.errors import TopicNotFound
from rocketq.model import DelayedMessage
from rocketq.net.broker_api import BrokerApi
from rocketq.protocol.rules.reserved_names import is_reserved_topic

LIMIT: Final = 100


def delayed(console: Console, call: Call) -> Page:
    """Answer the next messages of a topic that are not delivered yet."""
    topic = call.text("topic")
    listings = console.survey.ask(lambda master: master.topics())
    names = sorted({each.name for listing in listings.found.values() for each in listing.topics})
    rows: list[DelayedMessage] = []
    more = False
    answers = listings.unreachable
    if topic:

        def ask(master: BrokerApi) -> tuple[list[DelayedMessage], bool]:
            try:
                listing = master.timers(topic, limit=LIMIT)
            except TopicNotFound:
                return [], False
            return [
                each.message(topic, master.broker) for each in listing.timers
            ], listing.next_page is not None

        told = console.survey.ask(ask)
        answers = told.unreachable | {name: error.message for name, error in told.refused.items()}
        merged = heapq.merge(
            *(found for found, _ in told.found.values()), key=lambda one: (one.deliver_at_ms, one.timer_id)
        )
        rows = list(merged)
        more = len(rows) > LIMIT or any(more for _, more in told.found.values())
    values: dict[str, object] = {
        "topic": topic, "names": [name for name in names if not is_reserved_topic(name)],
        "rows": rows[:LIMIT], "more": more, "failed": answers, "limit": LIMIT,
        "waiting": console.observer.latest().total("delayed_messages"),
    }  # fmt: skip
    return Page("delayed.html", "Delayed messages", values, same=(f"rocketq timer list {topic or 'TOPIC'}",))


def message(console: Console, call: Call) -> Page:
    """Answer one delayed message, and what became of it."""
    return _page(call, console.client.timers.show(call.text("id")), done=False)


def cancel(console: Console, call: Call) -> Page:
    """Keep a delayed message from being delivered."""
    return _page(call, console.client.timers.cancel(call.text("id")), done=True)


def _page(call: Call, found: DelayedMessage, *, done: bool) -> Page:
    values: dict[str, object] = {
        "message": found, "done": done, "properties": sorted((found.properties or {}).items())
    }  # fmt: skip
    same = (f"rocketq timer show {found.timer_id}",)
    return Page("delayed_message.html", "Delayed message", values, same=same, refreshes=False)
