"""The least a Python data source could do in Spark: batches made beforehand, and a sink that drops them.

The modules of this package must be importable in Spark's Python workers: `prepare` says so.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from benchmarks.kit.data import bodies

if TYPE_CHECKING:
    import pyarrow as pa

#: As the connector's own default columns.
COLUMNS: Final = (
    "key binary, value binary, tag string, topic string, broker string, queue int, offset bigint, "
    "timestamp timestamp"
)
#: Rows of one prebuilt batch: what the connector makes of two 1 MiB frames.
BATCH_ROWS: Final = 16_384

_TICKS: Final = os.sysconf("SC_CLK_TCK")


class PrebuiltSource(DataSource):
    """`format("prebuilt")`: `rows` rows in `partitions` partitions, the same batch again and again."""

    @classmethod
    def name(cls) -> str:
        return "prebuilt"

    def schema(self) -> str:
        return COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        return PrebuiltReader(int(self.options["rows"]), int(self.options["partitions"]))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return PrebuiltStream(int(self.options["rows"]), int(self.options["partitions"]))


def prebuilt_batches(rows: int) -> Iterator[pa.RecordBatch]:
    batch = _prebuilt_batch()
    left = rows
    while left:
        yield batch if left >= BATCH_ROWS else batch.slice(0, left)
        left -= min(left, BATCH_ROWS)


@cache
def _prebuilt_batch() -> pa.RecordBatch:
    """Make the batch once a process, and of buffers: `pa.array` and `pa.scalar` would import pandas."""
    import numpy as np
    import pyarrow as pa

    from rocketq.protocol.column_values import number, numbers, repeated

    moment = pa.timestamp("us", tz="UTC")
    columns = {
        "key": pa.nulls(BATCH_ROWS, pa.binary()),
        "value": bodies(BATCH_ROWS, 1),
        "tag": pa.nulls(BATCH_ROWS, pa.string()),
        "topic": repeated("bench", BATCH_ROWS),
        "broker": repeated("broker-a", BATCH_ROWS),
        "queue": pa.repeat(number(0, pa.int32()), BATCH_ROWS),
        "offset": numbers(np.arange(BATCH_ROWS, dtype=np.int64)),
        "timestamp": pa.repeat(number(1_700_000_000_000_000, moment), BATCH_ROWS),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


@dataclass(frozen=True)
class PrebuiltReader(DataSourceReader):
    rows: int
    parts: int

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(self.parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from prebuilt_batches(self.rows // self.parts)


@dataclass
class PrebuiltStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """All rows are there from the beginning, and no more come: without rows, a query that is idle."""

    rows: int
    parts: int
    #: What an idle question waits, as a source would that asks somebody.
    idle_s: float = 0.5

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"rows": 0}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self.idle_s = 0.0

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        if start["rows"] == self.rows:
            time.sleep(self.idle_s)
        return {"rows": self.rows}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(self.parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from prebuilt_batches(self.rows // self.parts)


class DiscardSink(DataSource):
    """`format("discard")`: takes batches and does nothing with them."""

    @classmethod
    def name(cls) -> str:
        return "discard"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return DiscardWriter()


class DiscardWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


def prepare(name: str) -> SparkSession:
    """Start Spark on two cores, with this package importable in its workers and the ceilings known."""
    from pyspark_rocketq.session.local_session import local_session

    root = str(Path(__file__).parents[1])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    spark = local_session(f"rocketq-bench-{name}", cores=2)
    spark.dataSource.register(PrebuiltSource)
    spark.dataSource.register(DiscardSink)
    return spark


def descendants_cpu_seconds() -> float:
    """Processor time of all processes this one started, theirs included: Spark, its workers, the servers."""
    return sum(descendants_cpu(reaped=True).values())


def descendants_cpu(reaped: bool = False) -> dict[int, float]:
    """Processor time of each process that this one started, or that these did, by process id.

    With `reaped` a process's time includes that of its children that have ended.
    """
    parents: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(entry.name))
        used[int(entry.name)] = sum(map(int, fields[11 : 15 if reaped else 13])) / _TICKS
    found: dict[int, float] = {}
    waiting = list(parents.get(os.getpid(), []))
    while waiting:
        process = waiting.pop()
        found[process] = used[process]
        waiting += parents.get(process, [])
    return found


def timed(run: Callable[[], None], rows: int, costs: list[float]) -> float:
    """Run a query and note what a row cost all processes together; return rows a second."""
    used, started = descendants_cpu_seconds(), time.perf_counter()
    run()
    seconds = time.perf_counter() - started
    costs.append((descendants_cpu_seconds() - used) / rows)
    return rows / seconds
