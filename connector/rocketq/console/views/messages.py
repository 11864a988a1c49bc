"""Messages: searching them by key, id and time; one message with its way."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Final

from rocketq.console.console import Call, Console, Page
from rocketq.errors import InvalidConfiguration, RocketqError
from rocketq.errors.client_errors import TraceNotFound
from rocketq.message_query import FoundByKey
from rocketq.model import TimerId
from rocketq.protocol.rules.delivery_time import duration_ms
from rocketq.tracing.message_trace import MessageTrace

LIMIT: Final = 100


def find(console: Console, call: Call) -> Page:
    """Answer the search form, and what it finds."""
    by, topic, text = call.text("by") or "key", call.text("topic"), call.text("text")
    begin, end = call.text("begin"), call.text("end")
    answers = console.survey.ask(lambda master: master.topics())
    names = sorted({each.name for listing in answers.found.values() for each in listing.topics})
    values: dict[str, object] = {
        "by": by, "topic": topic, "text": text, "begin": begin, "end": end, "answers": answers,
        "names": names, "limit": LIMIT, "asked": False, "messages": [], "more": False, "notes": [],
        "failure": None,
    }  # fmt: skip
    if topic and (text or by == "time"):
        values["asked"] = True
        try:
            values |= _found(console, call, by, topic, text)
        except RocketqError as error:
            values["failure"] = error
    same = _same_command(by, topic or "TOPIC", text, begin or "15m")
    return Page("messages.html", "Messages", values, same=(same,), refreshes=False)


def message(console: Console, call: Call) -> Page:
    """Answer one message by the id of its place, with the way that its clients recorded."""
    given = call.text("id")
    if TimerId.parse(given) is not None:
        raise InvalidConfiguration(
            "id", given, "it is the id of a delayed message, which has no place yet",
            hint="Look at /delayed/message?id=… of this console.",
        )  # fmt: skip
    found = console.client.query.by_id(given)
    trace: MessageTrace | None = None
    why = ""
    try:
        # A page does not wait for the index: most messages have no trace.
        trace = console.client.trace(given, allow_missing=True, timeout_ms=0)
    except TraceNotFound:
        why = ""
    except RocketqError as error:
        why = error.message
    values: dict[str, object] = {
        "message": found, "trace": trace, "trace_failed": why,
        "properties": sorted((found.properties or {}).items()),
        "copies": [each for each in (trace.stored if trace else ()) if each.message_id != given],
    }  # fmt: skip
    same = (f"rocketq query id {given}", f"rocketq trace {given}")
    return Page("message.html", "Message", values, same=same, refreshes=False)


def _same_command(by: str, topic: str, text: str, begin: str) -> str:
    if by == "time":
        return f"rocketq query time {topic} --begin {begin}"
    if by == "key":
        return f"rocketq query key {topic} {text or 'KEY'}"
    # The id of a place names the topic itself.
    return (
        f"rocketq query id {text}"
        if text.count(":") == 3
        else f"rocketq query id {text or 'ID'} --topic {topic}"
    )


def _found(console: Console, call: Call, by: str, topic: str, text: str) -> dict[str, object]:
    query, now_us = console.client.query, console.clock.now_us()
    begin, end = moment_us("begin", call.text("begin"), now_us), moment_us("end", call.text("end"), now_us)
    if by == "time":
        since = now_us - 15 * 60 * 1_000_000 if begin is None else begin
        taken = list(itertools.islice(query.by_time(topic, since, end, allow_missing=True), LIMIT + 1))
        return {"messages": taken[:LIMIT], "more": len(taken) > LIMIT}
    if by == "id":
        if text.count(":") == 3:
            return {"messages": [query.by_id(text)]}
        return _by_key(query.by_unique_id(topic, text, begin=begin, end=end, limit=LIMIT, allow_missing=True))
    if by == "key":
        return _by_key(query.by_key(topic, text, begin=begin, end=end, limit=LIMIT, allow_missing=True))
    raise InvalidConfiguration("by", by[:40], "it is none of key, id, time")


def _by_key(found: FoundByKey) -> dict[str, object]:
    notes = [f"{name} is away and was not searched." for name in found.missing]
    notes += [
        f"{name} has {lag:,} bytes of log still to index: what was stored just now may be missing."
        for name, lag in found.lag_bytes.items()
        if lag
    ]
    notes += [
        f"{name} cannot read {len(ranges)} part(s) of its log, which may hold messages with this key."
        for name, ranges in found.uncovered.items()
    ]
    return {"messages": list(found.messages), "notes": notes, "more": len(found.messages) == LIMIT}


def moment_us(name: str, text: str, now_us: int) -> int | None:
    """Return a time in µs since 1970: `2026-11-20T08:00Z` (UTC without a zone), or `15m` for so long ago."""
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        try:
            return now_us - 1000 * duration_ms(text)
        except RocketqError:
            raise InvalidConfiguration(
                name, text[:40], "it is no time", hint="Write 2026-11-20T08:00Z, or 15m for so long ago."
            ) from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1_000_000)
