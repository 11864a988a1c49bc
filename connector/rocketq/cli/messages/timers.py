"""`rocketq timer list|show|cancel`: delayed messages that are not delivered yet."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import rich_click as click

from rocketq.cli.terminal.completion import complete_topic
from rocketq.cli.terminal.connection import connect, nameservers_option
from rocketq.cli.terminal.output import output_option, say, show, show_one

if TYPE_CHECKING:
    from rocketq.model import DelayedMessage

LIST_COLUMNS: Final = ("deliver_at", "timer_id", "key", "tag")


@click.group()
def timer() -> None:
    """Look at delayed messages, and cancel them."""


@timer.command("list")
@click.argument("topic", shell_complete=complete_topic)
@click.option(
    "-n", "--count", type=click.IntRange(min=1), default=100, show_default=True, help="Messages at most."
)
@nameservers_option
@output_option
def list_timers(topic: str, count: int, nameservers: str, output: str) -> None:
    """List the delayed messages of a topic that are still to be delivered, the next first.

    \b
    Examples:
      rocketq timer list orders
      rocketq timer list orders -n 1000 -o jsonl | jq -r .timer_id
    """
    with connect(nameservers) as client:
        found = client.timers.list(topic, page_messages=min(count, 500))
        messages = list(itertools.islice(found, count))
        more = next(found, None) is not None
    if output == "table":
        show([_row(message) for message in messages], output, LIST_COLUMNS)
    else:
        show([_document(message) for message in messages], output)
    say(f"{len(messages)} message(s)" + ("; there are more: -n" if more else ""))


@timer.command("show")
@click.argument("timer_id")
@nameservers_option
@output_option
def show_timer(timer_id: str, nameservers: str, output: str) -> None:
    """Show a delayed message, and whether it is pending, cancelled, or past.

    \b
    Examples:
      rocketq timer show broker-a:orders:0:@40960.0
      rocketq timer show broker-a:orders:0:@40960.0 -o json
    """
    with connect(nameservers) as client:
        found = client.timers.show(timer_id)
    show_one(_document(found), output)


@timer.command("cancel")
@click.argument("timer_ids", nargs=-1, required=True)
@nameservers_option
@output_option
def cancel(timer_ids: tuple[str, ...], nameservers: str, output: str) -> None:
    """Cancel delayed messages: they are not delivered. It is no error if one is cancelled already.

    \b
    Examples:
      rocketq timer cancel broker-a:orders:0:@40960.0
      rocketq timer list orders -o jsonl | jq -r .timer_id | xargs rocketq timer cancel
    """
    with connect(nameservers) as client:
        for timer_id in timer_ids:
            client.timers.cancel(timer_id)
            say(f"cancelled {timer_id}")
    if output != "table":
        show([{"timer_id": timer_id, "status": "cancelled"} for timer_id in timer_ids], output)


def _row(message: DelayedMessage) -> dict[str, Any]:
    return {
        "deliver_at": _time(message.deliver_at_ms),
        "timer_id": message.timer_id,
        "key": None if message.key is None else message.key.decode(errors="replace"),
        "tag": message.tag,
    }


def _document(message: DelayedMessage) -> dict[str, Any]:
    from rocketq.cli.messages.json_lines import text_or_base64

    made: dict[str, Any] = {
        "timer_id": message.timer_id,
        "topic": message.queue.topic,
        "broker": message.queue.broker,
        "queue": message.queue.queue,
        "deliver_at": _time(message.deliver_at_ms),
        "deliver_at_ms": message.deliver_at_ms,
        "status": str(message.status),
        "tag": message.tag,
        "properties": message.properties,
        "born_at_us": message.born_at_us,
        "stored_at_us": message.stored_at_us,
        **text_or_base64("key", message.key),
    }
    if message.body is not None:
        made.update(text_or_base64("body", message.body))
    return made


def _time(at_ms: int) -> str:
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
