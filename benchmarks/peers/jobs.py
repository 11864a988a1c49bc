"""What a Spark user does with a system of messages, the same for both sides."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from benchmarks.peers.systems import System

QUEUES: Final = 8
#: How long rows that were written may stay unseen, and how often that is looked at.
VISIBLE_S: Final = 120.0
POLL_S: Final = 0.05


@dataclass
class Jobs:
    """The jobs of one side, in one session."""

    spark: SparkSession
    system: System

    def __post_init__(self) -> None:
        self._outputs = count()

    def write(self, rows: DataFrame, topic: str) -> None:
        options = {**self.system.to, "topic": topic}
        rows.write.format(self.system.format).mode("append").options(**options).save()

    def read(self, topic: str, *columns: str) -> None:
        self._source(self.spark.read, topic).select(*columns).write.format("noop").mode("overwrite").save()

    def stream(self, topic: str, rows: int) -> None:
        """Stream the whole backlog of a topic into `noop`."""
        self._drain(self._source(self.spark.readStream, topic).writeStream.format("noop"), rows)

    def copy(self, topic: str, rows: int) -> str:
        """Stream the whole backlog of a topic into a new one; return its name once readers find all rows."""
        output = f"output-{next(self._outputs)}"
        self.system.make_topic(output, QUEUES)
        source = self._source(self.spark.readStream, topic).select("value")
        options = {**self.system.to, "topic": output}
        self._drain(source.writeStream.format(self.system.format).options(**options), rows)
        ends_at = time.monotonic() + VISIBLE_S
        while (found := self.system.count(output)) != rows:
            if found > rows or time.monotonic() > ends_at:
                raise RuntimeError(f"{self.system.name}: a reader finds {found} rows of {rows}")
            time.sleep(POLL_S)
        return output

    def _source(self, reader: Any, topic: str) -> DataFrame:
        given = {**self.system.to, "subscribe": topic, "startingOffsets": "earliest"}
        source: DataFrame = reader.format(self.system.format).options(**given).load()
        return source

    def _drain(self, writer: Any, rows: int) -> None:
        with tempfile.TemporaryDirectory(prefix="peers-") as checkpoint:
            query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
            query.awaitTermination()
            read = sum(progress.numInputRows for progress in query.recentProgress)
        if read != rows:
            raise RuntimeError(f"{self.system.name} read {read} rows, {rows} were there")
