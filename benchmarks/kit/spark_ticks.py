"""The smallest micro-batches: a Python source of one row a batch, and a Python sink that drops it.

Both do as little as Spark lets a Python source and sink do, so a query between them is the floor
that any sink's micro-batch stands on. The modules must be importable in Spark's workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Tick(InputPartition):
    number: int


class TickReader(DataSourceStreamReader):
    """Each time it is asked there is one row more."""

    def __init__(self) -> None:
        self._number = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"tick": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802
        self._number = max(self._number, start["tick"]) + 1
        return {"tick": self._number}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [Tick(end["tick"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        assert isinstance(partition, Tick)
        yield pa.RecordBatch.from_pydict({"value": pa.array([str(partition.number)])})


class TickSource(DataSource):
    """`format("ticks")`."""

    @classmethod
    def name(cls) -> str:
        return "ticks"

    def schema(self) -> str:
        return "value string"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return TickReader()


class DropStreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            continue
        return WriterCommitMessage()


class DropSink(DataSource):
    """`format("drop")`."""

    @classmethod
    def name(cls) -> str:
        return "drop"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return DropStreamWriter()
