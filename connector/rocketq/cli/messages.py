"""`rocketq produce` and `rocketq consume`: topics as ends of a pipe.

`produce` sends whatever has arrived on stdin as one Arrow batch, so a person's line
goes out at once and a large file in large batches. `consume` stops where the topic
ended when it began, unless it is told to follow.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from datetime import datetime
from io import BufferedReader
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import rich_click as click

from rocketq.cli.connection import connect, described, nameservers_option
from rocketq.cli.output import output_option, say, show

if TYPE_CHECKING:
    import pyarrow as pa

    from rocketq.client import Client
    from rocketq.consuming.consumed_message import ConsumedMessage
    from rocketq.model import MessageQueue, StoredMessage
    from rocketq.producing.placing import SelectionName

    Edge = Literal["earliest", "latest"]
    Shown = StoredMessage | ConsumedMessage

READ_BYTES: Final = 1 << 20
POLL_MS: Final = 1_000
POLLED_MAX: Final = 500
ESCAPES: Final = {"\\n": "\n", "\\t": "\t", "\\0": "\0"}
JSON_FIELDS: Final = {"body", "key", "tag", "properties", "ordering_key"}


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
@click.argument("topic")
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
    help='Lines are {"body": …, "key": …, "ordering_key": …, "tag": …, "properties": {…}}.',
)
@click.option(
    "--selection",
    type=_Selections(),
    help="How a queue is chosen for messages without an ordering key.  [default: round_robin]",
)
@click.option("--delay", help="Deliver after this long: 10s, 5m, 1h.")
@click.option("--deliver-at", help="Deliver at this time: 2026-11-20T08:00Z, or milliseconds since 1970.")
@nameservers_option
def produce(
    topic: str,
    key: str | None,
    ordering_key: str | None,
    tag: str | None,
    properties: tuple[str, ...],
    jsonl: bool,
    selection: SelectionName | None,
    delay: str | None,
    deliver_at: str | None,
    nameservers: str,
) -> None:
    """Send each line of stdin as a message. The topic is made if it does not exist.

    \b
    Examples:
      echo hello | rocketq produce greetings
      rocketq produce logs -t web -p host=web-1 < access.log
      echo "are you still there?" | rocketq produce reminders --delay 10m
      jq -c '{body: tostring, key: .id, ordering_key: .customer}' orders.json | rocketq produce orders --jsonl
    """
    if ordering_key is not None and selection is not None:
        raise click.UsageError("--ordering-key chooses the queue itself; leave --selection out.")
    constant = dict(_property(text) for text in properties)
    at = None if deliver_at is None else _delivery_time(deliver_at)
    sent, queues, delayed = 0, set(), False
    with connect(nameservers) as client, client.producer() as producer:
        for first, lines in _line_batches():
            table = _from_json(lines, first) if jsonl else _from_lines(lines)
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


@click.command()
@click.argument("topic")
@click.option(
    "-g",
    "--group",
    help="Go on where this group is, and commit what was shown. With --follow: as one of its members.",
)
@click.option(
    "--from",
    "start",
    type=click.Choice(["earliest", "latest"]),
    help="Where to begin without a group's progress.  [default: earliest]",
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
    help="%s body, %k key, %g tag, %q queue, %b broker, %O offset, %i id, %T stored at (µs), %% percent.",
)
@nameservers_option
@output_option
def consume(
    topic: str,
    group: str | None,
    start: str | None,
    tags: str | None,
    sql: str | None,
    count: int | None,
    follow: bool,
    template: str,
    nameservers: str,
    output: str,
) -> None:
    """Write the messages of a topic to stdout.

    With --group and --follow it is a member of the group and shares the queues with the others. With --group
    alone it reads all queues up to their present ends, which is refused while members own them.

    \b
    Examples:
      rocketq consume orders
      rocketq consume orders -g billing --follow -o jsonl
      rocketq consume orders -n 10 -f '%k at %O: %s\\n'
      rocketq consume orders --sql "amount > 100 AND region = 'eu'"
    """
    if follow and output == "json":
        raise click.UsageError("An array never ends under --follow; use -o jsonl.")
    documents: list[dict[str, Any]] = []
    write = _writer(output, template, documents)
    edge = cast("Edge", start or "earliest")
    shown = 0
    with connect(nameservers) as client:
        if group and follow:
            batches = _as_member(client, topic, group, edge, tags, sql, count)
        else:
            batches = _as_reader(client, topic, group, edge, tags, sql, count, follow=follow)
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


def _as_member(
    client: Client, topic: str, group: str, edge: Edge, tags: str | None, sql: str | None, count: int | None
) -> Generator[Sequence[Shown]]:
    """Give messages as a member of a group; asking for more says that those before were shown."""
    from rocketq.consuming.fetching.subscriptions import filters_from

    filters = filters_from([topic], tags, sql)
    with client.consumer(group, filters, start=edge, ack="manual") as consumer:
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
    edge: Edge,
    tags: str | None,
    sql: str | None,
    count: int | None,
    *,
    follow: bool,
) -> Generator[Sequence[Shown]]:
    """Give messages of all queues, up to their ends now unless it follows; asking for more commits them."""
    ends = {} if follow else _ends(client, topic)
    with client.pull_consumer(
        topic, group=group, start="group" if group else edge, start_fallback=edge, tags=tags, sql=sql
    ) as consumer:
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


def _from_json(lines: list[bytes], first: int) -> pa.Table:
    from rocketq.protocol.message_schema import MESSAGE_SCHEMA

    rows = []
    for number, line in enumerate(lines, first):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise click.ClickException(f"line {number} is not JSON: {error}") from error
        if not isinstance(row, dict) or "body" not in row or set(row) - JSON_FIELDS:
            raise click.ClickException(
                f"line {number} must be an object with body and perhaps key, ordering_key, tag, properties"
            )
        rows.append(row)
    import pyarrow as pa

    columns = {
        "body": [_bytes(row["body"]) for row in rows],
        "key": [None if row.get("key") is None else _bytes(row["key"]) for row in rows],
        "tag": [row.get("tag") for row in rows],
        "properties": [list((row.get("properties") or {}).items()) for row in rows],
    }
    types = {name: MESSAGE_SCHEMA.field(name).type for name in columns}
    if any(row.get("ordering_key") is not None for row in rows):
        orders = (row.get("ordering_key") for row in rows)
        columns["ordering_key"] = [None if order is None else _bytes(order) for order in orders]
        types["ordering_key"] = pa.binary()
    try:
        return pa.table({name: pa.array(values, types[name]) for name, values in columns.items()})
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise click.ClickException(f"lines from {first} on: {error}") from error


def _bytes(value: Any) -> bytes:
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).encode()


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
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise click.BadParameter(
            f"{text!r} is neither a time with its zone (2026-11-20T08:00Z) nor milliseconds since 1970",
            param_hint="--deliver-at",
        )
    return at


def _property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--property")
    return name, value


def _ends(client: Client, topic: str) -> dict[MessageQueue, int]:
    """Return where each queue that holds anything ends now."""
    from rocketq.model import MessageQueue

    return {
        MessageQueue(topic, broker, number): queue.max
        for broker, description in described(client, topic).items()
        for number, queue in enumerate(description.queues)
        if queue.max > queue.min
    }


def _is_short_of(positions: dict[MessageQueue, int], ends: dict[MessageQueue, int]) -> bool:
    return any(positions.get(queue, 0) < end for queue, end in ends.items())


class _Template:
    """`%`-letters filled from a message, as kcat has it; bodies and keys stay bytes."""

    def __init__(self, text: str) -> None:
        for escape, meant in ESCAPES.items():
            text = text.replace(escape, meant)
        parts = text.split("%")
        self._parts: list[tuple[str, bytes]] = [("", parts[0].encode())]
        rest = iter(parts[1:])
        for part in rest:
            if part == "":
                self._parts.append(("", b"%" + next(rest, "").encode()))
            elif part[0] in "skgqbOiT":
                self._parts.append((part[0], part[1:].encode()))
            else:
                raise click.BadParameter(f"%{part[0]} is unknown", param_hint="--format")

    def fill(self, message: Shown) -> bytes:
        values = {
            "": b"",
            "s": message.body,
            "k": message.key or b"",
            "g": (message.tag or "").encode(),
            "q": str(message.queue.queue).encode(),
            "b": message.queue.broker.encode(),
            "O": str(message.offset).encode(),
            "i": message.message_id.encode(),
            "T": str(message.stored_at_us).encode(),
        }
        return b"".join(values[letter] + text for letter, text in self._parts)


def _writer(output: str, template: str, documents: list[dict[str, Any]]) -> Callable[[Shown], object]:
    """Return what writes one message; for `-o json` it only gathers, since an array is one document."""
    if output == "table":
        fill = _Template(template).fill
        return lambda message: sys.stdout.buffer.write(fill(message))
    if output == "json":
        return lambda message: documents.append(document(message))
    return lambda message: click.echo(json.dumps(document(message), ensure_ascii=False))


def document(message: Shown) -> dict[str, Any]:
    """Return a message in the form the broker's JSON has: text where it is text, else base64."""
    document: dict[str, Any] = {
        "message_id": message.message_id,
        "topic": message.queue.topic,
        "broker": message.queue.broker,
        "queue": message.queue.queue,
        "offset": message.offset,
        "tag": message.tag,
        "properties": message.properties,
        "born_at_us": message.born_at_us,
        "stored_at_us": message.stored_at_us,
    }
    for name, value in (("key", message.key), ("body", message.body)):
        document.update(text_or_base64(name, value))
    return document


def text_or_base64(name: str, value: bytes | None) -> dict[str, str | None]:
    """Return a value as a field of a document: as text, or in base64 under a name that says so."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}
