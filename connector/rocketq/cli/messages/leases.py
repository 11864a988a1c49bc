"""`rocketq receive` and `rocketq ack`: messages that are leased one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import rich_click as click

from rocketq.cli.terminal.completion import complete_topic
from rocketq.cli.terminal.connection import connect, nameservers_option
from rocketq.cli.terminal.output import done, output_option, say, show

if TYPE_CHECKING:
    from rocketq.consuming.simple_consumer import LeasedMessage

COLUMNS: Final = ("receipt_handle", "attempt", "key", "tag", "body")

_group_option = click.option("-g", "--group", required=True, help="The consumer group.")


@click.command()
@click.argument("topic", shell_complete=complete_topic)
@_group_option
@click.option(
    "-n", "--count", type=click.IntRange(1, 1_000), default=16, show_default=True, help="Messages at most."
)
@click.option(
    "--invisible-ms", type=click.IntRange(min=1), default=60_000, show_default=True,
    help="How long other receivers of the group do not see the messages.",
)  # fmt: skip
@click.option(
    "--wait-ms", type=click.IntRange(min=0), default=0, show_default=True, help="Wait for messages."
)
@click.option("-t", "--tags", help="Only messages with one of these tags: 'paid || refunded'.")
@click.option("--sql", help="Only messages of which this is true.")
@click.option(
    "--ordered", is_flag=True, help="Messages of a queue in order: skip queues of which a message is leased."
)
@click.option("--ack", is_flag=True, help="Acknowledge what was shown.")
@nameservers_option
@output_option
def receive(
    topic: str,
    group: str,
    count: int,
    invisible_ms: int,
    wait_ms: int,
    tags: str | None,
    sql: str | None,
    ordered: bool,
    ack: bool,
    nameservers: str,
    output: str,
) -> None:
    """Lease messages of a topic. What is not acknowledged in time comes again.

    \b
    Examples:
      rocketq receive orders -g billing
      rocketq receive orders -g billing -n 100 --wait-ms 20000 -o jsonl
      rocketq receive orders -g billing --ack
    """
    from rocketq.consuming.fetching.subscriptions import filters_from

    topics = filters_from([topic], tags, sql)
    with connect(nameservers) as client, client.simple_consumer(group, topics, ordered=ordered) as consumer:
        messages = consumer.receive(count, invisible_ms=invisible_ms, wait_ms=wait_ms)
        if output == "table":
            show([_row(message) for message in messages], output, COLUMNS)
        else:
            show([_document(message) for message in messages], output)
        if ack and messages:
            consumer.raise_refused(consumer.ack(messages).refused)
    say(f"{len(messages)} message(s)" + (", acknowledged" if ack and messages else ""))


@click.command("ack")
@click.argument("receipt_handles", nargs=-1, required=True)
@_group_option
@nameservers_option
@output_option
def acknowledge(receipt_handles: tuple[str, ...], group: str, nameservers: str, output: str) -> None:
    """Acknowledge received messages by their receipt handles. Repeating it is harmless.

    \b
    Examples:
      rocketq ack -g billing broker-a:orders:0:17:4
      rocketq receive orders -g billing -o jsonl | jq -r .receipt_handle | xargs rocketq ack -g billing
    """
    from rocketq.protocol.documents.leases import read_handle

    topics = dict.fromkeys((read_handle(each).topic for each in receipt_handles), None)
    with connect(nameservers) as client, client.simple_consumer(group, topics) as consumer:
        result = consumer.ack(receipt_handles)
        rows = [{"group": group, "acknowledged": result.acknowledged, "settled_before": result.settled}]
        done(f"acknowledged {result.acknowledged} message(s)", rows, output)
        consumer.raise_refused(result.refused)


def _row(message: LeasedMessage) -> dict[str, Any]:
    key = None if message.key is None else message.key.decode(errors="replace")
    body = message.body[:60].decode(errors="replace")
    return {
        "receipt_handle": message.receipt_handle, "attempt": message.attempt, "key": key,
        "tag": message.tag, "body": body,
    }  # fmt: skip


def _document(message: LeasedMessage) -> dict[str, Any]:
    from rocketq.cli.messages.json_lines import text_or_base64

    return {
        "receipt_handle": message.receipt_handle,
        "attempt": message.attempt,
        "message_id": message.message_id,
        "stored_at_us": message.stored_at_us,
        "born_at_us": message.born_at_us,
        **text_or_base64("key", message.key),
        "tag": message.tag,
        "properties": message.properties,
        **text_or_base64("body", message.body),
    }
