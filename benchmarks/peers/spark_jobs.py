"""Spark jobs: rocketq's data source against Spark's own Kafka connector, in one session, local[2].

Rows of 100 bytes, 8 queues or partitions, one broker each, no sync for a write.

    write literal     a batch write of one constant value: the generator costs nearly nothing
    write computed    a batch write of values that the JVM makes of each row's number
    read, value       a batch read of the column `value`
    read, all         a batch read of all columns
    stream            a stream over the same backlog, `availableNow`
    topic to topic    a stream from one topic into another: rocketq exactly once, Kafka at least once, since
                      its sink offers no more

Each write goes into the same topic again. A stream's turn has a checkpoint of its own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import count
from typing import Any, Final

from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.kit import data
from benchmarks.kit.instrument import Options, introduce, options, report
from benchmarks.peers import packages
from benchmarks.peers.kafka_server import KafkaServer
from benchmarks.peers.sides import MINUTES, Allotment, Side, interleave
from pyspark_rocketq.session.local_session import local_session
from rocketq import Client, LocalCluster

QUEUES: Final = 8
ROWS: Final = 2_000_000
OURS: Final = "rocketq"
THEIRS: Final = "Kafka"


class Jobs:
    """The jobs of one system: what to write to and to read from, by Spark's options."""

    def __init__(
        self, spark: SparkSession, name: str, to: dict[str, str], make: Callable[[str], None]
    ) -> None:
        self.spark = spark
        self.name = name
        self.to = to
        self.make = make
        self.outputs = count()

    def write(self, rows: DataFrame, topic: str = "written") -> None:
        rows.write.format(self.name).mode("append").options(**self.to).option("topic", topic).save()

    def _source(self, reader: Any) -> DataFrame:
        given = {**self.to, "subscribe": "backlog", "startingOffsets": "earliest"}
        return reader.format(self.name).options(**given).load()

    def read(self, *columns: str) -> None:
        self._source(self.spark.read).select(*columns).write.format("noop").mode("overwrite").save()

    def _drain(self, writer: Any) -> None:
        with tempfile.TemporaryDirectory(prefix="peers-") as checkpoint:
            query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
            query.awaitTermination()
            read = sum(progress.numInputRows for progress in query.recentProgress)
        if read != ROWS:
            raise RuntimeError(f"{self.name} read {read} rows, {ROWS} were there")

    def stream(self) -> None:
        self._drain(self._source(self.spark.readStream).writeStream.format("noop"))

    def topic_to_topic(self) -> None:
        topic = f"output-{next(self.outputs)}"
        self.make(topic)
        rows = self._source(self.spark.readStream).select("value")
        self._drain(rows.writeStream.format(self.name).options(**self.to).option("topic", topic))


def measure(chosen: Options, spark: SparkSession, ours: Jobs, theirs: Jobs) -> dict[str, Any]:
    numbers = spark.range(0, ROWS, 1, QUEUES)
    literal = numbers.select(F.lit(b"x" * data.BODY_BYTES).alias("value"))
    computed = numbers.select(
        F.lpad(F.col("id").cast("string"), data.BODY_BYTES, "x").cast("binary").alias("value")
    )
    for jobs in (ours, theirs):
        for topic in ("written", "backlog"):
            jobs.make(topic)
        jobs.write(literal, "backlog")
    works: dict[str, Callable[[Jobs], None]] = {
        "write literal": lambda jobs: jobs.write(literal),
        "write computed": lambda jobs: jobs.write(computed),
        "read, value": lambda jobs: jobs.read("value"),
        "read, all": lambda jobs: jobs.read("*"),
        "stream": Jobs.stream,
        "topic to topic": Jobs.topic_to_topic,
    }
    results = {}
    allotment = Allotment(chosen.minutes, len(works))
    for name, work in works.items():
        sides = [Side(OURS, lambda work=work: work(ours)), Side(THEIRS, lambda work=work: work(theirs))]  # type: ignore[misc]
        results[name] = interleave(name, sides, ROWS, chosen.turns, allotment)
    return results


def main() -> None:
    about = "Spark jobs, beside Spark's Kafka connector."
    chosen = options("peers.spark_jobs", about, seconds=0, turns=5, minutes=MINUTES)
    introduce("peers.spark_jobs")
    jars = ",".join(map(str, packages.spark_connector()))
    with (
        KafkaServer() as server,
        LocalCluster(brokers=1) as cluster,
        Client(cluster.nameservers) as client,
    ):
        admin = AdminClient({"bootstrap.servers": server.bootstrap})

        def make_partitions(topic: str) -> None:
            for made in admin.create_topics([NewTopic(topic, QUEUES, 1)]).values():
                made.result(60)

        def make_queues(topic: str) -> None:
            client.create_topic(topic, queues=QUEUES)

        spark = local_session("peers", cores=2, **{"spark.jars": jars})
        try:
            ours = Jobs(spark, "rocketq", {"nameservers": ",".join(cluster.nameservers)}, make_queues)
            theirs = Jobs(spark, "kafka", {"kafka.bootstrap.servers": server.bootstrap}, make_partitions)
            results = measure(chosen, spark, ours, theirs)
        finally:
            spark.stop()
    report("peers.spark_jobs", chosen, results)


if __name__ == "__main__":
    main()
