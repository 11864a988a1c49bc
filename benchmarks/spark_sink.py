"""What exactly once costs in Spark: throughput against at least once, and the smallest micro-batch.

    literal        the same rows of 100 bytes from the same DataFrame, once with each delivery; a write
    computed       counts as done when its rows can be read (the rows: `benchmarks.kit.spark_rows`)
    micro_batch    one row a micro-batch from a Python source, into a topic exactly once and into a Python
                   sink that drops it; checkpoints on disk. What is compared is the time of a whole trigger

Two brokers, asynchronous flush. Before each turn of the writes the page cache is filled
(`benchmarks.kit.memory`).
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any, Final

from pyspark.sql import SparkSession

from benchmarks.kit import data
from benchmarks.kit.instrument import Contestant, Options, alternate, compare, introduce, options, report, say
from benchmarks.kit.memory import filled_page_cache
from benchmarks.kit.servers import KEEPS_ALL
from benchmarks.kit.spark_ceilings import prepare, timed
from benchmarks.kit.spark_rows import GENERATORS, rows_of
from benchmarks.kit.spark_ticks import DropSink, TickSource
from rocketq import Client, LocalCluster

QUEUES: Final = 4
ROWS: Final = 5_000_000
WRITE_TARGET: Final = 0.8
#: Triggers of one turn; the first ones start processes and are left out.
TRIGGERS: Final = 60
WARMING: Final = 15
EXTRA_MS_TARGET: Final = 25.0
POLL_S: Final = 0.2


def writes(
    chosen: Options,
    cluster: LocalCluster,
    spark: SparkSession,
    fill: Callable[[], None],
    generator: str,
) -> dict[str, Any]:
    """Compare batch writes of the two deliveries."""
    rows = rows_of(spark, generator, ROWS)
    topic = f"bench-{generator}"
    nameservers = ",".join(cluster.nameservers)
    with Client(cluster.nameservers) as client:
        client.create_topic(topic, queues=QUEUES)

    def write(delivery: str) -> None:
        writer = rows.write.format("rocketq").mode("append").option("nameservers", nameservers)
        writer.option("topic", topic).option("delivery", delivery).save()

    write("exactly-once")
    write("at-least-once")
    say(f"-- {ROWS:,} {generator} rows of {data.BODY_BYTES} bytes, {QUEUES} queues on each of 2 brokers")
    ours, ceiling = Contestant("exactly once"), Contestant("at least once")
    ours.turn = lambda: timed(lambda: write("exactly-once"), ROWS, ours.costs)
    ceiling.turn = lambda: timed(lambda: write("at-least-once"), ROWS, ceiling.costs)
    alternate([ours, ceiling], chosen.turns, before=fill)
    result = compare(ours, ceiling, "rows", WRITE_TARGET)
    reader = spark.read.format("rocketq").option("nameservers", nameservers).option("subscribe", topic)
    stored, expected = reader.load().count(), 2 * ROWS * (chosen.turns + 1)
    if stored != expected:
        raise RuntimeError(f"{stored} messages are stored, {expected} were sent")
    return result


def micro_batches(chosen: Options, cluster: LocalCluster, spark: SparkSession) -> dict[str, Any]:
    """Compare the time of a trigger of one row."""
    spark.dataSource.register(TickSource)
    spark.dataSource.register(DropSink)
    with Client(cluster.nameservers) as client:
        client.create_topic("ticks", queues=QUEUES)
    to_topic = {"nameservers": ",".join(cluster.nameservers), "topic": "ticks", "delivery": "exactly-once"}

    def turn(sink: str, given: dict[str, str]) -> float:
        """Return the median time of a trigger, in ms."""
        with tempfile.TemporaryDirectory(prefix="rocketq-bench-") as checkpoint:
            writer = spark.readStream.format("ticks").load().writeStream.format(sink).options(**given)
            query = writer.option("checkpointLocation", checkpoint).start()
            try:
                while len(query.recentProgress) < TRIGGERS:
                    if not query.isActive:
                        raise RuntimeError(str(query.exception()))
                    time.sleep(POLL_S)
                done = query.recentProgress[WARMING:TRIGGERS]
            finally:
                query.stop()
        return statistics.median(one.durationMs["triggerExecution"] for one in done)

    ours, floor = Contestant("exactly once"), Contestant("a sink that drops its rows")
    ours.turn = lambda: turn("rocketq", to_topic)
    floor.turn = lambda: turn("drop", {})
    say(f"-- one row a micro-batch, median of {TRIGGERS - WARMING} triggers a turn, in ms")
    alternate([ours, floor], chosen.turns)
    extra = statistics.median(mine - least for mine, least in zip(ours.rates, floor.rates, strict=True))
    for each in (ours, floor):
        say(f"{each.name:<36} {each.median:>10.1f} ms  ({min(each.rates):.1f} to {max(each.rates):.1f})")
    met = "met" if extra <= EXTRA_MS_TARGET else "MISSED"
    say(f"{'more than the floor':<36} {extra:>10.1f} ms  target <= {EXTRA_MS_TARGET:g} ms  {met}")
    return {
        "unit": "ms",
        "ours": {"name": ours.name, "median": ours.median, "turns": ours.rates},
        "floor": {"name": floor.name, "median": floor.median, "turns": floor.rates},
        "ratio": round(ours.median / floor.median, 4),
        "extra_ms": extra,
        "extra_ms_target": EXTRA_MS_TARGET,
    }


def main() -> None:
    chosen = options("spark_sink", "Write to topics exactly once with Spark.", memory=True)
    introduce("spark_sink")
    with (
        LocalCluster(brokers=2, broker_arguments=KEEPS_ALL) as cluster,
        filled_page_cache(chosen.cold) as fill,
    ):
        spark = prepare("sink")
        try:
            results = {name: writes(chosen, cluster, spark, fill, name) for name in GENERATORS}
            results["micro_batch"] = micro_batches(chosen, cluster, spark)
        finally:
            spark.stop()
    report("spark_sink", chosen, results)


if __name__ == "__main__":
    main()
