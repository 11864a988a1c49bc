"""Spark's sink with named places where something breaks: `format("rocketq-faulty")`.

The writer is the product's; around it lie *points*, reached in this order for each micro-batch:

    task-begins   task-middle   task-ends      in every task
    commit-begins commit-ends                  on the driver; Spark writes its commit log after it
    abort-begins                               on the driver, after a failure

Faults are files of a directory that all of Spark's processes see: one file is one fault, and the
process that takes it away does what it says, so a fault strikes once. The processes of brokers are
known by files too (`Faults.announce`), since they change with every restart.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_rocketq.exactly_once import BATCH_PROPERTY
from pyspark_rocketq.source import RocketqDataSource

OPTION = "faults"
_ANY = -1


class Point(StrEnum):
    """Where a fault strikes."""

    TASK_BEGINS = "task-begins"
    TASK_MIDDLE = "task-middle"
    TASK_ENDS = "task-ends"
    COMMIT_BEGINS = "commit-begins"
    COMMIT_ENDS = "commit-ends"
    ABORT_BEGINS = "abort-begins"


class Harm(StrEnum):
    """What happens there."""

    RAISE = "raise"
    #: SIGKILL of the Python worker, in a task or on the driver's side.
    DIE = "die"
    #: SIGKILL of the process `victim`; the one that does it goes on.
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: when a point is reached in a batch (-1: in any), do harm, so many times."""

    point: Point
    harm: Harm
    batch: int = _ANY
    victim: str = ""
    times: int = 1


class Injected(Exception):
    """The failure that a fault asked for."""


class Faults:
    """The directory of faults; the same in every process."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)

    def lay(self, faults: Sequence[Fault]) -> None:
        """Put faults in place of those that are there."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for old in self.directory.glob("*.fault"):
            old.unlink()
        single = [fault for fault in faults for _ in range(fault.times)]
        for number, fault in enumerate(single):
            name = f"{time.monotonic_ns()}-{number:03}"
            hidden = self.directory / f"{name}.hidden"
            hidden.write_text(json.dumps(asdict(fault)))
            hidden.rename(self.directory / f"{name}.fault")

    def announce(self, name: str, pid: int) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / f"{name}.pid").write_text(str(pid))

    def struck(self) -> frozenset[Fault]:
        """Return the faults that struck."""
        return frozenset(_read(path) for path in self.directory.glob("*.struck"))

    def reach(self, point: Point, batch: int) -> None:
        """Strike with the first fault that lies here."""
        for path in sorted(self.directory.glob("*.fault")):
            try:
                fault = _read(path)
                if fault.point is not point or fault.batch not in (_ANY, batch):
                    continue
                path.rename(path.with_suffix(".struck"))
            except FileNotFoundError:
                # Another process was quicker: it is that one's fault.
                continue
            self._strike(fault)
            return

    def _strike(self, fault: Fault) -> None:
        if fault.harm is Harm.DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        if fault.harm is Harm.KILL:
            os.kill(int((self.directory / f"{fault.victim}.pid").read_text()), signal.SIGKILL)
        if fault.harm is Harm.RAISE:
            raise Injected(f"{fault.point} was told to fail")


def _read(path: Path) -> Fault:
    facts: dict[str, Any] = json.loads(path.read_text())
    return Fault(**facts | {"point": Point(facts["point"]), "harm": Harm(facts["harm"])})


class FaultySource(RocketqDataSource):
    """The data source, with a sink that breaks where it is told to."""

    @classmethod
    def name(cls) -> str:
        return "rocketq-faulty"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        options = {key: value for key, value in self.options.items() if key.lower() != OPTION}
        sound = RocketqDataSource(options).streamWriter(schema, overwrite)
        return FaultyWriter(sound, Faults(self.options[OPTION]))


class FaultyWriter(DataSourceStreamArrowWriter):
    """A sound writer between points."""

    def __init__(self, sound: DataSourceStreamArrowWriter, faults: Faults) -> None:
        self._sound, self._faults = sound, faults

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        batch = int(context.getLocalProperty(BATCH_PROPERTY) or -1)
        self._faults.reach(Point.TASK_BEGINS, batch)
        message = self._sound.write(self._halved(iterator, batch))
        self._faults.reach(Point.TASK_ENDS, batch)
        return message

    def _halved(self, iterator: Iterator[pa.RecordBatch], batch: int) -> Iterator[pa.RecordBatch]:
        """Pass the rows on in small batches, with a point after the first half of each."""
        for rows in iterator:
            half = rows.num_rows // 2
            yield rows.slice(0, half)
            self._faults.reach(Point.TASK_MIDDLE, batch)
            yield rows.slice(half)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._faults.reach(Point.COMMIT_BEGINS, batchId)
        self._sound.commit(messages, batchId)
        self._faults.reach(Point.COMMIT_ENDS, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._faults.reach(Point.ABORT_BEGINS, batchId)
        self._sound.abort(messages, batchId)
