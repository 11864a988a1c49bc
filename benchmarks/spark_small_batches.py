"""Micro-batches of one row in each of eight queues, against the smallest micro-batch of any Python source.

A program sends a message to each queue. A stream with an interval of 0 reads them into `noop`. What counts is
the time of a whole trigger that had rows. It is measured with small ranges that share a partition, which
is the default, and with a partition for each queue (`smallRangeRows=0`). The floor is a Python source of one
row (`benchmarks.kit.spark_ticks`).
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from benchmarks.kit.instrument import Contestant, Options, alternate, introduce, options, report, say
from benchmarks.kit.spark_ceilings import prepare
from benchmarks.kit.spark_ticks import TickSource
from rocketq import Client, LocalCluster

QUEUES: Final = 8
#: Triggers with rows in one turn; the first ones start processes and are left out.
TRIGGERS: Final = 40
WARMING: Final = 10
EXTRA_MS_TARGET: Final = 25.0
POLL_S: Final = 0.2


@contextmanager
def one_row_a_queue(client: Client, seconds: float) -> Iterator[None]:
    """Send a message to each queue again and again, with a pause of so many seconds."""
    over = threading.Event()

    def send() -> None:
        with client.producer() as producer:
            while not over.wait(seconds):
                for queue in range(QUEUES):
                    producer.send("small", b"x", queue=queue)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def trigger_ms(query: StreamingQuery) -> float:
    """Return the median time of a trigger with rows."""
    try:
        done: dict[int, int] = {}
        while len(done) < TRIGGERS:
            if not query.isActive:
                raise RuntimeError(str(query.exception()))
            time.sleep(POLL_S)
            done |= {
                one.batchId: one.durationMs["triggerExecution"]
                for one in query.recentProgress
                if one.numInputRows
            }
    finally:
        query.stop()
    return statistics.median(list(done.values())[WARMING:])


def measure(chosen: Options, cluster: LocalCluster, spark: SparkSession) -> dict[str, Any]:
    spark.dataSource.register(TickSource)
    given = {"nameservers": ",".join(cluster.nameservers), "subscribe": "small"}

    def turn(source: str, **settings: str) -> float:
        with tempfile.TemporaryDirectory(prefix="rocketq-bench-") as checkpoint:
            rows = spark.readStream.format(source).options(**settings).load()
            writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
            return trigger_ms(writer.start())

    with Client(cluster.nameservers) as client, one_row_a_queue(client, 0.4):
        client.create_topic("small", queues=QUEUES)
        packed = Contestant("one row in 8 queues", lambda: turn("rocketq", **given))
        apart = Contestant("a partition for each", lambda: turn("rocketq", **given, smallRangeRows="0"))
        floor = Contestant("a Python source of one row", lambda: turn("ticks"))
        alternate([packed, apart, floor], chosen.turns)
    for each in (packed, apart, floor):
        say(f"{each.name:<36} {each.median:>10.1f} ms  ({min(each.rates):.1f} to {max(each.rates):.1f})")
    extra = packed.median - floor.median
    met = "met" if extra <= EXTRA_MS_TARGET else "MISSED"
    say(f"{'more than the floor':<36} {extra:>10.1f} ms  target <= {EXTRA_MS_TARGET:g} ms  {met}")
    sides = {
        name: {"name": each.name, "median": each.median, "turns": each.rates}
        for name, each in (("ours", packed), ("apart", apart), ("floor", floor))
    }
    return {"unit": "ms", **sides, "extra_ms": extra, "extra_ms_target": EXTRA_MS_TARGET}


def main() -> None:
    chosen = options("spark_small_batches", "Micro-batches of few rows in many queues.", turns=3)
    introduce("spark_small_batches")
    with LocalCluster(brokers=1) as cluster:
        spark = prepare("small-batches")
        try:
            results = {"micro_batch": measure(chosen, cluster, spark)}
        finally:
            spark.stop()
    report("spark_small_batches", chosen, results)


if __name__ == "__main__":
    main()
