"""A Spark batch write, at least once, against an Arrow sink that drops what it gets.

Both take the same rows of 100 bytes from the same DataFrame, made by the JVM as it goes, through
Spark's Arrow writer. Ours also makes requests of them, sends these to a broker over HTTP, and
waits until each is acknowledged (asynchronous flush). The rows are a literal, which costs nothing to make,
and then computed ones (`benchmarks.kit.spark_rows`). Before each turn the page cache is filled
(`benchmarks.kit.memory`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pyspark.sql import SparkSession

from benchmarks.kit import data
from benchmarks.kit.instrument import Contestant, Options, alternate, compare, introduce, options, report, say
from benchmarks.kit.memory import filled_page_cache
from benchmarks.kit.servers import KEEPS_ALL
from benchmarks.kit.spark_ceilings import prepare, timed
from benchmarks.kit.spark_rows import rows_of
from rocketq import Client, LocalCluster

QUEUES: Final = 8
ROWS: Final = 6_000_000
#: By generator.
TARGETS: Final = {"literal": 0.55, "computed": 0.72}


def measure(
    chosen: Options,
    cluster: LocalCluster,
    spark: SparkSession,
    fill: Callable[[], None],
    generator: str,
) -> dict[str, Any]:
    nameservers = ",".join(cluster.nameservers)
    topic = f"bench-{generator}"
    with Client(cluster.nameservers) as client:
        client.create_topic(topic, queues=QUEUES)
    rows = rows_of(spark, generator, ROWS)

    def write_ours() -> None:
        writer = rows.write.format("rocketq").mode("append").option("nameservers", nameservers)
        writer.option("topic", topic).option("delivery", "at-least-once").save()

    def discard() -> None:
        rows.write.format("discard").mode("append").save()

    write_ours()
    discard()
    say(f"-- {ROWS:,} {generator} rows of {data.BODY_BYTES} bytes, {QUEUES} queues, one broker, local[2]")
    ours, ceiling = Contestant("rocketq"), Contestant("Arrow sink that discards")
    ours.turn = lambda: timed(write_ours, ROWS, ours.costs)
    ceiling.turn = lambda: timed(discard, ROWS, ceiling.costs)
    alternate([ours, ceiling], chosen.turns, before=fill)
    result = compare(ours, ceiling, "rows", TARGETS[generator])
    reader = spark.read.format("rocketq").option("nameservers", nameservers).option("subscribe", topic)
    stored, expected = reader.load().count(), ROWS * (chosen.turns + 1)
    if stored < expected:
        raise RuntimeError(f"{stored} messages are stored, {expected} were sent")
    say(f"stored: {stored:,} of {expected:,} sent")
    return result


def main() -> None:
    chosen = options("spark_write", "Write to a topic with Spark.", memory=True)
    introduce("spark_write")
    with (
        LocalCluster(brokers=1, broker_arguments=KEEPS_ALL) as cluster,
        filled_page_cache(chosen.cold) as fill,
    ):
        spark = prepare("write")
        try:
            results = {generator: measure(chosen, cluster, spark, fill, generator) for generator in TARGETS}
        finally:
            spark.stop()
    report("spark_write", chosen, results)


if __name__ == "__main__":
    main()
