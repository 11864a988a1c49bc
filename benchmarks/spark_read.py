"""A Spark batch read of a topic of 8 queues, against a data source whose batches are ready in memory.

Both are Python data sources that give Arrow batches of the same eight columns and row count to
the same Spark, whose `noop` sink takes every row. Ours also pulls them from a broker over HTTP,
verifies and opens every frame, and adds the place and time of each message.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import SparkSession

from benchmarks.kit import data
from benchmarks.kit.http import Connection, post
from benchmarks.kit.instrument import Contestant, Options, alternate, compare, introduce, options, report, say
from benchmarks.kit.spark_ceilings import prepare, timed
from rocketq import Client, LocalCluster
from rocketq.protocol.arrow.stream_writer import write_stream
from rocketq.protocol.documents.broker import ARROW_STREAM

QUEUES: Final = 8
#: Batches of 7,900 rows in each queue.
BATCHES: Final = 80
ROWS: Final = QUEUES * BATCHES * data.MIB_ROWS
TARGET: Final = 0.6


def fill(address: str, seed: int) -> None:
    host, _, port = address.removeprefix("http://").rpartition(":")
    body = write_stream([data.batch(data.MIB_ROWS, seed)]).to_pybytes()
    with Connection(host, int(port)) as connection:
        for queue in range(QUEUES):
            request = post(f"/v1/topics/bench/messages?queue={queue}", body, ARROW_STREAM)
            for _ in range(BATCHES):
                connection.exchange(request)


def measure(chosen: Options, cluster: LocalCluster, spark: SparkSession) -> dict[str, Any]:
    with Client(cluster.nameservers) as client:
        client.create_topic("bench", queues=QUEUES)
    fill(cluster.brokers["broker-a"], chosen.seed)
    nameservers = ",".join(cluster.nameservers)

    def read_ours() -> None:
        reader = spark.read.format("rocketq").option("nameservers", nameservers)
        reader.option("subscribe", "bench").load().write.format("noop").mode("overwrite").save()

    def read_prebuilt() -> None:
        reader = spark.read.format("prebuilt").option("rows", ROWS).option("partitions", QUEUES)
        reader.load().write.format("noop").mode("overwrite").save()

    found = (
        spark.read.format("rocketq")
        .option("nameservers", nameservers)
        .option("subscribe", "bench")
        .load()
        .count()
    )
    if found != ROWS:
        raise RuntimeError(f"{found} rows were read, {ROWS} were sent")
    read_prebuilt()
    say(f"-- {ROWS:,} rows of {data.BODY_BYTES} bytes, {QUEUES} queues, one broker, local[2]")
    ours, ceiling = Contestant("rocketq"), Contestant("prebuilt Arrow source")
    ours.turn = lambda: timed(read_ours, ROWS, ours.costs)
    ceiling.turn = lambda: timed(read_prebuilt, ROWS, ceiling.costs)
    alternate([ours, ceiling], chosen.turns)
    return compare(ours, ceiling, "rows", TARGET)


def main() -> None:
    chosen = options("spark_read", "Read a topic with Spark.")
    introduce("spark_read")
    with LocalCluster(brokers=1) as cluster:
        spark = prepare("read")
        try:
            results = {"batch": measure(chosen, cluster, spark)}
        finally:
            spark.stop()
    report("spark_read", chosen, results)


if __name__ == "__main__":
    main()
