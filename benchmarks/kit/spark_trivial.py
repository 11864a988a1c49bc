"""The least a Python data source costs when a session first uses one: a source of a few rows, a sink of none.

They import nothing beyond what Spark's own workers import: no numpy, no pandas, nothing of rocketq.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

ROWS: Final = 100


def _rows() -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    yield pa.RecordBatch.from_arrays([pa.nulls(ROWS, pa.binary())], names=["value"])


class _Reader(DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows()


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"rows": 0}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        pass

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802
        return {"rows": ROWS}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows()


class _Writer(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            continue
        return WriterCommitMessage()


class TrivialSource(DataSource):
    """`format("trivial")`: reads ROWS rows of nulls, streams them once, and drops what it is given."""

    @classmethod
    def name(cls) -> str:
        return "trivial"

    def schema(self) -> str:
        return "value binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return _StreamReader()

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _Writer()
