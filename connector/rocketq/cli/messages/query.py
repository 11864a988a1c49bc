"""`rocketq query id|offset|key|time`: looking messages up, without a group."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
import rich_click as click

from rocketq.cli.messages.json_lines import document, json_line
from rocketq.cli.terminal.completion import complete_topic
from rocketq.cli.terminal.connection import connect, nameservers_option
from rocketq.cli.terminal.output import output_option, say, show, show_one
from rocketq.cli.topics import Duration

if TYPE_CHECKING:
    from rocketq.message_query import FoundByKey
    from rocketq.model import StoredMessage

COLUMNS: Final = ("stored", "id", "key", "tag", "body")
#: How much of a key or body a table shows.
SHOWN_CHARACTERS: Final = 60


class Moment(click.ParamType[int]):
    """Reads `2026-11-20T08:00Z`, `15m` (that long ago), or µs since 1970; gives µs since 1970."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        if re.fullmatch(r"-?\d{1,18}", text):
            return int(text)
        if re.fullmatch(r"\d+[smhd]", text):
            return time.time_ns() // 1_000 - 1_000 * Duration().convert(text, param, ctx)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            self.fail(f"{text!r} is no time; write 2026-11-20T08:00Z, 15m (ago), or µs", param, ctx)
        from rocketq.message_query import microseconds

        # Without a zone a person means the clock on the wall.
        return microseconds("time", moment.astimezone(UTC))


def interval_options(command: Any) -> Any:
    """Add `--begin` and `--end`, both included."""
    end = click.option("--end", type=Moment(), help="Stored at or before.  [default: now]")
    return click.option(
        "--begin", type=Moment(), help="Stored at or after: 2026-11-20T08:00Z, 15m (ago), or µs since 1970."
    )(end(command))


def allow_missing_option(command: Any) -> Any:
    """Add `--allow-missing`: search without the brokers that left the route."""
    return click.option(
        "--allow-missing", is_flag=True, help="Search without the topic's brokers that are away."
    )(command)


@click.group()
def query() -> None:
    """Look messages up by id, offset, key or time."""


@query.command("id")
@click.argument("message_id")
@click.option("--topic", help="The topic of a message whose own id is given.")
@allow_missing_option
@nameservers_option
@output_option
def by_id(message_id: str, topic: str | None, allow_missing: bool, nameservers: str, output: str) -> None:
    """Show the message with this id: that of its place, broker:topic:queue:offset, or its own.

    A message's own id is its property UNIQ_KEY. With --topic, all messages of the topic that have this id are
    shown: copies, which repeated sends made, have it too.

    \b
    Examples:
      rocketq query id broker-a:orders:3:17
      rocketq query id broker-a:orders:3:17 -o json | jq -r .body
      rocketq query id 9B1F00C4000A5F19A7E3B1C2D00000000001 --topic orders
    """
    if allow_missing and topic is None:
        raise click.UsageError("--allow-missing goes with --topic.")
    with connect(nameservers) as client:
        if topic is None:
            show_one(document(client.query.by_id(message_id)), output)
            return
        found = client.query.by_unique_id(topic, message_id, allow_missing=allow_missing)
    _show(found.messages, output)
    say(f"{len(found.messages)} message(s)")
    _warn_of_gaps(found)


@query.command("offset")
@click.argument("topic", shell_complete=complete_topic)
@click.argument("broker")
@click.argument("queue", type=click.IntRange(min=0))
@click.argument("offset", type=click.IntRange(min=0))
@click.option(
    "-n", "--count", type=click.IntRange(1, 1_000), default=1, show_default=True, help="Messages at most."
)
@nameservers_option
@output_option
def by_offset(
    topic: str, broker: str, queue: int, offset: int, count: int, nameservers: str, output: str
) -> None:
    """Show the message at an offset of a queue, and with -n those that follow it.

    \b
    Examples:
      rocketq query offset orders broker-a 3 17
      rocketq query offset orders broker-a 3 0 -n 10
      rocketq query offset orders broker-a 3 17 -o json | jq -r '.[].body'
    """
    from rocketq.model import MessageQueue, message_id

    place = MessageQueue(topic, broker, queue)
    with connect(nameservers) as client:
        found = [client.query.by_id(message_id(place, offset))]
        end = client.describe_topic(topic)[broker].queues[queue].max if count > 1 else offset + 1
        rest = range(offset + 1, min(offset + count, end))
        found += [client.query.by_id(message_id(place, each)) for each in rest]
    _show(found, output)
    say(f"{len(found)} message(s)")


@query.command("key")
@click.argument("topic", shell_complete=complete_topic)
@click.argument("key")
@interval_options
@click.option(
    "-n", "--count", type=click.IntRange(1, 1_000), default=64, show_default=True, help="Messages at most."
)
@allow_missing_option
@nameservers_option
@output_option
def by_key(
    topic: str,
    key: str,
    begin: int | None,
    end: int | None,
    count: int,
    allow_missing: bool,
    nameservers: str,
    output: str,
) -> None:
    """Show the messages with this key, the newest first.

    -o json is an object: the messages, and what may be missing (complete, lag_bytes, uncovered, missing).

    \b
    Examples:
      rocketq query key orders o-1
      rocketq query key orders o-1 --begin 2h -o jsonl
      rocketq query key orders o-1 -o json | jq .complete
    """
    with connect(nameservers) as client:
        found = client.query.by_key(
            topic, key, begin=begin, end=end, limit=count, allow_missing=allow_missing
        )
    if output == "json":
        show_one(_found_document(found), output)
    else:
        _show(found.messages, output)
    say(f"{len(found.messages)} message(s)")
    _warn_of_gaps(found)


def _found_document(found: FoundByKey) -> dict[str, Any]:
    """Return the result of a search by key as one JSON object."""
    return {
        "messages": [document(message) for message in found.messages],
        "complete": found.complete,
        "lag_bytes": found.lag_bytes,
        "uncovered": {
            broker: [msgspec.to_builtins(one) for one in ranges] for broker, ranges in found.uncovered.items()
        },
        "missing": list(found.missing),
    }


def _warn_of_gaps(found: FoundByKey) -> None:
    """Say on stderr which messages with the key the result may lack."""
    for broker, ranges in found.uncovered.items():
        for one in ranges:
            queues = ", ".join(f"queue {q.queue} [{q.first}, {q.end})" for q in one.queues or ())
            say(
                f"WARNING: {broker} cannot read log offsets [{one.log_begin}, {one.log_end}), which may hold "
                f"messages with this key: {queues or 'which of the topic is not known'}"
            )
    if found.missing:
        say(f"WARNING: not searched, because they are away: {', '.join(found.missing)}")
    for broker, lag_bytes in found.lag_bytes.items():
        if lag_bytes:
            say(
                f"{broker} has {lag_bytes} bytes of log still to index: what was sent just now may be missing"
            )


@query.command("time")
@click.argument("topic", shell_complete=complete_topic)
@interval_options
@click.option(
    "-n", "--count", type=click.IntRange(min=1), default=64, show_default=True, help="Messages at most."
)
@allow_missing_option
@nameservers_option
@output_option
def by_time(
    topic: str,
    begin: int | None,
    end: int | None,
    count: int,
    allow_missing: bool,
    nameservers: str,
    output: str,
) -> None:
    """Show the messages stored in an interval, the oldest first.

    \b
    Examples:
      rocketq query time orders --begin 15m
      rocketq query time orders --begin 2026-11-20T08:00Z --end 2026-11-20T09:00Z -n 1000 -o jsonl
    """
    with connect(nameservers) as client:
        found = client.query.by_time(
            topic, begin or 0, end, page_messages=min(count, 200), allow_missing=allow_missing
        )
        shown = _show(itertools.islice(found, count), output)
        more = shown == count and next(found, None) is not None
    say(f"{shown} message(s)" + ("; there are more: raise -n" if more else ""))


def _show(messages: Iterable[StoredMessage], output: str) -> int:
    """Write messages in the asked form, `jsonl` while they arrive; return how many there were."""
    if output == "jsonl":
        count = 0
        for message in messages:
            click.echo(json_line(document(message)))
            count += 1
        return count
    rows = [_row(message) if output == "table" else document(message) for message in messages]
    show(rows, output, COLUMNS)
    return len(rows)


def _row(message: StoredMessage) -> dict[str, Any]:
    stored = datetime.fromtimestamp(message.stored_at_us / 1e6, UTC)
    return {
        "stored": stored.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "id": message.message_id,
        "key": None if message.key is None else _shown(message.key),
        "tag": message.tag,
        "body": _shown(message.body),
    }


def _shown(value: bytes) -> str:
    """Return the beginning of a value on one line; what is no text is shown as Python does."""
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        text = repr(value)[2:-1]
    plain = "".join(each if each.isprintable() else "·" for each in text[: SHOWN_CHARACTERS + 1])
    return plain if len(plain) <= SHOWN_CHARACTERS else plain[:SHOWN_CHARACTERS] + "…"
