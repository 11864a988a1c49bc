"""The streaming source: offsets on the driver, ranges on the executors.

One process on the driver calls, in this order, for every micro-batch

    latestOffset(start, limit)   where may the batch end? `start` itself if there is nothing
    partitions(start, end)       which ranges is it made of? a function of the two offsets
    read(partition)              runs on the executors: see read/batch_reader.py

`start` has always been committed by the sink, so it is what the group is told (`commit`
comes a batch late and not at all at the end, facts that only measuring shows).

While nothing arrives `latestOffset` waits, at most `longPollMs`, until a broker reports new messages
(survey/offset_watch.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pyspark_rocketq.connections import connection_to
from pyspark_rocketq.options.options import SourceOptions
from pyspark_rocketq.read.batch_reader import RangePartition, RangeReader
from pyspark_rocketq.stream.offset import from_json, with_lag
from pyspark_rocketq.stream.query_driver import QueryDriver
from rocketq.errors import RocketqError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

#: No limit, in Spark's words.
ROWS_MAX: Final = 2**63 - 1


class RocketqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("rocketq")`. Travels to the executors before the driver's side is used."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._ranges = RangeReader(options, schema)
        self._made: QueryDriver | None = None
        #: The end of the newest batch, as it was told to Spark.
        self._reached: dict[str, Any] = {}

    @property
    def _driver(self) -> QueryDriver:
        if self._made is None:
            self._made = QueryDriver(self._options, connection_to(self._options.nameservers))
        return self._made

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_ranges": self._ranges, "_made": None, "_reached": {}}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return self._driver.initial_offset().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return any limit but ReadAllAvailable: that then only comes with a trigger that overrides limits.

        The limits themselves are applied in `latestOffset`, since Spark has no way to name several.
        """
        return ReadMaxRows(self._options.limits.max_rows or ROWS_MAX)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._driver.fix_target()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next batch ends, or `start` unchanged when there is nothing to read."""
        end = self._driver.latest_offset(from_json(start), unlimited=isinstance(limit, ReadAllAvailable))
        self._reached = start if end is None else end.to_json()
        return self._reached

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the ends of all queues as last seen, for the query's progress; asks nobody.

        Its key `lag` has the messages of each queue that come after the newest batch. While brokers are
        away it has one more key, `away`: topic to the names of the brokers.
        """
        seen = self._driver.seen()
        return with_lag(seen, self._reached) if seen is not None else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [RangePartition(each) for each in self._driver.partitions(from_json(start), from_json(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._ranges.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: `latestOffset` is told the same, earlier and without gaps."""

    def stop(self) -> None:
        if self._made is not None:
            self._made.close()


class RefusedStreamReader(RocketqStreamReader):
    """Takes the place of a reader whose options are refused: its first call raises the reason.

    An error raised while Spark makes the reader itself comes out under an UnboundLocalError of
    Spark's own runner, which hides what the user should read.
    """

    def __init__(self, error: RocketqError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        raise self._error

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        raise self._error

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        raise self._error

    def stop(self) -> None:
        """There is nothing to stop."""

    def __getstate__(self) -> dict[str, Any]:
        return {"_error": self._error}
