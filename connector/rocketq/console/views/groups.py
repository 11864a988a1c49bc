"""Consumer groups: the list by lag, one group, and moving its progress after a preview."""

from __future__ import annotations

from typing import Final

from rocketq.admin.groups import GroupOverview, QueueMove, members_of, overviews_of, progress_of
from rocketq.admin.survey import Answers
from rocketq.console.console import Call, Console, Page
from rocketq.console.views.messages import moment_us
from rocketq.errors import InvalidConfiguration, RocketqError
from rocketq.errors.group_errors import GroupNotFound
from rocketq.net.broker_api import BrokerApi
from rocketq.protocol.documents.groups import GroupDescription, ResetTarget

PAGE: Final = 100


def groups(console: Console, call: Call) -> Page:
    """Answer a page of the groups whose names contain a text; those that are furthest behind come first."""
    text, first = call.text("q"), call.number("first", 0)
    answers = console.survey.ask(lambda master: master.groups())
    look = console.observer.latest()
    lags = look.lags()
    found = [each for each in overviews_of(answers.found) if text.lower() in each.group.lower()]

    def order(each: GroupOverview) -> tuple[int, str]:
        return (-lags[each.group].messages if each.group in lags else 0, each.group)

    found.sort(key=order)
    letters: dict[str, int] = {}
    for sample in look.samples.values():
        for group, number in sample.letters.items():
            letters[group] = letters.get(group, 0) + number
    values: dict[str, object] = {
        "rows": found[first : first + PAGE], "total": len(found), "first": first, "size": PAGE, "text": text,
        "answers": answers, "lags": lags, "letters": letters, "look": look,
    }  # fmt: skip
    return Page("groups.html", "Groups", values, same=("rocketq group list",))


def group(console: Console, call: Call) -> Page:
    """Answer one group as all brokers together know it."""
    name = call.names["group"]
    producers = console.survey.ask(lambda master: master.producers(name))
    are_producers = any(told.members for told in producers.found.values())
    known, answers = _described(console, name, may_be_missing=are_producers)
    progress = progress_of(known)
    lags = [each.lag for each in progress]
    ages = [each.lag_ms for each in progress if each.lag_ms is not None]
    values: dict[str, object] = {
        "group": name,
        "known": known,
        "answers": answers,
        "progress": progress,
        "members": members_of(known),
        "lag": None if None in lags or not answers.complete else sum(each or 0 for each in lags),
        "lag_known": sum(each or 0 for each in lags),
        "age_ms": max(ages) if ages else None,
        "letters": sum(each.dead_letters for each in known.values()),
        "settings": next(iter(known.values())).settings if known else None,
        "kind": str(next(iter(known.values())).kind) if known else "",
        "topics": sorted({each.topic for each in progress}),
        "producers": sorted({each.client_id for told in producers.found.values() for each in told.members}),
    }
    return Page("group.html", f"Group {name}", values, same=(f"rocketq group describe {name}",))


def reset_preview(console: Console, call: Call) -> Page:
    """Answer what a reset would do to each queue. Nothing is changed."""
    return _reset_page(console, call, dry_run=True)


def reset(console: Console, call: Call) -> Page:
    """Put the group's progress elsewhere, if its name was typed; answer what was done."""
    name = call.names["group"]
    if call.text("confirm") != name:
        raise InvalidConfiguration(
            "confirm", call.text("confirm")[:80], f"it is not the name of the group, {name}",
            hint="Go back, and type the name to confirm.",
        )  # fmt: skip
    return _reset_page(console, call, dry_run=False)


def _reset_page(console: Console, call: Call, *, dry_run: bool) -> Page:
    name, topic, to = call.names["group"], call.text("topic"), call.text("to") or "latest"
    force = call.text("force") == "1"
    moves: list[QueueMove] = []
    failure: RocketqError | None = None
    if topic:
        try:
            moves = _moved(console, call, name, topic, to, dry_run=dry_run, force=force or dry_run)
        except RocketqError as error:
            if not dry_run:
                raise
            failure = error
    known, answers = _described(console, name)
    values: dict[str, object] = {
        "group": name, "topic": topic, "to": to, "offset": call.text("offset"), "time": call.text("time"),
        "force": force, "moves": moves, "done": not dry_run, "failure": failure, "answers": answers,
        "topics": sorted({each.topic for each in progress_of(known)}),
        "members": members_of(known), "targets": [str(each) for each in ResetTarget],
    }  # fmt: skip
    where = {"offset": f"--offset {call.text('offset')}", "time": f"--time {call.text('time')}"}
    same = f"rocketq group reset {name} --topic {topic or 'TOPIC'} {where.get(to, f'--to {to}')} --dry-run"
    return Page("reset.html", f"Reset {name}", values, same=(same,), refreshes=False)


def _moved(
    console: Console, call: Call, name: str, topic: str, to: str, *, dry_run: bool, force: bool
) -> list[QueueMove]:
    offset = call.number("offset", 0) if to == "offset" else None
    at_us = moment_us("time", call.text("time"), console.clock.now_us()) if to == "time" else None
    if to == "time" and at_us is None:
        raise InvalidConfiguration("time", "", "it is missing", hint="Write 2026-11-20T08:00Z, or 15m.")
    return console.admin.groups.reset(
        name, topic, to, offset=offset, at_us=at_us, dry_run=dry_run, force=force
    )  # fmt: skip


def _described(
    console: Console, name: str, *, may_be_missing: bool = False
) -> tuple[dict[str, GroupDescription], Answers[GroupDescription | None]]:
    """Return the group as each broker has it; raise GroupNotFound if none has it and all answered."""

    def ask(master: BrokerApi) -> GroupDescription | None:
        try:
            return master.group(name)
        except GroupNotFound:
            return None

    answers = console.survey.ask(ask)
    known = {broker: one for broker, one in answers.found.items() if one is not None}
    if not (known or may_be_missing or answers.refused) and answers.complete:
        raise GroupNotFound(name, ", ".join(answers.found) or "(none is alive)")
    return known, answers
