"""`rocketq bench`: a quick measure of a cluster from here, on a topic of its own.

It answers "is it as fast as it should be, seen from this machine?". It is no benchmark to publish: those
are in `benchmarks/`, with their baselines. Batches measure throughput, single sends measure latency.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any, Final

import rich_click as click

from rocketq.cli.terminal.connection import connect, nameservers_option
from rocketq.cli.terminal.output import output_option, say, show
from rocketq.cli.terminal.progress import progress_of

if TYPE_CHECKING:
    from rocketq.client import Client

POLL_MS: Final = 1_000
POLLED_MAX: Final = 50_000
CONSUME_TIMEOUT_S: Final = 60.0


@click.command()
@click.option("--messages", type=click.IntRange(1, 100_000_000), default=100_000, show_default=True)
@click.option(
    "--size", type=click.IntRange(1, 1 << 20), default=100, show_default=True, help="Bytes of a body."
)
@click.option(
    "--batch",
    type=click.IntRange(1, 100_000),
    default=1_000,
    show_default=True,
    help="Messages in one batch send.",
)
@click.option("--singles", type=click.IntRange(0), default=500, show_default=True, help="Single sends.")
@click.option(
    "--queues", type=click.IntRange(1, 1_000), default=4, show_default=True, help="Queues on each broker."
)
@nameservers_option
@output_option
def bench(
    messages: int, size: int, batch: int, singles: int, queues: int, nameservers: str, output: str
) -> None:
    """Measure sending and consuming on a new topic, which is deleted afterwards.

    \b
    Examples:
      rocketq bench --messages 10000
      rocketq bench --messages 2000 --size 1000 --batch 100 -o jsonl
    """
    topic = f"bench-{uuid.uuid4().hex[:12]}"
    with connect(nameservers) as client:
        client.create_topic(topic, queues=queues)
        try:
            rows = [
                _send_batches(client, topic, messages, size, batch),
                _consume(client, topic, messages, size),
                *([_send_singles(client, topic, singles, size)] if singles else []),
            ]
        finally:
            client.delete_topic(topic)
    show(rows, output)
    say(f"{messages} message(s) of {size} bytes, {batch} in a batch; measured from this machine")


def _send_batches(client: Client, topic: str, messages: int, size: int, batch: int) -> dict[str, Any]:
    import pyarrow as pa

    table = pa.table({"body": pa.array([b"x" * size] * batch, pa.binary())})
    with client.producer() as producer, progress_of("send", messages) as advance:
        began = time.perf_counter()
        for sent in range(0, messages, batch):
            rows = min(batch, messages - sent)
            producer.send_batch(topic, table.slice(0, rows))
            advance(rows)
        return _row("send in batches", messages, size, time.perf_counter() - began)


def _consume(client: Client, topic: str, messages: int, size: int) -> dict[str, Any]:
    got = 0
    with (
        client.pull_consumer(topic, start="earliest") as consumer,
        progress_of("consume", messages) as advance,
    ):
        began = time.perf_counter()
        while got < messages and time.perf_counter() - began < CONSUME_TIMEOUT_S:
            rows = consumer.poll_arrow(POLLED_MAX, POLL_MS).num_rows
            got += rows
            advance(rows)
        return _row("consume", got, size, time.perf_counter() - began)


def _send_singles(client: Client, topic: str, singles: int, size: int) -> dict[str, Any]:
    body, took = b"x" * size, []
    with client.producer() as producer, progress_of("single sends", singles) as advance:
        for _ in range(singles):
            began = time.perf_counter()
            producer.send(topic, body)
            took.append(time.perf_counter() - began)
            advance(1)
    took.sort()
    row = _row("send one by one", singles, size, sum(took))
    return {**row, "p50_ms": _ms(took[len(took) // 2]), "p99_ms": _ms(took[len(took) * 99 // 100])}


def _row(measure: str, messages: int, size: int, seconds: float) -> dict[str, Any]:
    return {
        "measure": measure,
        "messages": messages,
        "seconds": round(seconds, 3),
        "messages_per_s": round(messages / seconds),
        "mb_per_s": round(messages * size / seconds / 1e6, 2),
        "p50_ms": None,
        "p99_ms": None,
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
