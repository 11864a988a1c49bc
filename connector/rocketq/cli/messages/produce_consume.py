"""`rocketq produce` and `rocketq consume`: topics as ends of a pipe.

`produce` sends whatever has arrived on stdin as one Arrow batch, so a person's line
goes out at once and a large file in large batches. `consume` stops where the topic
ended when it began, unless it is told to follow.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from io import BufferedReader
from typing import TYPE_CHECKING, Any, Final, cast

import rich_click as click

from rocketq.cli.messages.json_lines import delivery_time_of, document, json_line, table_of
from rocketq.cli.messages.positions import Position, PositionType
from rocketq.cli.messages.templates import Template
from rocketq.cli.terminal.completion import complete_group, complete_topic
from rocketq.cli.terminal.connection import connect, extents_of, nameservers_option
from rocketq.cli.terminal.output import output_option, say, show, show_one

if TYPE_CHECKING:
    import pyarrow as pa

    from rocketq.client import Client
    from rocketq.consuming.consumed_message import ConsumedMessage
    from rocketq.model import MessageQueue, QueueOffsets, StoredMessage
    from rocketq.producing.placing import SelectionName

    Shown = StoredMessage | ConsumedMessage

READ_BYTES: Final = 1 << 20
POLL_MS: Final = 1_000
POLLED_MAX: Final = 500


class _Selections(click.ParamType[str]):
    """The strategies that need no ordering key. They are loaded when they are used, since they load numpy."""

    name = "selection"

    def names(self) -> list[str]:
        from rocketq.producing.selection.queue_selectors import STRATEGIES

        return [name for name, strategy in STRATEGIES.items() if not strategy.needs_key]

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return f"[{'|'.join(self.names())}]"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from rocketq.producing.selection.queue_selectors import STRATEGIES

        if value not in STRATEGIES:
            self.fail(f"{value!r} is none of {', '.join(self.names())}.", param, ctx)
        if STRATEGIES[value].needs_key:
            self.fail(f"{value} needs ordering keys: give --ordering-key, or ordering_key in each JSON line.")
        return value


@click.command()
@click.argument("topic", shell_complete=complete_topic)
@click.option("-k", "--key", help="The key of every message: what it can be found by.")
@click.option(
    "--ordering-key",
    help="What orders every message: messages of one ordering key keep their order in one queue.",
)
@click.option("-t", "--tag", help="The tag of every message.")
@click.option("-p", "--property", "properties", multiple=True, metavar="NAME=VALUE", help="May be repeated.")
@click.option(
    "--jsonl",
    is_flag=True,
    help='Lines are {"body": …, "key": …, "ordering_key": …, "tag": …, "properties": {…}}, as '
    'consume -o jsonl writes them; "body_base64" for bytes, "deliver_at" or "delay" to delay one.',
)
@click.option(
    "--keep-order",
    is_flag=True,
    help="With --jsonl: messages that were consumed from one queue go into one queue, in their order.",
)
@click.option(
    "--selection",
    type=_Selections(),
    help="How a queue is chosen for messages without an ordering key.  [default: round_robin]",
)
@click.option("--delay", help="Deliver after this long: 10s, 5m, 1h.")
@click.option("--deliver-at", help="Deliver at this time: 2026-11-20T08:00Z, or milliseconds since 1970.")
@nameservers_option
@output_option
def produce(
    topic: str,
    key: str | None,
    ordering_key: str | None,
    tag: str | None,
    properties: tuple[str, ...],
    jsonl: bool,
    keep_order: bool,
    selection: SelectionName | None,
    delay: str | None,
    deliver_at: str | None,
    nameservers: str,
    output: str,
) -> None:
    """Send each line of stdin as a message. The topic is made if it does not exist.

    Lines that are there at the same time are one batch, and a batch goes to one queue; the next batch goes to
    the next queue. To choose the queue of each line, give it an ordering_key and use --jsonl.

    \b
    Examples:
      echo hello | rocketq produce greetings
      rocketq produce logs -t web -p host=web-1 < access.log
      echo "are you still there?" | rocketq produce reminders --delay 10m
      jq -c '{body: tostring, key: .id, ordering_key: .customer}' orders.json | rocketq produce orders --jsonl
      rocketq consume orders -o jsonl | rocketq produce orders-copy --jsonl --keep-order
    """
    if keep_order and (not jsonl or ordering_key is not None):
        raise click.UsageError("--keep-order goes with --jsonl, and not with --ordering-key.")
    if ordering_key is not None and selection is not None:
        raise click.UsageError("--ordering-key chooses the queue itself; leave --selection out.")
    constant = dict(_property(text) for text in properties)
    at = None if deliver_at is None else _delivery_time(deliver_at)
    sent, queues, delayed = 0, set(), False
    with connect(nameservers) as client, client.producer() as producer:
        for first, lines in _line_batches():
            table = table_of(lines, first, keep_order=keep_order) if jsonl else _from_lines(lines)
            table = _with_constants(table, key, ordering_key, tag, constant)
            order = "ordering_key" if "ordering_key" in table.column_names else None
            results = producer.send_batch(
                topic, table, ordering_key=order, selection=selection, delay=delay, deliver_at=at,
                unique_ids=True,
            )  # fmt: skip
            for result in results:
                sent += result.count
                delayed |= result.is_delayed
                queues.add(result.queue)
    say(f"sent {sent} message(s) to {len(queues)} queue(s) of {topic}" + (", delayed" if delayed else ""))
    if output != "table":
        show_one({"topic": topic, "sent": sent, "queues": len(queues), "delayed": delayed}, output)


@click.command()
@click.argument("topic", shell_complete=complete_topic)
@click.option(
    "-g",
    "--group",
    shell_complete=complete_group,
    help="Go on where this group is, and commit what was shown. With --follow: as one of its members.",
)
@click.option(
    "--from",
    "start",
    type=PositionType(),
    help="Where to begin without a group's progress: earliest, latest, -10 (the last ten of each queue), "
    "@2026-11-20T08:00Z, @15m (ago), or an interval @1h..@15m.  [default: earliest]",
)
@click.option("-t", "--tags", help="Only messages with one of these tags: 'paid || refunded'.")
@click.option("--sql", help="Only messages of which this is true: \"amount > 100 AND region = 'eu'\".")
@click.option("-n", "--count", type=click.IntRange(min=1), help="Stop after this many.")
@click.option("--follow", is_flag=True, help="Wait for more instead of stopping at the end.")
@click.option(
    "-f",
    "--format",
    "template",
    default="%s\\n",
    show_default=True,
    help="As kcat's: %s body, %k key, %t topic, %p queue, %o offset, %T stored at (ms), %h properties, "
    "%S and %K lengths; and %g tag, %b broker, %i id.",
)
@nameservers_option
@output_option
def consume(
    topic: str,
    group: str | None,
    start: Position | None,
    tags: str | None,
    sql: str | None,
    count: int | None,
    follow: bool,
    template: str,
    nameservers: str,
    output: str,
) -> None:
    """Write the messages of a topic to stdout.

    Messages of one queue come in their order. Those of different queues come in any order, many of one queue
    after many of another.

    With --group and --follow it is a member of the group and shares the queues with the others. With --group
    alone it reads to the present ends and stops, which is not possible while members of the group are there.

    \b
    Examples:
      rocketq consume orders
      rocketq consume orders -g billing --follow -o jsonl
      rocketq consume orders -n 10 -f '%k at %O: %s\\n'
      rocketq consume orders --sql "amount > 100 AND region = 'eu'"
      rocketq consume orders --from @1h..@15m -f '%T %k %s\\n'
      rocketq consume orders --from -10
    """
    if follow and output == "json":
        raise click.UsageError("An array never ends under --follow; use -o jsonl.")
    documents: list[dict[str, Any]] = []
    write = _writer(output, template, documents)
    position = start or Position()
    _check_position(position, group, follow)
    shown = 0
    with connect(nameservers) as client:
        if group and follow:
            batches = _as_member(client, topic, group, position, tags, sql, count)
        else:
            batches = _as_reader(client, topic, group, position, tags, sql, count, follow=follow)
        try:
            with closing(batches):
                for messages in batches:
                    for message in messages:
                        write(message)
                    sys.stdout.flush()
                    shown += len(messages)
        except KeyboardInterrupt:
            # Ctrl-C is how following ends; what was shown before is committed.
            say("")
        except BrokenPipeError:
            # The reader, `head` say, has had enough: that is how pipes end. Nothing more may be written.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if output == "json":
        show(documents, output)
    say(f"{shown} message(s)")


def _check_position(position: Position, group: str | None, follow: bool) -> None:
    if position.until_us is not None and follow:
        raise click.UsageError("An interval ends, so --follow has nothing to wait for; leave it out.")
    if group and (position.last is not None or position.until_us is not None):
        raise click.UsageError(
            "A group goes on where it is: --from is earliest, latest or one @time, or no group."
        )
    if group and not follow and position.from_us is not None:
        raise click.UsageError("A time is where a group's members begin: add --follow, or leave --group out.")


def _as_member(
    client: Client,
    topic: str,
    group: str,
    position: Position,
    tags: str | None,
    sql: str | None,
    count: int | None,
) -> Generator[Sequence[Shown]]:
    """Give messages as a member of a group; asking for more says that those before were shown."""
    from rocketq.consuming.fetching.subscriptions import filters_from

    filters = filters_from([topic], tags, sql)
    with client.consumer(group, filters, ack="manual", **position.start) as consumer:
        left = count
        while left is None or left > 0:
            polled = consumer.poll(POLLED_MAX if left is None else min(POLLED_MAX, left), POLL_MS)
            yield polled
            for message in polled:
                message.ack()
            left = None if left is None else left - len(polled)


def _as_reader(
    client: Client,
    topic: str,
    group: str | None,
    position: Position,
    tags: str | None,
    sql: str | None,
    count: int | None,
    *,
    follow: bool,
) -> Generator[Sequence[Shown]]:
    """Give messages of all queues, up to their ends now unless it follows; asking for more commits them."""
    extents = {} if follow and position.last is None else extents_of(client, topic)
    ends = {} if follow else _ends(client, topic, extents, position.until_us)
    start = {"start": "group", "start_fallback": position.edge or "earliest"} if group else position.start
    with client.pull_consumer(topic, group=group, tags=tags, sql=sql, **start) as consumer:
        if position.last is not None:
            for queue in consumer.positions().keys() & extents.keys():
                consumer.seek(queue, max(extents[queue].min, extents[queue].max - position.last))
        left = count
        while (left is None or left > 0) and (follow or _is_short_of(consumer.positions(), ends)):
            polled = consumer.poll(POLLED_MAX if left is None else min(POLLED_MAX, left), POLL_MS)
            if not (group or follow):
                # With a group nothing that was polled is left out: the commit covers it.
                polled = [message for message in polled if message.offset < ends.get(message.queue, 0)]
            yield polled
            if group and (polled or tags or sql):
                # Through a filter the positions advance without a message, too.
                consumer.commit()
            left = None if left is None else left - len(polled)


def _line_batches() -> Iterator[tuple[int, list[bytes]]]:
    """Give the number of the first line and the lines, whenever some have arrived whole."""
    rest, number = b"", 1
    stdin = cast("BufferedReader", sys.stdin.buffer)
    while True:
        data = stdin.read1(READ_BYTES)
        *lines, rest = (rest + data).split(b"\n") if data else [rest, b""] if rest else [b""]
        if lines:
            yield number, lines
            number += len(lines)
        if not data:
            return


def _from_lines(lines: list[bytes]) -> pa.Table:
    import pyarrow as pa

    return pa.table({"body": pa.array(lines, pa.binary())})


def _with_constants(
    table: pa.Table, key: str | None, ordering_key: str | None, tag: str | None, properties: dict[str, str]
) -> pa.Table:
    import pyarrow as pa

    from rocketq.protocol.message_schema import PROPERTIES_TYPE

    constants = {
        "key": None if key is None else pa.scalar(key.encode(), pa.binary()),
        "ordering_key": None if ordering_key is None else pa.scalar(ordering_key.encode(), pa.binary()),
        "tag": None if tag is None else pa.scalar(tag, pa.string()),
        "properties": pa.scalar(list(properties.items()), PROPERTIES_TYPE) if properties else None,
    }
    for name, value in constants.items():
        if value is not None:
            column = pa.repeat(value, table.num_rows)
            index = table.schema.get_field_index(name)
            table = table.drop_columns([name]) if index >= 0 else table
            table = table.append_column(name, column)
    return table


def _delivery_time(text: str) -> datetime | int:
    try:
        return delivery_time_of(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}", param_hint="--deliver-at") from error


def _property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--property")
    return name, value


def _ends(
    client: Client, topic: str, extents: Mapping[MessageQueue, QueueOffsets], until_us: int | None
) -> dict[MessageQueue, int]:
    """Return where to stop in each queue: where it ends now, or before what was stored from a time on."""
    until = {} if until_us is None else client.offsets_at(topic, until_us)
    return {queue: min(extent.max, until.get(queue, extent.max)) for queue, extent in extents.items()}


def _is_short_of(positions: dict[MessageQueue, int], ends: dict[MessageQueue, int]) -> bool:
    return any(positions.get(queue, 0) < end for queue, end in ends.items())


def _writer(output: str, template: str, documents: list[dict[str, Any]]) -> Callable[[Shown], object]:
    """Return what writes one message; for `-o json` it only gathers, since an array is one document."""
    if output == "table":
        fill = Template(template).fill
        return lambda message: sys.stdout.buffer.write(fill(message))
    if output == "json":
        return lambda message: documents.append(document(message))
    return lambda message: click.echo(json_line(document(message)))
