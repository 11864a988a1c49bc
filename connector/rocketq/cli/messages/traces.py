"""`rocketq trace`: the way of one message."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import rich_click as click

from rocketq.cli.messages.json_lines import document
from rocketq.cli.messages.query import allow_missing_option
from rocketq.cli.terminal.connection import connect, nameservers_option
from rocketq.cli.terminal.output import output_option, say, show, show_one

if TYPE_CHECKING:
    from rocketq.model import StoredMessage
    from rocketq.tracing.message_trace import Handling, MessageTrace
    from rocketq.tracing.records import TraceRecord


@click.command()
@click.argument("message_id")
@allow_missing_option
@nameservers_option
@output_option
def trace(message_id: str, allow_missing: bool, nameservers: str, output: str) -> None:
    """Show the way of a message: who sent it, where it is stored, and who received it with which outcome.

    The id is the message's own, or that of its place or of its transaction. Clients record messages if they
    are told to: Client(trace=True).

    \b
    Examples:
      rocketq trace broker-a:orders:3:17
      rocketq trace 9B1F00C4000A5F19A7E3B1C2D00000000001
      rocketq trace broker-a:orders:3:17 -o json | jq -r '.handlings[].outcome'
      rocketq trace broker-a:orders:3:17 -o jsonl
    """
    with connect(nameservers) as client:
        found = client.trace(message_id, allow_missing=allow_missing)
    if output == "json":
        show_one(_document(found), output)
    else:
        show(_events(found), output)
    say(f"{len(found.attempts)} attempt(s) to send it, handed out {len(found.handlings)} time(s)")
    if not found.complete:
        say("WARNING: there may be more: records are not indexed yet, or brokers could not be asked")


def _events(found: MessageTrace) -> list[dict[str, Any]]:
    """Return what happened as rows, in the order of time."""
    events = [
        *(_sent(each) for each in found.attempts),
        *(_decided(each) for each in found.decisions),
        *(_stored(each) for each in found.stored),
        *(row for each in found.handlings for row in _handled(each)),
    ]
    events.sort(key=lambda event: event[0])
    return [{"at": _time(at_us), **row} for at_us, row in events]


def _sent(each: TraceRecord) -> tuple[int, dict[str, Any]]:
    place = each.message_id or each.broker
    return each.at_us, _row("sent", each.client_id, None, place, each.attempt, each.elapsed_ms, each.outcome)


def _decided(each: TraceRecord) -> tuple[int, dict[str, Any]]:
    """Return the row of what a producer said of the transaction; an error says that it is not confirmed."""
    event = "decided" if each.check is None else "checked"
    outcome = each.outcome if each.error is None else f"{each.outcome}, not confirmed"
    common = (each.client_id, each.group, each.broker, each.check)
    return each.at_us, _row(event, *common, each.elapsed_ms, outcome)


def _stored(each: StoredMessage) -> tuple[int, dict[str, Any]]:
    return each.stored_at_us, _row("stored", each.queue.broker, None, each.message_id, None, None, None)


def _handled(each: Handling) -> list[tuple[int, dict[str, Any]]]:
    common = (each.client_id, each.group, each.message_id, each.attempt)
    rows = [(each.received_at_us, _row("received", *common, None, None))]
    if each.outcome is not None:
        ended_us = each.received_at_us + 1_000 * (each.elapsed_ms or 0)
        rows.append((ended_us, _row("handled", *common, each.elapsed_ms, each.outcome)))
    return rows


def _row(
    event: str,
    by: str,
    group: str | None,
    place: str,
    attempt: int | None,
    elapsed_ms: int | None,
    outcome: str | None,
) -> dict[str, Any]:
    return {
        "event": event,
        "by": by,
        "group": group,
        "place": place,
        "attempt": attempt,
        "elapsed_ms": elapsed_ms,
        "outcome": outcome,
    }


def _document(found: MessageTrace) -> dict[str, Any]:
    return {
        "topic": found.topic,
        "unique_id": found.unique_id,
        "message_ids": list(found.message_ids),
        "complete": found.complete,
        "attempts": [_attempt(each) for each in found.attempts],
        "stored": [document(each) for each in found.stored],
        "decisions": [_decision(each) for each in found.decisions],
        "handlings": [
            {**asdict(each), "received_at": _time(each.received_at_us)} for each in found.handlings
        ],
    }


def _attempt(each: TraceRecord) -> dict[str, Any]:
    return {
        "at": _time(each.at_us),
        "at_us": each.at_us,
        "client_id": each.client_id,
        "broker": each.broker,
        "message_id": each.message_id,
        "attempt": each.attempt,
        "elapsed_ms": each.elapsed_ms,
        "outcome": each.outcome,
        "error": each.error,
        "group": each.group,
        "transaction": each.transaction,
        "key": each.key,
        "tag": each.tag,
        "body_bytes": each.body_bytes,
    }


def _decision(each: TraceRecord) -> dict[str, Any]:
    return {
        "at": _time(each.at_us),
        "at_us": each.at_us,
        "client_id": each.client_id,
        "group": each.group,
        "broker": each.broker,
        "transaction": each.transaction,
        "check": each.check,
        "elapsed_ms": each.elapsed_ms,
        "outcome": each.outcome,
        "error": each.error,
    }


def _time(at_us: int) -> str:
    at = datetime.fromtimestamp(at_us / 1e6, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
