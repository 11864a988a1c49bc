"""What needs an operator, decided from what the brokers say; pure.

The first page shows these lines. Each names what is wrong, and links to the page that tells more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from rocketq.admin.groups import GroupOverview
from rocketq.admin.survey import Answers
from rocketq.console.formats import duration
from rocketq.console.observer import Observation
from rocketq.protocol.documents.broker import BrokerStatistics

#: A group whose oldest unread message is older than this lags.
LAG_AGE_MS: Final = 60_000
#: Less than this share of a disk free: the broker will soon refuse messages.
DISK_FREE_LEAST: Final = 0.1


class Level(StrEnum):
    """How urgent a line is: messages cannot flow, or they soon may not."""

    CRITICAL = "critical"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Problem:
    """One line of the first page; `link` are the parts of the path that tells more."""

    level: Level
    what: str
    why: str
    link: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """What the decision is made of. `away` are brokers that topics name and nobody registers."""

    nameservers_down: dict[str, str] = field(hash=False)
    nameservers: str
    statistics: Answers[BrokerStatistics]
    away: dict[str, int] = field(hash=False)
    groups: tuple[GroupOverview, ...]
    observation: Observation


def problems(facts: Facts) -> list[Problem]:
    """Return what needs an operator, the most urgent first."""
    found = [*_servers(facts), *_brokers(facts), *_troubles(facts), *_groups(facts), *_stuck(facts)]
    return sorted(found, key=lambda each: each.level is not Level.CRITICAL)


def _servers(facts: Facts) -> Iterator[Problem]:
    if facts.nameservers:
        yield Problem(
            Level.CRITICAL, "No NameServer answers",
            f"{facts.nameservers} Clients go on with the routes that they know; new ones cannot start.",
            ("brokers",),
        )  # fmt: skip
    else:
        for address, why in facts.nameservers_down.items():
            yield Problem(Level.WARNING, f"NameServer {address} does not answer", why, ("brokers",))
    if not (facts.statistics.found or facts.statistics.unreachable or facts.statistics.refused):
        yield Problem(
            Level.CRITICAL, "No broker is registered",
            "Start one: rocketq broker run --name broker-a --data-dir data/a", ("brokers",),
        )  # fmt: skip
    for name, topics in facts.away.items():
        yield Problem(
            Level.CRITICAL, f"Broker {name} is away",
            _many(topics, "topic is", "topics are") + " on it by their record, and its lease has ended.",
            ("brokers",),
        )  # fmt: skip


def _brokers(facts: Facts) -> Iterator[Problem]:
    for name, why in facts.statistics.unreachable.items():
        yield Problem(Level.CRITICAL, f"Broker {name} does not answer", why, ("brokers",))
    for name, each in facts.statistics.found.items():
        where = ("brokers", name)
        if each.draining:
            yield Problem(Level.WARNING, f"Broker {name} drains", "It takes no new messages.", where)
        if each.disk_total_bytes and each.disk_free_bytes < DISK_FREE_LEAST * each.disk_total_bytes:
            share = 100 * each.disk_free_bytes / each.disk_total_bytes
            yield Problem(
                Level.WARNING, f"The disk of {name} is nearly full", f"{share:.0f} % of it is free.", where
            )
        if each.clock_doubt:
            yield Problem(
                Level.WARNING, f"Broker {name} doubts its wall clock",
                f"It deletes nothing by age. If it is right: rocketq broker clock {name} --agree", where,
            )  # fmt: skip
        if each.index_holes:
            yield Problem(
                Level.WARNING, f"Parts of the log of {name} cannot be read",
                f"The key index met {each.index_holes}. See docs/salvage.md.", where,
            )  # fmt: skip


def _troubles(facts: Facts) -> Iterator[Problem]:
    for name, sample in facts.observation.samples.items():
        if sample.gauges.get("troubles"):
            yield Problem(
                Level.WARNING, f"Background work fails on {name}",
                "GET /readyz of the broker says which task, and why.", ("brokers", name),
            )  # fmt: skip


def _groups(facts: Facts) -> Iterator[Problem]:
    members = {each.group: each.members for each in facts.groups}
    kinds = {each.group: str(each.kind) for each in facts.groups}
    for group, lag in sorted(facts.observation.lags().items(), key=lambda each: -each[1].messages):
        if lag.messages <= 0:
            continue
        where = ("groups", group)
        waiting = _many(lag.messages, "message waits", "messages wait")
        oldest = "" if lag.age_ms is None else f", the oldest for {duration(lag.age_ms)}"
        is_old = lag.age_ms is None or lag.age_ms >= LAG_AGE_MS
        if is_old and members.get(group) == 0 and kinds.get(group) != "spark":
            yield Problem(
                Level.WARNING,
                f"Group {group} has no member",
                f"{waiting}{oldest}, and nobody consumes.",
                where,
            )
        elif is_old:
            yield Problem(Level.WARNING, f"Group {group} lags", f"{waiting}{oldest}.", where)


def _stuck(facts: Facts) -> Iterator[Problem]:
    look = facts.observation
    parked, pending = look.total("parked_transactions"), look.total("pending_batches")
    if parked:
        yield Problem(
            Level.WARNING, _many(parked, "transaction waits", "transactions wait") + " for a decision",
            "Their checks are over, and no producer decided: commit or roll them back.", ("transactions",),
        )  # fmt: skip
    if pending:
        yield Problem(
            Level.WARNING,
            _many(pending, "batch of a sink is", "batches of sinks are") + " not published everywhere",
            "A participant has yet to publish its part.", ("sinks",),
        )  # fmt: skip
    letters: dict[str, int] = {}
    for sample in look.samples.values():
        for group, number in sample.letters.items():
            letters[group] = letters.get(group, 0) + number
    for group, number in sorted(letters.items()):
        if number:
            yield Problem(
                Level.WARNING, f"Group {group} has new dead letters",
                f"{number:,} since its brokers were started. Mend the cause, then send them again.",
                ("groups", group, "dead-letters"),
            )  # fmt: skip


def _many(number: int, one: str, more: str) -> str:
    return f"{number:,} {one if number == 1 else more}"
