"""The dead letters of a group, and sending chosen ones again."""

from __future__ import annotations

import itertools
from typing import Final

from rocketq.admin import browse
from rocketq.console.console import Call, Console, Page
from rocketq.dead_letters import DeadLetter, Resent, letter_of
from rocketq.errors import InvalidConfiguration
from rocketq.net.broker_api import BrokerApi
from rocketq.protocol.documents.send_backs import DeadLetterMarks
from rocketq.protocol.rules.reserved_names import check_user_group, dead_letter_topic

PAGE: Final = 100


def letters(console: Console, call: Call) -> Page:
    """Answer the newest dead letters of each broker."""
    return _page(console, call, [])


def resend(console: Console, call: Call) -> Page:
    """Send the chosen letters to their original topics again; answer what became of each."""
    name, chosen = call.names["group"], call.form.get("letter", [])
    if not chosen:
        raise InvalidConfiguration("letter", "", "no letter is chosen", hint="Go back, and choose some.")
    done = console.client.dead_letters(name).resend(chosen, again=call.text("again") == "1")
    return _page(console, call, list(done))


def _page(console: Console, call: Call, done: list[Resent]) -> Page:
    name = call.names["group"]
    check_user_group(name)
    topic = dead_letter_topic(name)

    def newest(master: BrokerApi) -> tuple[DeadLetterMarks, list[DeadLetter]]:
        marks = master.dead_letters(name)
        if marks.max <= marks.min:
            return marks, []
        first = max(marks.min, marks.max - PAGE)
        found = browse.read(master, topic, 0, first, marks.max - first)
        return marks, [each for each in (letter_of(one, marks) for one in found) if each is not None]

    answers = console.survey.ask(newest)
    rows = sorted(
        itertools.chain.from_iterable(found for _, found in answers.found.values()),
        key=lambda each: (-each.died_at_us, each.letter_id),
    )
    total = sum(marks.max - marks.min for marks, _ in answers.found.values())
    resent = sum(one.end - one.begin for marks, _ in answers.found.values() for one in marks.resent)
    values: dict[str, object] = {
        "group": name, "rows": rows, "total": total, "resent": resent, "answers": answers, "done": done,
        "size": PAGE,
    }  # fmt: skip
    same = (f"rocketq dlq list {name}", f"rocketq dlq resend {name} --all --dry-run")
    return Page("dead_letters.html", f"Dead letters of {name}", values, same=same, refreshes=False)
