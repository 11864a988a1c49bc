"""Live tail: the messages of a topic as they come.

The page asks for new rows every second, with a cursor: the offsets up to which it has seen each queue. So
the server keeps nothing between two calls, and any number of pages may be left open. Of a burst the newest
rows are shown, and the page says how many it skipped.
"""

from __future__ import annotations

from typing import Final

from rocketq.admin import browse
from rocketq.admin.browse import Newer
from rocketq.console.console import Call, Console, Page
from rocketq.errors import InvalidConfiguration, TopicNotFound
from rocketq.net.broker_api import BrokerApi

#: Rows that one answer shows; the page keeps a few hundred.
ROWS: Final = 100
#: Of one queue in one answer.
QUEUE_ROWS: Final = 50
#: The cursor is part of an address, so it must stay short.
QUEUES_MAX: Final = 512


def page(console: Console, call: Call) -> Page:
    """Answer the page, without rows: it shows what comes from now on."""
    topic = call.names["topic"]
    fresh, unreachable = _newer(console, topic, {})
    values: dict[str, object] = {
        "topic": topic,
        "cursor": write_cursor({name: one.ends for name, one in fresh.items()}),
        "rows": [],
        "skipped": 0,
        "unreachable": unreachable,
    }
    return Page(
        "tail.html",
        f"Live tail of {topic}",
        values,
        same=(f"rocketq consume {topic} --follow",),
        refreshes=False,
    )


def rows(console: Console, call: Call) -> Page:
    """Answer the rows that came after a cursor, newest first, and the cursor to go on from."""
    topic, known = call.names["topic"], read_cursor(call.text("cursor"))
    fresh, unreachable = _newer(console, topic, known)
    found = sorted(
        (message for one in fresh.values() for message in one.messages),
        key=lambda each: (-each.stored_at_us, each.queue.broker, each.queue.queue, -each.offset),
    )
    skipped = sum(one.skipped for one in fresh.values()) + max(0, len(found) - ROWS)
    values: dict[str, object] = {
        "topic": topic,
        "cursor": write_cursor(known | {name: one.ends for name, one in fresh.items()}),
        "rows": found[:ROWS],
        "skipped": skipped,
        "unreachable": unreachable,
    }
    return Page("tail_rows.html", topic, values, refreshes=False)


def write_cursor(ends: dict[str, tuple[int, ...]]) -> str:
    """Return a cursor: `broker=offset.offset~broker=…`, by queue id."""
    return "~".join(f"{name}={'.'.join(map(str, each))}" for name, each in sorted(ends.items()))


def read_cursor(text: str) -> dict[str, tuple[int, ...]]:
    """Return what a cursor says; raise InvalidConfiguration for a text that is none."""
    found: dict[str, tuple[int, ...]] = {}
    for part in text.split("~") if text else ():
        name, _, offsets = part.partition("=")
        each = offsets.split(".") if offsets else []
        if not all(one.isascii() and one.isdigit() and len(one) < 20 for one in each):
            raise InvalidConfiguration("cursor", text[:80], "it is no cursor", hint="Load the page again.")
        found[name] = tuple(map(int, each))
    return found


def _newer(
    console: Console, topic: str, known: dict[str, tuple[int, ...]]
) -> tuple[dict[str, Newer], dict[str, str]]:
    def ask(master: BrokerApi) -> Newer | None:
        try:
            return browse.newer(master, topic, known.get(master.broker), QUEUE_ROWS)
        except TopicNotFound:
            return None

    answers = console.survey.ask(ask)
    found = {name: one for name, one in answers.found.items() if one is not None}
    if not found and answers.complete and not answers.refused:
        raise TopicNotFound(topic, ", ".join(answers.found) or "(none is alive)")
    if sum(len(one.ends) for one in found.values()) > QUEUES_MAX:
        raise InvalidConfiguration(
            "topic", topic, f"it has more than {QUEUES_MAX} queues, too many to follow on a page",
            hint=f"rocketq consume {topic} --follow",
        )  # fmt: skip
    failed = {name: error.message for name, error in answers.refused.items()}
    return found, answers.unreachable | failed
