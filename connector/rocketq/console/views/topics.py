"""Topics: the list, and one topic with its newest messages, queues, groups and settings."""

from __future__ import annotations

from dataclasses import dataclass

from rocketq.admin import browse
from rocketq.admin.survey import Answers
from rocketq.console.console import Call, Console, Page
from rocketq.errors import TopicNotFound
from rocketq.model import Perm, QueueOffsets, StoredMessage, TopicConfig
from rocketq.net.broker_api import BrokerApi
from rocketq.protocol.documents.broker import TopicDescription
from rocketq.protocol.rules.reserved_names import is_reserved_topic

#: Topics, and messages, of one page.
PAGE = 100
MESSAGES = 25
#: In so many queues of a broker the newest messages are looked for; the others have pages of their own.
QUEUES_READ = 32


@dataclass(frozen=True, slots=True)
class TopicRow:
    """One topic of the list; `queues` over all brokers, `rate` None while it is not known."""

    name: str
    brokers: tuple[str, ...]
    away: tuple[str, ...]
    queues: int
    perm: str
    is_system: bool
    rate: float | None


def topics(console: Console, call: Call) -> Page:
    """Answer a page of the topics whose names contain a text."""
    text, first = call.text("q").lower(), call.number("first", 0)
    with_system = call.text("system") == "1"
    answers = console.survey.ask(lambda master: master.topics())
    look = console.observer.latest()
    held: dict[str, dict[str, TopicConfig]] = {}
    for broker, listing in answers.found.items():
        for config in listing.topics:
            held.setdefault(config.name, {})[broker] = config
    rows = [
        _row(name, held[name], look.topic_rates.get(name, 0.0) if look.rates and look.complete else None)
        for name in sorted(held)
    ]
    chosen = [row for row in rows if text in row.name.lower() and (with_system or not row.is_system)]
    hidden = sum(1 for row in rows if row.is_system) if not with_system else 0
    values: dict[str, object] = {
        "rows": chosen[first : first + PAGE],
        "total": len(chosen),
        "hidden": hidden,
        "first": first,
        "size": PAGE,
        "text": call.text("q"),
        "with_system": with_system,
        "answers": answers,
    }
    return Page("topics.html", "Topics", values, same=("rocketq topic list",))


def topic(console: Console, call: Call) -> Page:
    """Answer one topic: its newest messages, or those of one queue; its queues, groups and settings."""
    name = call.names["topic"]
    described = console.survey.ask(lambda master: _described(master, name))
    found = {broker: one for broker, one in described.found.items() if one is not None}
    if not found and described.complete:
        raise TopicNotFound(name, ", ".join(described.found) or "(none is alive)")
    broker, queue = call.text("broker"), call.text("queue")
    shown = _messages(console, call, name, found)
    groups = console.survey.ask(
        lambda master: [each for each in master.groups().groups if name in each.topics]
    )
    record = {other for one in found.values() for other in one.config.brokers}
    values: dict[str, object] = {
        "topic": name,
        "found": found,
        "described": described,
        "away": sorted(record - found.keys() - described.unreachable.keys()),
        "shown": shown,
        "broker": broker,
        "queue": queue,
        "groups": sorted({each.group for told in groups.found.values() for each in told}),
        "look": console.observer.latest(),
        "size": MESSAGES,
        "perms": {other: perm_text(one.config.perm) for other, one in found.items()},
        "is_system": is_reserved_topic(name),
        "queues_read": QUEUES_READ,
    }
    return Page("topic.html", f"Topic {name}", values, same=(f"rocketq topic describe {name}",))


@dataclass(frozen=True, slots=True)
class Shown:
    """The messages that a page shows, and what of them it could not read.

    `first` is the offset that a page of one queue begins at; None: the newest of all queues, newest first.
    """

    messages: tuple[StoredMessage, ...]
    failed: dict[str, str]
    first: int | None = None
    extent: QueueOffsets | None = None
    left_out: int = 0


def _messages(console: Console, call: Call, name: str, found: dict[str, TopicDescription]) -> Shown:
    broker, queue = call.text("broker"), call.number("queue", 0)
    if broker:
        one = found.get(broker)
        if one is None or queue >= len(one.queues):
            return Shown((), {broker: f"it has no queue {queue} of this topic, or does not answer"})
        extent = one.queues[queue]
        last_page = max(extent.min, extent.max - MESSAGES)
        first = max(extent.min, min(call.number("offset", last_page), extent.max))
        answer = console.survey.ask(
            lambda master: (
                browse.read(master, name, queue, first, MESSAGES) if master.broker == broker else []
            )
        )
        return Shown(tuple(answer.found.get(broker, ())), _failures(answer), first, extent)

    def newest(master: BrokerApi) -> list[StoredMessage]:
        one = found.get(master.broker)
        if one is None or not one.config.perm & Perm.READ:
            return []
        read = dict(list(enumerate(one.queues))[:QUEUES_READ])
        return browse.newest(master, name, read, MESSAGES)

    answers = console.survey.ask(newest)
    merged = [message for told in answers.found.values() for message in told]
    merged.sort(key=lambda each: (-each.stored_at_us, each.queue.broker, each.queue.queue, -each.offset))
    left_out = sum(max(0, len(one.queues) - QUEUES_READ) for one in found.values())
    return Shown(tuple(merged[:MESSAGES]), _failures(answers), left_out=left_out)


def _failures(answers: Answers[list[StoredMessage]]) -> dict[str, str]:
    return answers.unreachable | {name: error.message for name, error in answers.refused.items()}


def _described(master: BrokerApi, name: str) -> TopicDescription | None:
    try:
        return master.topic(name)
    except TopicNotFound:
        return None


def perm_text(perm: int) -> str:
    """Return what a topic admits, in words."""
    return {6: "read, write", 4: "read only", 2: "write only", 0: "closed"}.get(perm, str(perm))


def _row(name: str, held: dict[str, TopicConfig], rate: float | None) -> TopicRow:
    record = {other for config in held.values() for other in config.brokers}
    perms = sorted({perm_text(config.perm) for config in held.values()})
    return TopicRow(
        name, tuple(held), tuple(sorted(record - held.keys())), sum(each.queues for each in held.values()),
        " / ".join(perms), is_reserved_topic(name), rate,
    )  # fmt: skip
