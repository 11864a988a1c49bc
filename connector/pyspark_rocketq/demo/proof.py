"""Proves that every flight arrived exactly once: compares what Spark reads back with what was sent.

Two independent counts must both be right:

    places   each (broker, queue, offset) occurs once: the broker stored each message once
    flights  each id from 0 on occurs once: the producer sent each flight once

For each carrier, the sums of flights, miles, minutes and ids must equal those of the data, so no message was
altered. In each queue the ids must rise with the offsets, so the order of reading is the order of sending.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

from pyspark_rocketq.demo.flights import CarrierSums
from pyspark_rocketq.demo.streaming import parsed


@dataclass(frozen=True, slots=True)
class Proof:
    """The counts; `holds` is true if every flight arrived exactly once, unaltered and in order."""

    sent: int
    read: int
    places: int
    flights: int
    missing: int
    out_of_order: int
    wrong_carriers: tuple[str, ...]

    @property
    def duplicates(self) -> int:
        return self.read - self.flights

    @property
    def holds(self) -> bool:
        counts = {self.sent, self.read, self.places, self.flights}
        return len(counts) == 1 and not (self.missing or self.out_of_order or self.wrong_carriers)


def prove(
    spark: SparkSession,
    nameservers: Sequence[str],
    sent: int,
    expected: dict[str, CarrierSums],
    topic: str = "flights",
) -> Proof:
    """Read the whole topic as a batch, and count."""
    rows = (
        spark.read.format("rocketq")
        .option("nameservers", ",".join(nameservers))
        .option("subscribe", topic)
        .load()
    )
    flights = parsed(rows).cache()
    try:
        in_queue = Window.partitionBy("broker", "queue").orderBy("offset")
        walked = flights.select(
            (F.lag("offset").over(in_queue) == F.col("offset")).alias("same_place"),
            (F.lag("id").over(in_queue) >= F.col("id")).alias("too_late"),
        )
        counted = walked.agg(
            F.count("*").alias("read"),
            F.count_if("same_place").alias("same_place"),
            F.count_if("too_late").alias("too_late"),
        ).first()
        distinct = flights.agg(F.countDistinct("id").alias("flights")).first()
        assert counted is not None
        assert distinct is not None
        missing = spark.range(sent).join(flights, "id", "left_anti").count()
        found = {
            row.carrier: CarrierSums(row.flights, row.distance, row.delay, row.id_sum)
            for row in flights.groupBy("carrier")
            .agg(
                F.count("*").alias("flights"),
                F.sum("distance").alias("distance"),
                F.coalesce(F.sum("dep_delay"), F.lit(0)).alias("delay"),
                F.sum("id").alias("id_sum"),
            )
            .collect()
        }
    finally:
        flights.unpersist()
    wrong = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))
    return Proof(
        sent,
        counted["read"],
        counted["read"] - counted["same_place"],
        distinct["flights"],
        missing,
        counted["too_late"],
        tuple(wrong),
    )
