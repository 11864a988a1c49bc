"""`rocketq export`: the messages of a topic as one file, which other programs can read.

    .parquet   a row for each message, with the columns of a consumer's Arrow batches: for DuckDB, Polars,
               pandas and Spark
    .jsonl     a line for each message as `consume -o jsonl` writes it: `produce --jsonl --keep-order` reads
               it back into a topic

The file holds what the topic held when the export began. It is written beside its place and put there at
the end, so nobody finds half of one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import rich_click as click

from rocketq.cli.messages.json_lines import document, json_line
from rocketq.cli.terminal.completion import complete_topic
from rocketq.cli.terminal.connection import connect, extents_of, nameservers_option
from rocketq.cli.terminal.output import done, output_option
from rocketq.cli.terminal.progress import progress_of

if TYPE_CHECKING:
    import pyarrow as pa

    from rocketq.client import Client
    from rocketq.consuming.pull_consumer import PullConsumer
    from rocketq.model import MessageQueue, StoredMessage

POLLED_MAX: Final = 50_000
POLL_MS: Final = 1_000

T = TypeVar("T")


@click.command()
@click.argument("topic", shell_complete=complete_topic)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("-t", "--tags", help="Only messages with one of these tags: 'paid || refunded'.")
@click.option("--sql", help='Only messages of which this is true: "amount > 100".')
@click.option("--replace", is_flag=True, help="Replace the file if it is there.")
@nameservers_option
@output_option
def export(
    topic: str, file: Path, tags: str | None, sql: str | None, replace: bool, nameservers: str, output: str
) -> None:
    """Write what a topic holds into a file: .parquet for analysis, .jsonl to bring it back.

    \b
    Examples:
      rocketq export orders orders.parquet
      rocketq export orders paid.jsonl --tags paid --replace
    """
    writer = {".parquet": _write_parquet, ".jsonl": _write_lines}.get(file.suffix)
    if writer is None:
        raise click.UsageError(f"{file.name!r} ends neither in .parquet nor in .jsonl.")
    if file.exists() and not replace:
        raise click.UsageError(f"{file} is there already; give --replace, or another name.")
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        with connect(nameservers) as client:
            rows = writer(part, client, topic, tags, sql)
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
    size = file.stat().st_size
    told = {"topic": topic, "file": str(file), "messages": rows, "bytes": size}
    done(f"wrote {rows} message(s) of {topic} to {file}, {size} bytes", [told], output)


def _write_parquet(part: Path, client: Client, topic: str, tags: str | None, sql: str | None) -> int:
    import pyarrow.parquet as pq

    from rocketq.consuming.records import CONSUMED_SCHEMA

    def poll(reader: PullConsumer) -> pa.RecordBatch:
        return reader.poll_arrow(POLLED_MAX, POLL_MS)

    rows = 0
    with pq.ParquetWriter(part, CONSUMED_SCHEMA, compression="zstd") as file:
        for polled, ends in _polled(client, topic, tags, sql, poll):
            batch = _before(polled, ends)
            file.write_batch(batch)
            rows += batch.num_rows
    return rows


def _write_lines(part: Path, client: Client, topic: str, tags: str | None, sql: str | None) -> int:
    def poll(reader: PullConsumer) -> list[StoredMessage]:
        return reader.poll(POLLED_MAX, POLL_MS)

    rows = 0
    with part.open("w", encoding="utf-8") as file:
        for polled, ends in _polled(client, topic, tags, sql, poll):
            messages = [message for message in polled if message.offset < ends.get(message.queue, 0)]
            file.writelines(json_line(document(message)) + "\n" for message in messages)
            rows += len(messages)
    return rows


def _polled(
    client: Client, topic: str, tags: str | None, sql: str | None, poll: Callable[[PullConsumer], T]
) -> Iterator[tuple[T, dict[MessageQueue, int]]]:
    """Yield what is polled from the first message on, with where each queue ended when it began."""
    extents = extents_of(client, topic)
    ends = {queue: extent.max for queue, extent in extents.items()}
    at = {queue: extent.min for queue, extent in extents.items()}
    reader = client.pull_consumer(topic, start="earliest", tags=tags, sql=sql)
    with closing(reader), progress_of(f"export {topic}", sum(ends.values()) - sum(at.values())) as advance:
        while any(at[queue] < end for queue, end in ends.items()):
            yield poll(reader), ends
            positions = reader.positions()
            passed = {queue: min(positions.get(queue, at[queue]), end) for queue, end in ends.items()}
            advance(sum(passed.values()) - sum(at.values()))
            at = passed


def _before(batch: pa.RecordBatch, ends: dict[MessageQueue, int]) -> pa.RecordBatch:
    """Leave out what came after the export began; topics grow while they are read."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not batch.num_rows:
        return batch
    queue_type = batch.schema.field("queue").type
    keep: Any = pa.nulls(batch.num_rows, pa.bool_()).fill_null(False)
    for broker in {queue.broker for queue in ends}:
        of_broker = pc.equal(batch.column("broker"), broker)
        numbers = [queue.queue for queue in ends if queue.broker == broker]
        stops = pa.array([ends[queue] for queue in ends if queue.broker == broker], pa.int64())
        index = pc.index_in(batch.column("queue"), value_set=pa.array(numbers, queue_type))
        before = pc.fill_null(pc.less(batch.column("offset"), stops.take(index)), False)
        keep = pc.or_(keep, pc.and_(of_broker, before))
    return batch.filter(keep)
