"""Spark's sink with named places where something breaks: `format("rocketq-faulty")`.

The writer is the product's; around it lie *points*, reached in this order for each micro-batch:

    task-begins   task-middle   task-ends      in every task
    commit-begins commit-ends                  on the driver; Spark writes its commit log after it
    abort-begins                               on the driver, after a failure

Faults are files of a directory that all of Spark's processes see: one file is one fault, and the
process that takes it away does what it says, so a fault strikes once. The processes of brokers are
known by files too (`Faults.announce`), since they change with every restart. Executors are found in the
table of processes. What one process waits for another rings: a bell is a pipe with a name, and what was
rung before anybody waited is not lost.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_rocketq.source import RocketqDataSource
from pyspark_rocketq.write.exactly_once import BATCH_PROPERTY
from tests.support.executors import nearest_executor, orphan_this_worker

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
    """What happens there; `whom` is the process or the bell."""

    RAISE = "raise"
    #: SIGKILL of the Python worker, in a task or on the driver's side.
    DIE = "die"
    #: SIGKILL of the process `whom`; the one that does it goes on.
    KILL = "kill"
    #: SIGKILL of the executor around this task, or of one of the driver's; the one that does it goes on.
    KILL_EXECUTOR = "kill-executor"
    #: The executor around this task dies, and nobody ends the task's worker, which waits for the bell `whom`
    #: and goes on: so writes an executor that Spark has given up.
    ORPHAN = "orphan"
    #: Wait for the bell `whom`.
    WAIT = "wait"
    #: Ring the bell `whom`, once.
    RING = "ring"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: when a point is reached in a batch by a task (-1: in any, by any), do harm, so often."""

    point: Point
    harm: Harm
    batch: int = _ANY
    whom: str = ""
    times: int = 1
    partition: int = _ANY
    attempt: int = _ANY

    def lies_at(self, point: Point, place: tuple[int, int, int]) -> bool:
        wanted = (self.batch, self.partition, self.attempt)
        return self.point is point and all(w in (_ANY, here) for w, here in zip(wanted, place, strict=True))


_WAITING: Final = (Harm.WAIT, Harm.ORPHAN)


class Injected(Exception):
    """The failure that a fault asked for."""


class Faults:
    """The directory of faults; the same in every process."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)
        self._held = ExitStack()

    def lay(self, faults: Sequence[Fault]) -> None:
        """Put faults in place of those that are there; who still waits for a bell of theirs fails."""
        self._held.close()
        self.directory.mkdir(parents=True, exist_ok=True)
        for old in (*self.directory.glob("*.fault"), *self.directory.glob("*.bell")):
            old.unlink()
        for name in {fault.whom for fault in faults if fault.harm in _WAITING}:
            os.mkfifo(self._bell(name))
            # Held open for both ends, so that neither side has to wait for the other to open it.
            self._held.enter_context(self._bell(name).open("r+b", buffering=0))
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

    def reach(self, point: Point, batch: int, partition: int = _ANY, attempt: int = _ANY) -> None:
        """Strike with the first fault that lies here; on the driver there is no partition."""
        for path in sorted(self.directory.glob("*.fault")):
            try:
                fault = _read(path)
                if not fault.lies_at(point, (batch, partition, attempt)):
                    continue
                path.rename(path.with_suffix(".struck"))
            except FileNotFoundError:
                # Another process was quicker: it is that one's fault.
                continue
            self._strike(fault)
            return

    def _strike(self, fault: Fault) -> None:
        match fault.harm:
            case Harm.DIE:
                os.kill(os.getpid(), signal.SIGKILL)
            case Harm.KILL:
                os.kill(int((self.directory / f"{fault.whom}.pid").read_text()), signal.SIGKILL)
            case Harm.KILL_EXECUTOR:
                os.kill(nearest_executor(), signal.SIGKILL)
            case Harm.ORPHAN:
                orphan_this_worker()
                self._wait(fault.whom)
            case Harm.WAIT:
                self._wait(fault.whom)
            case Harm.RING:
                with self._bell(fault.whom).open("wb", buffering=0) as bell:
                    bell.write(b".")
            case Harm.RAISE:
                raise Injected(f"{fault.point} was told to fail")

    def _wait(self, name: str) -> None:
        with self._bell(name).open("rb", buffering=0) as bell:
            if not bell.read(1):
                raise Injected(f"nobody rang {name}")

    def _bell(self, name: str) -> Path:
        return self.directory / f"{name}.bell"


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
        reach = partial(
            self._faults.reach,
            batch=batch,
            partition=context.partitionId(),
            attempt=context.attemptNumber(),
        )
        reach(Point.TASK_BEGINS)
        message = self._sound.write(_halved(iterator, reach))
        reach(Point.TASK_ENDS)
        return message

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._faults.reach(Point.COMMIT_BEGINS, batchId)
        self._sound.commit(messages, batchId)
        self._faults.reach(Point.COMMIT_ENDS, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._faults.reach(Point.ABORT_BEGINS, batchId)
        self._sound.abort(messages, batchId)


def _halved(iterator: Iterator[pa.RecordBatch], reach: Callable[[Point], None]) -> Iterator[pa.RecordBatch]:
    """Pass the rows on in small batches, with a point after the first half of each."""
    # All rows are here first, so that a worker has them that loses its executor on the way.
    for rows in list(iterator):
        half = rows.num_rows // 2
        yield rows.slice(0, half)
        reach(Point.TASK_MIDDLE)
        yield rows.slice(half)
