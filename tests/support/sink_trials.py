"""Trials of Spark's sink: a query over numbered rows that is broken and started again until it ends well.

A trial is a seed. It says what the query does to its rows, and for each of its lives what strikes
(`sink_faults`), which broker is killed when, whether the query is stopped, and whether Spark's last
commit log entry is lost in the end, as if the driver had died just before it was written. The last
life is left alone. Then what the query wrote is compared with what it had to write.

    copy       each row once
    distinct   each value once; the input has every value twice (a state store takes part)
    counts     update mode, by foreachBatch and transactions: for each batch the counts that changed

One SparkSession and one cluster serve all trials; brokers that were killed are started again while
the query runs.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.errors import StreamingQueryException

from pyspark_rocketq.connections import connection_to
from rocketq import LocalCluster
from rocketq.client import Client
from rocketq.model import MessageQueue
from tests.support.sink_faults import Fault, Faults, FaultySource, Harm, Point
from tests.support.sink_query import Shape, SinkQuery
from tests.support.spark_cluster import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS: Final = 5
ROWS_OF_QUEUE: Final = 12
QUEUES: Final = 2
POLL_S: Final = 0.02
#: A life that lasts longer hangs.
LIFE_S: Final = 600
LIVES_MAX: Final = 12
ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True)
class Life:
    """What befalls the query in one of its lives; times are seconds after its start."""

    faults: tuple[Fault, ...] = ()
    kills: tuple[tuple[float, str], ...] = ()
    stop_after: float | None = None
    loses_commit: bool = False


@dataclass(frozen=True)
class Trial:
    """One seed's course."""

    seed: int
    shape: Shape
    lives: tuple[Life, ...]
    delivery: str = "exactly-once"
    place: Place = Place.LOCAL

    @property
    def laid(self) -> set[Fault]:
        """All faults of all lives."""
        return {fault for life in self.lives for fault in life.faults}


@dataclass
class Verdict:
    """What the trial's output was, against what it had to be."""

    duplicates: int
    missing: int
    strange: int
    struck: frozenset[Fault]
    lives: int
    #: Lives that ended before all was read, each by an error or a stop.
    cut_short: int
    expected: int

    @property
    def holds(self) -> bool:
        return not (self.duplicates or self.missing or self.strange)


@dataclass
class Bench:
    """What all trials share: the cluster, the session, and the input."""

    cluster: LocalCluster
    spark: SparkSession
    client: Client
    #: Key and value of every input row, by queue, in the order of offsets.
    rows: dict[tuple[str, int], list[tuple[str, str]]] = field(default_factory=dict)
    source: str = "numbered"

    def prepare(self) -> Bench:
        """Fill the source topic, and make the faulty sink known."""
        self.spark.dataSource.register(FaultySource)
        self.client.create_topic(self.source, queues=QUEUES)
        with self.client.producer(timeout_ms=60_000) as producer:
            for number, queue in enumerate(self.client.route(self.source).write_queues()):
                # Queues 0 and 1 have the same values, and so have 2 and 3.
                first = (number // 2) * ROWS_OF_QUEUE
                values = [str(n) for n in range(first, first + ROWS_OF_QUEUE)]
                keys = [f"k{n % KEYS}" for n in range(ROWS_OF_QUEUE)]
                table = pa.table({"body": pa.array(values, pa.binary()), "key": pa.array(keys, pa.binary())})
                producer.send_batch(self.source, table, queue=queue)
                self.rows[queue.broker, queue.queue] = list(zip(keys, values, strict=True))
        return self


class Course:
    """One trial under way."""

    def __init__(self, bench: Bench, trial: Trial, directory: Path) -> None:
        self._bench, self._trial = bench, trial
        self._checkpoint = directory / "checkpoint"
        self._faults = Faults(directory / "faults")
        self._topic = f"out-{trial.delivery}-{trial.seed}-{time.monotonic_ns()}"
        bench.client.create_topic(self._topic, queues=QUEUES)
        self._query = SinkQuery(
            nameservers=",".join(bench.cluster.nameservers),
            source=bench.source,
            topic=self._topic,
            shape=trial.shape,
            delivery=trial.delivery,
            checkpoint=str(self._checkpoint),
            faults=str(self._faults.directory),
            place=trial.place,
        )

    def run(self) -> Verdict:
        """Live all lives, then the last one, which must end well; return what came of it."""
        lives = cut_short = 0
        for life in self._trial.lives:
            self._announce()
            self._faults.lay(life.faults)
            cut_short += not self._live(life)
            lives += 1
            if life.loses_commit:
                self._lose_commit()
        self._faults.lay(())
        while not self._live(Life()):
            lives += 1
            cut_short += 1
            assert lives < LIVES_MAX, "the query never ends well"
        return self._verdict(lives + 1, cut_short)

    # --- a life ------------------------------------------------------------------

    def _live(self, life: Life) -> bool:
        """Run the query until it ends, by itself or not; return whether it read all there was."""
        begun = time.monotonic()
        kills = sorted(life.kills)
        stopped = False
        query = self._query.start(self._bench.spark)
        try:
            while not query.awaitTermination(POLL_S):
                elapsed = time.monotonic() - begun
                assert elapsed < LIFE_S, f"seed {self._trial.seed}: the query hangs: {query.status}"
                while kills and elapsed > kills[0][0]:
                    self._bench.cluster.kill(kills.pop(0)[1])
                self._revive()
                if life.stop_after is not None and elapsed > life.stop_after:
                    stopped = True
                    query.stop()
        except StreamingQueryException:
            # That is what the faults are for; a query that fails without one never ends well.
            stopped = True
        finally:
            query.stop()
            self._revive()
        return not stopped

    def _announce(self) -> None:
        for name in self._bench.cluster.brokers:
            self._faults.announce(name, self._bench.cluster.pid(name))

    def _revive(self) -> None:
        for name in self._bench.cluster.brokers:
            if not self._bench.cluster.running(name):
                self._bench.cluster.restart(name)
                self._faults.announce(name, self._bench.cluster.pid(name))

    def _lose_commit(self) -> None:
        """Take back the last entry of Spark's commit log, as if the driver had died before writing it."""
        commits, offsets = self._checkpoint / "commits", self._checkpoint / "offsets"
        begun = max((int(path.name) for path in offsets.glob("[0-9]*")), default=None)
        # Spark writes the offsets of the next batch only after the commit log: only the last can be lost.
        for name in (str(begun), f".{begun}.crc"):
            (commits / name).unlink(missing_ok=True)

    # --- what came of it -----------------------------------------------------------

    def _verdict(self, lives: int, cut_short: int) -> Verdict:
        expected, found = Counter(self._expected()), Counter(self._found())
        surplus, lacking = found - expected, expected - found
        duplicates = sum(count for row, count in surplus.items() if row in expected)
        return Verdict(
            duplicates,
            sum(lacking.values()),
            surplus.total() - duplicates,
            self._faults.struck(),
            lives,
            cut_short,
            expected.total(),
        )

    def _found(self) -> Iterator[tuple[str, str]]:
        """Yield key and value of every message of the output topic."""
        connection = connection_to(tuple(self._bench.cluster.nameservers))
        for queue in self._bench.client.route(self._topic).read_queues():
            broker = connection.broker(queue.broker, self._bench.cluster.brokers[queue.broker])
            yield from _messages(broker, queue)

    def _expected(self) -> Iterator[tuple[str, str]]:
        everything = [row for rows in self._bench.rows.values() for row in rows]
        if self._trial.shape is Shape.COPY:
            yield from everything
        elif self._trial.shape is Shape.DISTINCT:
            # Which of the two equal rows comes through is Spark's to say; their keys are equal, too.
            yield from set(everything)
        else:
            counts: Counter[str] = Counter()
            for keys in self._keys_of_batches():
                counts.update(keys)
                yield from ((key, str(counts[key])) for key in set(keys))

    def _keys_of_batches(self) -> Iterator[list[str]]:
        """Yield the keys of each micro-batch, as the offsets in the checkpoint cut the input."""
        before: dict[tuple[str, int], int] = {}
        log = self._checkpoint / "offsets"
        for number in sorted(int(path.name) for path in log.glob("[0-9]*")):
            line = (log / str(number)).read_text().splitlines()[-1]
            topic = json.loads(line)["topics"][self._bench.source]
            after = {(b, int(q)): int(offset) for b, queues in topic.items() for q, offset in queues.items()}
            keys = [
                key
                for place, end in after.items()
                for key, _ in self._bench.rows[place][before.get(place, 0) : end]
            ]
            before = after
            yield keys


def _messages(broker: Any, queue: MessageQueue) -> Iterator[tuple[str, str]]:
    offset = 0
    while True:
        pulled = broker.pull(queue.topic, queue.queue, offset)
        for piece in pulled.slices():
            keys, values = piece.batch.column("key").to_pylist(), piece.batch.column("body").to_pylist()
            yield from ((key.decode(), value.decode()) for key, value in zip(keys, values, strict=True))
        if pulled.next_offset == offset:
            return
        offset = pulled.next_offset


class DriverCourse(Course):
    """A trial in which every life is a Spark of its own, so that the driver can be killed, JVM and all."""

    def _live(self, life: Life) -> bool:
        begun = time.monotonic()
        command = [sys.executable, "-m", "tests.support.sink_query", self._query.document()]
        with (self._faults.directory.parent / "driver.log").open("ab") as log:
            driver = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, start_new_session=True)
        # Its whole process group: the Python driver and the JVM.
        self._faults.announce(DRIVER, -driver.pid)
        try:
            while driver.poll() is None:
                assert time.monotonic() - begun < LIFE_S, "the driver hangs"
                self._revive()
                with suppress(subprocess.TimeoutExpired):
                    driver.wait(POLL_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
        self._revive()
        return driver.returncode == 0


# --- what a seed says ----------------------------------------------------------------

#: The process of the driver, where it is one of its own.
DRIVER: Final = "driver"
BROKERS: Final = ("broker-a", "broker-b")

#: Two attempts of every task of a batch.
ALWAYS: Final = 2 * QUEUES * len(BROKERS)

#: The first seeds: between them every point is struck, in every way.
NAMED: Final[Sequence[tuple[Shape, tuple[Life, ...]]]] = (
    (
        Shape.COPY,
        (
            Life(
                (
                    Fault(Point.TASK_BEGINS, Harm.DIE, 0),
                    Fault(Point.COMMIT_BEGINS, Harm.KILL, 0, BROKERS[0]),
                    Fault(Point.COMMIT_BEGINS, Harm.DIE, 1),
                )
            ),
            Life((Fault(Point.TASK_MIDDLE, Harm.DIE, 1), Fault(Point.COMMIT_ENDS, Harm.RAISE, 1))),
            Life((Fault(Point.TASK_MIDDLE, Harm.RAISE, 2, times=ALWAYS),)),
            Life((Fault(Point.COMMIT_BEGINS, Harm.KILL, 3, BROKERS[1]),), loses_commit=True),
        ),
    ),
    (
        Shape.DISTINCT,
        (
            Life((Fault(Point.TASK_ENDS, Harm.RAISE, 0), Fault(Point.COMMIT_ENDS, Harm.DIE, 1))),
            Life((Fault(Point.TASK_ENDS, Harm.RAISE, 2, times=ALWAYS), Fault(Point.ABORT_BEGINS, Harm.DIE))),
            Life(loses_commit=True),
        ),
    ),
    (
        Shape.COUNTS,
        (Life((Fault(Point.COMMIT_ENDS, Harm.RAISE, 1),)),),
    ),
)


def trial(seed: int, delivery: str = "exactly-once") -> Trial:
    """Return a seed's course: the first are named, the others drawn."""
    if seed < len(NAMED):
        shape, lives = NAMED[seed]
        return Trial(seed, shape, lives, delivery)
    rng = random.Random(seed)
    shape = rng.choices(list(Shape), (6, 2, 2))[0]
    lives = tuple(_life(rng) for _ in range(rng.choice((1, 1, 2, 2, 3))))
    if shape is Shape.COUNTS:
        lives = tuple(replace(life, faults=tuple(map(_survivable, life.faults))) for life in lives)
    return Trial(seed, shape, lives, delivery)


def _survivable(fault: Fault) -> Fault:
    """What foreachBatch calls runs in this process, which is not to die."""
    return replace(fault, harm=Harm.RAISE) if fault.harm is Harm.DIE else fault


def _life(rng: random.Random) -> Life:
    faults = tuple(
        Fault(
            rng.choice(list(Point)),
            rng.choices((Harm.DIE, Harm.RAISE, Harm.KILL), (3, 3, 2))[0],
            rng.choice((-1, 0, 1, 2, 3)),
            rng.choice(BROKERS),
            rng.choice((1, 1, 1, ALWAYS)),
        )
        for _ in range(rng.choice((0, 1, 1, 2, 3)))
    )
    kills = tuple((rng.uniform(0.2, 2.0), rng.choice(BROKERS)) for _ in range(rng.choice((0, 0, 0, 1))))
    stop_after = rng.uniform(0.3, 2.5) if rng.random() < 0.25 else None
    return Life(faults, kills, stop_after, rng.random() < 0.5)
