"""The query that trials of the sink run; `python -m tests.support.sink_query JSON` is a driver of its own."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.support.sink_faults import OPTION, Faults, FaultySource, Point
from tests.support.spark_cluster import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

PER_TRIGGER: Final = 12


class Shape(StrEnum):
    """What the query does."""

    COPY = "copy"
    DISTINCT = "distinct"
    COUNTS = "counts"


@dataclass(frozen=True)
class SinkQuery:
    """From one topic to another, through a sink that breaks where it is told to."""

    nameservers: str
    source: str
    topic: str
    shape: Shape
    delivery: str
    checkpoint: str
    faults: str
    #: Where a driver of its own runs the tasks.
    place: Place = Place.LOCAL

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start it, to read what there is and end."""
        read = (
            spark.readStream.format("rocketq")
            .options(nameservers=self.nameservers, subscribe=self.source, startingOffsets="earliest")
            # A task for each queue: the trials name the tasks that they break.
            .options(maxOffsetsPerTrigger=PER_TRIGGER, smallRangeRows=0)
            .load()
            .selectExpr("CAST(key AS STRING) AS key", "CAST(value AS STRING) AS value")
        )
        if self.shape is Shape.COUNTS:
            counts = read.groupBy("key").count().selectExpr("key", "CAST(count AS STRING) AS value")
            writer = counts.writeStream.foreachBatch(self._write_counts).outputMode("update")
        else:
            if self.shape is Shape.DISTINCT:
                read = read.dropDuplicates(["value"])
            writer = (
                read.writeStream.format("rocketq-faulty")
                .options(nameservers=self.nameservers, topic=self.topic, delivery=self.delivery)
                # Less than one row has: what comes before the middle of a task is sent before it.
                .option("maxRequestBytes", 10)
                .option(OPTION, self.faults)
            )
        return writer.option("checkpointLocation", self.checkpoint).trigger(availableNow=True).start()

    def _write_counts(self, frame: DataFrame, batch: int) -> None:
        writer = frame.write.format("rocketq").mode("append")
        writer = writer.options(nameservers=self.nameservers, topic=self.topic)
        if self.delivery == "exactly-once":
            writer = writer.options(txnAppId=self.topic, txnVersion=batch)
        faults = Faults(self.faults)
        faults.reach(Point.COMMIT_BEGINS, batch)
        writer.save()
        faults.reach(Point.COMMIT_ENDS, batch)

    def document(self) -> str:
        return json.dumps(asdict(self))


def main() -> None:
    """Run the query of the document on the command line, in a Spark of this process."""
    from pyspark_rocketq.session.local_session import local_session

    facts = json.loads(sys.argv[1])
    query = SinkQuery(**facts | {"shape": Shape(facts["shape"]), "place": Place(facts["place"])})
    conf = query.place.conf(Path(query.faults).parent)
    spark = local_session("sink-driver", cores=2, short_lived=True, **conf)
    spark.dataSource.register(FaultySource)
    query.start(spark).awaitTermination()


if __name__ == "__main__":
    main()
