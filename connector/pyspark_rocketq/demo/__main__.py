"""Runs the demo: `python -m pyspark_rocketq.demo [--flights N]`, or `rocketq demo`.

A thread loads and sends the flights while Spark starts, because both take seconds. All files are in one
temporary directory.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa

from pyspark_rocketq.demo import flights as data
from pyspark_rocketq.demo.display import Display
from pyspark_rocketq.demo.proof import Proof, prove
from pyspark_rocketq.demo.streaming import Delay, read_delays, stream
from pyspark_rocketq.session.local_session import local_session
from rocketq.client import Client
from rocketq.errors import RocketqError
from rocketq.local_cluster.cluster import LocalCluster

SLICE: Final = 25_000
QUEUES: Final = 4


@dataclass(frozen=True, slots=True)
class Sent:
    """What was sent: how many messages and bytes, in what time, and the sums of each carrier."""

    count: int
    bytes: int
    seconds: float
    sums: dict[str, data.CarrierSums] = field(hash=False)


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; return 0 if the proof holds, 1 if not or if something failed."""
    parser = argparse.ArgumentParser(prog="rocketq demo", description="A year of flights through rocketq.")
    parser.add_argument("--flights", type=int, metavar="N", help="only the first N (default: all 336,776)")
    given = parser.parse_args(arguments)
    if given.flights is not None and given.flights < 1:
        parser.error("--flights must be at least 1")
    try:
        with tempfile.TemporaryDirectory(prefix="rocketq-demo-") as directory:
            return run(Display(), Path(directory), given.flights)
    except RocketqError as error:
        print(f"error: {error.message}\n  try: {error.hint}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def run(display: Display, directory: Path, count: int | None) -> int:
    """Run every step and show its result."""
    with ExitStack() as stack:
        with display.step("start a NameServer and two brokers") as step:
            cluster = stack.enter_context(LocalCluster(brokers=2, data_dir=directory / "cluster"))
            step.note = ", ".join([*cluster.nameservers, *cluster.brokers.values()])
        with ThreadPoolExecutor(1, "sending") as beside:
            # Spark itself must start on this thread: sessions belong to the thread that made them.
            sending = beside.submit(load_and_send, display, cluster, count)
            spark = local_session("rocketq-demo", cores=2, short_lived=True)
            stack.callback(spark.stop)
            sent = sending.result()
        display.done("Spark is up")
        started = time.monotonic()
        with display.step("stream them through Spark: delays by carrier and hour", sent.count) as step:
            streamed = stream(spark, cluster.nameservers, directory / "checkpoint", step.advance_to)
            step.note = f"{streamed.rows:,} flights in {streamed.batches} micro-batches"
        streaming_s = time.monotonic() - started
        with display.step("consume topic delays") as step:
            delays = read_delays(cluster.nameservers)
            step.note = f"{len(delays)} carriers and hours"
        with display.step("read everything back and count"):
            proof = prove(spark, cluster.nameservers, sent.count, sent.sums)
    show_delays(display, delays)
    streamed_whole = streamed.rows == sum(delay.flights for delay in delays) == sent.count
    show_proof(display, proof, streamed_whole)
    display.say(
        f"Sent at {sent.count / sent.seconds:,.0f} messages/s ({sent.bytes / sent.seconds / 1e6:.0f} MB/s); "
        f"streamed at {sent.count / streaming_s:,.0f}/s, the query's own start included; "
        f"{display.elapsed_s:.0f} s in all."
    )
    show_next(display)
    return 0 if proof.holds and streamed_whole else 1


def load_and_send(display: Display, cluster: LocalCluster, count: int | None) -> Sent:
    """Load the flights and send them, each plane's in order."""
    with display.step("load the flights that left New York in 2013") as step:
        flights = data.load(count)
        table = data.messages(flights)
        step.note = f"{table.num_rows:,}, {table.nbytes / 1e6:.0f} MB"
    started = time.monotonic()
    send(display, cluster, table)
    seconds = time.monotonic() - started
    return Sent(table.num_rows, table.nbytes, seconds, data.sums(flights))


def send(display: Display, cluster: LocalCluster, table: pa.Table) -> None:
    """Create the topics and send the flights, slice by slice so that there is something to see."""
    with (
        display.step("send them to topic flights, by tail number", table.num_rows) as step,
        Client(cluster.nameservers) as client,
    ):
        client.create_topic("flights", queues=QUEUES)
        client.create_topic("delays", queues=QUEUES)
        producer = client.producer()
        done = 0
        queues = set()
        for first in range(0, table.num_rows, SLICE):
            for result in producer.send_batch("flights", table.slice(first, SLICE), ordering_key="key"):
                done += result.count
                queues.add(result.queue)
            step.advance_to(done)
        step.note = f"{done:,} acknowledged, in {len(queues)} queues of {len(cluster.brokers)} brokers"


def show_delays(display: Display, delays: Iterable[Delay]) -> None:
    """Write what the stream found: each carrier's delay, and its worst hour of the day."""
    carriers: dict[str, list[Delay]] = {}
    for delay in delays:
        carriers.setdefault(delay.carrier, []).append(delay)
    rows = []
    for carrier, hours in sorted(carriers.items(), key=lambda item: -sum(d.flights for d in item[1])):
        departed = sum(hour.departed for hour in hours)
        minutes = sum(hour.minutes for hour in hours)
        worst = max(hours, key=lambda hour: hour.minutes / max(1, hour.departed))
        rows.append(
            (
                carrier,
                f"{sum(hour.flights for hour in hours):,}",
                f"{minutes / max(1, departed):.1f}",
                f"{worst.hour}:00",
                f"{worst.minutes / max(1, worst.departed):.1f}",
            )
        )
    columns = ("carrier", "flights", "mean delay, min", "worst hour", "its delay, min")
    display.table("Departure delays, from topic delays", columns, rows)


def show_proof(display: Display, proof: Proof, streamed_whole: bool) -> None:
    """Write the counts, and the sentence they allow."""
    display.say()
    display.say(
        f"{proof.sent:,} flights in, {proof.read:,} messages out: {proof.flights:,} distinct flights at "
        f"{proof.places:,} distinct offsets; {proof.duplicates:,} duplicates, {proof.missing:,} missing, "
        f"{proof.out_of_order:,} out of order."
    )
    wrong = ", ".join(proof.wrong_carriers)
    display.say(
        f"Sums of flights, miles, minutes and ids differ for: {wrong}."
        if wrong
        else "Sums of flights, miles, minutes and ids equal those of the data, carrier by carrier."
    )
    if not streamed_whole:
        display.say("The streaming query did not count every flight once.")
    holds = proof.holds and streamed_whole
    display.say(
        "PROVED: every flight arrived exactly once." if holds else "NOT PROVED: see the counts above."
    )


def show_next(display: Display) -> None:
    """Name three things to do now."""
    display.say("\nNext:")
    display.say("  rocketq up                 a cluster that stays, with its own data directory")
    display.say("  rocketq produce --help     send lines or JSON from a pipe")
    display.say("  rocketq doctor             whether your own Spark setup will work")


if __name__ == "__main__":
    sys.exit(main())
