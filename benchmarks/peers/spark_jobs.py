"""Spark jobs: rocketq's data source against Spark's own Kafka connector, in one session, local[2].

8 queues or partitions, one broker each, no sync for a write. Rows of 100 bytes, and flights as JSON.

    write literal     a batch write of one constant value: the generator costs nearly nothing
    write computed    a batch write of values that the JVM makes of each row's number
    write flights     a batch write of documents from a Parquet file
    read, value       a batch read of the column `value`
    read, all         a batch read of all columns
    read flights      a batch read of the documents
    stream            a stream over the same backlog, `availableNow`
    topic to topic    a stream from one topic into another: rocketq exactly once, Kafka at least once, since
                      its sink offers no more

Each write goes into the same topic again. A stream's turn has a checkpoint of its own. `disk bytes` is what a
message of a backlog takes on the broker's disk, all its files together.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from pyspark.sql import DataFrame

from benchmarks.kit.instrument import Options, introduce, options, report, say
from benchmarks.kit.spark_rows import rows_of
from benchmarks.peers.footprint import Memory, disk_bytes
from benchmarks.peers.jobs import QUEUES, Jobs
from benchmarks.peers.sides import MINUTES, Allotment, Side, interleave
from benchmarks.peers.spark_rows import flights_of
from benchmarks.peers.systems import BOTH, Setup, both

ROWS: Final = 2_000_000


def fill(sides: list[Jobs], backlogs: dict[str, tuple[DataFrame, int]]) -> dict[str, dict[str, int]]:
    """Write each backlog on each side; return the disk bytes a message of each, by the side's name."""
    taken: dict[str, dict[str, int]] = {}
    for jobs in sides:
        for topic, (rows, number) in backlogs.items():
            before = disk_bytes(jobs.system.data)
            jobs.system.make_topic(topic, QUEUES)
            jobs.write(rows, topic)
            size = round((disk_bytes(jobs.system.data) - before) / number)
            taken.setdefault(topic, {})[jobs.system.name] = size
            say(f"   {jobs.system.name}: a message of {topic} takes {size} bytes of disk")
    return taken


def measure(chosen: Options, setup: Setup, directory: Path) -> dict[str, Any]:
    rows = chosen.messages
    literal, computed = (rows_of(setup.spark, kind, rows) for kind in ("literal", "computed"))
    flights, flown = flights_of(setup.spark, directory)
    sides = [Jobs(setup.spark, setup.ours), Jobs(setup.spark, setup.theirs)]
    taken = fill(sides, {"backlog": (literal, rows), "flights": (flights, flown)})
    for jobs in sides:
        jobs.system.make_topic("written", QUEUES)
    works: dict[str, tuple[int, Callable[[Jobs], None]]] = {
        "write literal": (rows, lambda jobs: jobs.write(literal, "written")),
        "write computed": (rows, lambda jobs: jobs.write(computed, "written")),
        "write flights": (flown, lambda jobs: jobs.write(flights, "written")),
        "read, value": (rows, lambda jobs: jobs.read("backlog", "value")),
        "read, all": (rows, lambda jobs: jobs.read("backlog", "*")),
        "read flights": (flown, lambda jobs: jobs.read("flights", "value")),
        "stream": (rows, lambda jobs: jobs.stream("backlog", rows)),
        "topic to topic": (rows, lambda jobs: jobs.copy("backlog", rows)),
    }
    results: dict[str, Any] = {}
    allotment = Allotment(chosen.minutes, len(works))
    for name, (number, work) in works.items():
        # Default arguments bind this round's work, not the last one's.
        turns = [
            Side(jobs.system.name, lambda jobs=jobs, work=work: work(jobs))  # type: ignore[misc]
            for jobs in sides
        ]
        results[name] = interleave(name, turns, number, chosen.turns, allotment)
    return {"works": results, "disk_bytes_a_message": taken, "memory_mib": _memory(setup, sides, rows)}


def _memory(setup: Setup, sides: list[Jobs], rows: int) -> dict[str, dict[str, int]]:
    """Stream topic to topic once more on each side; return the peak memory of its processes."""
    peaks = {}
    for jobs in sides:
        other = setup.other(jobs.system)
        with Memory(jobs.system.pids, setup.jvm, other.pids, in_python=jobs.system.in_python) as memory:
            jobs.copy("backlog", rows)
        peaks[jobs.system.name] = memory.peak_mib
        say(f"   {jobs.system.name}: memory in MiB, topic to topic: {memory.peak_mib}")
    return peaks


def main() -> None:
    chosen = options(
        "peers.spark_jobs",
        "Spark jobs, beside Spark's Kafka connector.",
        turns=5,
        messages=ROWS,
        minutes=MINUTES,
    )
    introduce("peers.spark_jobs")
    with both("peers-jobs") as setup, TemporaryDirectory(prefix="peers-flights-") as directory:
        results = measure(chosen, setup, Path(directory))
    report("peers.spark_jobs", chosen, {"systems": BOTH, **results})


if __name__ == "__main__":
    main()
