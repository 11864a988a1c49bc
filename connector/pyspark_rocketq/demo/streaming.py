"""The streaming query of the demo: it reads a topic, aggregates, and writes a topic.

    flights ──> readStream ──> JSON ──> delay by carrier and hour ──> writeStream ──> delays

The query is in complete mode, so each micro-batch writes the whole result again. The key of a row is its
carrier and hour. Messages of one key stay in order in one queue, so the last message of a key is its present
value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rocketq.client import Client

FLIGHT: Final = (
    "id long, month int, day int, hour int, carrier string, flight int, tailnum string, "
    "origin string, dest string, distance long, dep_delay long"
)
#: Small enough that the demo has several micro-batches.
PER_TRIGGER: Final = 120_000
PROGRESS_S: Final = 1


@dataclass(frozen=True, slots=True)
class Delay:
    """One row of topic `delays`: the flights of a carrier in one hour of the day."""

    carrier: str
    hour: int
    flights: int
    departed: int
    minutes: int


@dataclass(frozen=True, slots=True)
class Streamed:
    """What the streaming query did."""

    batches: int
    rows: int


def parsed(rows: DataFrame) -> DataFrame:
    """Return the flights inside the messages, beside the messages' own columns."""
    flight = F.from_json(F.col("value").cast("string"), FLIGHT)
    return rows.withColumn("flight", flight).select("*", "flight.*").drop("flight", "value")


def delays(flights: DataFrame) -> DataFrame:
    """Return messages that tell the delay of each carrier in each hour of the day."""
    grouped = flights.groupBy("carrier", "hour").agg(
        F.count("*").alias("flights"),
        F.count("dep_delay").alias("departed"),
        F.coalesce(F.sum("dep_delay"), F.lit(0)).alias("minutes"),
    )
    return grouped.select(
        F.concat_ws("/", "carrier", "hour").alias("key"),
        F.col("carrier").alias("tag"),
        F.to_json(F.struct("carrier", "hour", "flights", "departed", "minutes")).alias("value"),
    )


def stream(
    spark: SparkSession, nameservers: Sequence[str], checkpoint: Path, on_progress: Callable[[int], None]
) -> Streamed:
    """Run the query until it has read all there is; raise what made it fail."""
    addresses = ",".join(nameservers)
    flights = (
        spark.readStream.format("rocketq")
        .option("nameservers", addresses)
        .option("subscribe", "flights")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", PER_TRIGGER)
        .load()
    )
    query = (
        delays(parsed(flights))
        .writeStream.format("rocketq")
        .option("nameservers", addresses)
        .option("topic", "delays")
        .option("queueSelection", "hash")
        .option("checkpointLocation", str(checkpoint))
        .outputMode("complete")
        .trigger(availableNow=True)
        .start()
    )
    try:
        while not query.awaitTermination(PROGRESS_S):
            on_progress(sum(done.numInputRows for done in query.recentProgress))
    finally:
        query.stop()
    done = query.recentProgress
    return Streamed(len(done), sum(one.numInputRows for one in done))


def read_delays(nameservers: Sequence[str]) -> list[Delay]:
    """Consume topic `delays` with the plain client and keep the last message of each key."""
    latest: dict[bytes | None, bytes] = {}
    with Client(list(nameservers)) as client, client.pull_consumer(["delays"], start="earliest") as consumer:
        while batch := consumer.poll(max_messages=5_000, timeout_ms=2_000):
            latest.update((message.key, message.body) for message in batch)
    return sorted((Delay(**json.loads(body)) for body in latest.values()), key=lambda d: (d.carrier, d.hour))
