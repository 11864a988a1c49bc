"""The rows that benchmarks of writes send, 100 bytes each: some that cost nothing to make, and computed ones.

    literal     one constant value. The JVM only copies it, so what is measured is the sink
    computed    the row's number as text, filled up to 100 bytes. This alone costs the JVM 0.65 s of processor
                time a million rows, on both sides of a comparison, so it hides most of what a sink costs

A job of a user is somewhere between the two, so a benchmark measures and reports both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.kit import data

PARTITIONS: Final = 8


def _literal() -> Column:
    return F.lit(b"x" * data.BODY_BYTES)


def _computed() -> Column:
    return F.lpad(F.col("id").cast("string"), data.BODY_BYTES, "x").cast("binary")


#: Each generator makes the column `value`.
GENERATORS: Final[dict[str, Callable[[], Column]]] = {"literal": _literal, "computed": _computed}


def rows_of(spark: SparkSession, generator: str, rows: int) -> DataFrame:
    """Return so many rows of one of the GENERATORS, in PARTITIONS partitions."""
    return spark.range(0, rows, 1, PARTITIONS).select(GENERATORS[generator]().alias("value"))
