"""Streams that never end: processor time and end-to-end latency at steady rates, and of small batches.

    10,000 and 100,000 rows/s    a trigger each second, eight queues
    one row a second             as soon as it is there, in one queue, and in each of eight at the same time

Spark's Kafka connector waits up to `fetch.max.wait.ms` (500 by default) at the end of a partition, so it runs
with its default and with 10 ms.

A program of its own sends (`steady_sender`); the stream counts its rows by the time when they were due, in
`foreachBatch`. A row's latency ends when the driver has that count: sending, the broker, Spark's trigger, its
job and the answer are all in it. What comes before the stream is warm is left out. Processor time is that of
all processes but the sender's: broker, Spark's JVM, Spark's Python processes and this one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.kit.instrument import Options, introduce, options, report, say
from benchmarks.kit.spark_ceilings import descendants_cpu
from benchmarks.peers.footprint import Memory
from benchmarks.peers.systems import BOTH, Setup, System, both

SECONDS: Final = 120.0
#: Of the stream's begin, not counted.
WARMING_S: Final = 15.0
#: How long the last rows may take, after the sender has ended.
LATE_S: Final = 60.0
POLL_S: Final = 0.1


@dataclass(frozen=True)
class Case:
    name: str
    rows_per_s: int
    queues: int
    trigger: str


CASES: Final = (
    Case("10,000 rows/s", 10_000, 8, "1 second"),
    Case("100,000 rows/s", 100_000, 8, "1 second"),
    Case("1 row a second", 1, 1, "0 seconds"),
    Case("1 row a second in 8 queues", 8, 8, "0 seconds"),
)


@dataclass
class Arrivals:
    """How late rows were, in ms, by when they were due; a batch's rows count when its count is there."""

    #: From when on rows count, in ms since 1970.
    counted_from: float
    latency_ms: Counter[int] = field(default_factory=Counter)
    rows: int = 0

    def take(self, batch: DataFrame, _: int) -> None:
        due = F.substring(F.col("value").cast("string"), 1, 16).cast("long")
        found = batch.groupBy((due / 1000).cast("long").alias("due")).count().collect()
        now = time.time() * 1000
        for due_ms, rows in found:
            self.rows += rows
            if due_ms >= self.counted_from:
                self.latency_ms[round(now - due_ms)] += rows

    def percentile(self, part: float) -> int:
        """Return the latency that this part of the rows did not exceed."""
        left = part * self.latency_ms.total()
        for latency, rows in sorted(self.latency_ms.items()):
            left -= rows
            if left <= 0:
                return latency
        raise RuntimeError("no row arrived after the stream was warm: give it more --seconds")


def eager(kafka: System) -> System:
    """Return Kafka with a connector that hardly waits at the end of a partition."""
    setting = "fetch.max.wait.ms"
    return replace(kafka, name=f"Kafka, {setting}=10", to={**kafka.to, f"kafka.{setting}": "10"})


@contextmanager
def sender(system: System, case: Case, topic: str, seconds: float) -> Iterator[subprocess.Popen[str]]:
    about = [system.format, system.address, topic, str(case.queues), str(case.rows_per_s), str(seconds)]
    command = [sys.executable, "-m", "benchmarks.peers.steady_sender", *about]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def run(setup: Setup, system: System, case: Case, topic: str, seconds: float) -> dict[str, Any]:
    """Stream for so many seconds after the warming; return latencies and costs of one side."""
    system.make_topic(topic, case.queues)
    arrivals = Arrivals(counted_from=float("inf"))
    given = {**system.to, "subscribe": topic, "startingOffsets": "earliest"}
    rows = setup.spark.readStream.format(system.format).options(**given).load()
    writer = rows.writeStream.foreachBatch(arrivals.take).trigger(processingTime=case.trigger)
    with tempfile.TemporaryDirectory(prefix="peers-") as checkpoint:
        query = writer.option("checkpointLocation", checkpoint).start()
        try:
            with sender(system, case, topic, WARMING_S + seconds) as process:
                threading.Event().wait(WARMING_S)
                arrivals.counted_from = time.time() * 1000
                ignored = {*setup.other(system).pids, process.pid}
                before, started = _used(ignored), time.monotonic()
                with Memory(system.pids, setup.jvm, ignored, in_python=system.in_python) as memory:
                    process.wait()
                used, took = _used(ignored) - before, time.monotonic() - started
                assert process.stdout is not None
                told = json.loads(process.stdout.read())
            waits = time.monotonic() + LATE_S
            while arrivals.rows < told["sent"] and query.isActive and time.monotonic() < waits:
                time.sleep(POLL_S)
        finally:
            query.stop()
    if arrivals.rows != told["sent"]:
        raise RuntimeError(f"{system.name}: {told['sent']} rows were sent, {arrivals.rows} arrived")
    return {
        "latency_ms": {name: arrivals.percentile(part) for name, part in PERCENTILES.items()},
        "rows": arrivals.latency_ms.total(),
        "processor_cores": round(used / took, 3),
        "sender_processor_cores": round(told["processor_s"] / (WARMING_S + seconds), 3),
        "memory_mib": memory.peak_mib,
    }


PERCENTILES: Final = {"p50": 0.5, "p99": 0.99, "max": 1.0}


def _used(ignored: set[int]) -> float:
    """Return the processor seconds of all processes below this one and of it, without the ignored."""
    own = time.process_time()
    return own + sum(spent for pid, spent in descendants_cpu(reaped=True).items() if pid not in ignored)


def measure(chosen: Options, setup: Setup) -> dict[str, Any]:
    results: dict[str, Any] = {}
    topics = count()
    for number, case in enumerate(CASES):
        for turn in range(chosen.turns):
            sides = (setup.ours, setup.theirs, eager(setup.theirs))
            for system in sides if (number + turn) % 2 == 0 else reversed(sides):
                found = run(setup, system, case, f"steady-{next(topics)}", chosen.seconds)
                results.setdefault(case.name, {}).setdefault(system.name, []).append(found)
                late = ", ".join(f"{name} {ms:,} ms" for name, ms in found["latency_ms"].items())
                say(
                    f"{case.name:<28} {system.name:<26} {late}; {found['processor_cores']:.2f} cores "
                    f"(the sender {found['sender_processor_cores']:.2f}); MiB {found['memory_mib']}"
                )
    return {"streams": results}


def main() -> None:
    chosen = options("peers.steady_streams", "Streams at steady rates, on both sides.", SECONDS, turns=1)
    introduce("peers.steady_streams")
    with both("peers-streams") as setup:
        results = measure(chosen, setup)
    report("peers.steady_streams", chosen, {"systems": BOTH, **results})


if __name__ == "__main__":
    main()
