"""Exactly-once sinks: the list, and one with its runs, as each broker knows it."""

from __future__ import annotations

from rocketq.admin.sinks import summaries_of
from rocketq.console.console import Call, Console, Page
from rocketq.errors.sink_errors import SinkNotFound
from rocketq.net.broker_api import BrokerApi
from rocketq.protocol.documents.sinks import SinkDescription


def sinks(console: Console, call: Call) -> Page:
    """Answer every sink that a broker knows."""
    answers = console.survey.ask(lambda master: master.sinks())
    values: dict[str, object] = {"rows": summaries_of(answers.found.values()), "answers": answers}
    return Page("sinks.html", "Sinks", values, same=("rocketq sink list",))


def sink(console: Console, call: Call) -> Page:
    """Answer one sink: its decided batches, its current run, and what is staged or to be published."""
    name = call.names["sink"]

    def ask(master: BrokerApi) -> SinkDescription | None:
        try:
            return master.sink(name)
        except SinkNotFound:
            return None

    answers = console.survey.ask(ask)
    known = {broker: one for broker, one in answers.found.items() if one is not None}
    if not known and answers.complete and not answers.refused:
        raise SinkNotFound(name, "of this cluster")
    coordinator = next((one.coordinator for one in known.values()), "")
    values: dict[str, object] = {
        "sink": name, "known": known, "answers": answers, "coordinator": coordinator,
        "decides": known.get(coordinator),
    }  # fmt: skip
    return Page("sink.html", f"Sink {name}", values, same=(f"rocketq sink describe {name}",))
