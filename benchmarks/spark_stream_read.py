"""A stream reads the backlog of a topic of 8 queues, against a stream whose batches are ready in memory.

Both are Python data sources in one AvailableNow query each turn, with a checkpoint of its own, and Spark's
`noop` sink takes every row. The prebuilt source has what any such query costs: planning, the checkpoint,
Arrow through a socket to the JVM. Ours also asks brokers for offsets, pulls, verifies and opens every frame.
"""

from __future__ import annotations

import tempfile
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.kit import data
from benchmarks.kit.instrument import Contestant, Options, alternate, compare, introduce, options, report, say
from benchmarks.kit.spark_ceilings import prepare, timed
from benchmarks.spark_read import QUEUES, ROWS, fill
from rocketq import Client, LocalCluster

TARGET = 0.75


def drain(frame: DataFrame) -> None:
    """Run a query over all there is."""
    with tempfile.TemporaryDirectory(prefix="rocketq-bench-") as checkpoint:
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        rows = sum(progress.numInputRows for progress in query.recentProgress)
    if rows != ROWS:
        raise RuntimeError(f"{rows} rows were read, {ROWS} were there")


def measure(chosen: Options, cluster: LocalCluster, spark: SparkSession) -> dict[str, Any]:
    with Client(cluster.nameservers) as client:
        client.create_topic("bench", queues=QUEUES)
    fill(cluster.brokers["broker-a"], chosen.seed)
    given = {
        "nameservers": ",".join(cluster.nameservers),
        "subscribe": "bench",
        "startingOffsets": "earliest",
    }
    read_ours = spark.readStream.format("rocketq").options(**given).load()
    read_prebuilt = (
        spark.readStream.format("prebuilt").option("rows", ROWS).option("partitions", QUEUES).load()
    )
    drain(read_ours)
    drain(read_prebuilt)
    say(f"-- {ROWS:,} rows of {data.BODY_BYTES} bytes, {QUEUES} queues, one broker, AvailableNow, local[2]")
    ours, ceiling = Contestant("rocketq"), Contestant("prebuilt Arrow stream")
    ours.turn = lambda: timed(lambda: drain(read_ours), ROWS, ours.costs)
    ceiling.turn = lambda: timed(lambda: drain(read_prebuilt), ROWS, ceiling.costs)
    alternate([ours, ceiling], chosen.turns)
    return compare(ours, ceiling, "rows", TARGET)


def main() -> None:
    chosen = options("spark_stream_read", "Read a topic's backlog with a Spark stream.")
    introduce("spark_stream_read")
    with LocalCluster(brokers=1) as cluster:
        spark = prepare("stream-read")
        try:
            results = {"stream": measure(chosen, cluster, spark)}
        finally:
            spark.stop()
    report("spark_stream_read", chosen, results)


if __name__ == "__main__":
    main()
