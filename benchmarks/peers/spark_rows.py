"""Rows of flights: JSON documents of some 170 bytes, as people send them (beside `kit.spark_rows`).

Pandas makes the documents once, and Parquet keeps them: so a turn costs reading a file, not making JSON.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from benchmarks.kit.spark_rows import PARTITIONS
from pyspark_rocketq.demo import flights

#: The package has 336,776 flights.
TIMES: Final = 6


def flights_of(spark: SparkSession, directory: Path) -> tuple[DataFrame, int]:
    """Return all flights TIMES times, in PARTITIONS partitions, and how many rows that are."""
    documents = flights.messages(flights.load()).select(["body"]).rename_columns(["value"])
    part = len(documents) * TIMES // PARTITIONS
    for number in range(PARTITIONS):
        rows = documents.take([(number * part + row) % len(documents) for row in range(part)])
        pq.write_table(rows, directory / f"part-{number}.parquet")
    return spark.read.parquet(str(directory)), part * PARTITIONS
