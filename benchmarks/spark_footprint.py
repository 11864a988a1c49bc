"""What a stream costs while nothing arrives, and what memory a task takes however long its range is.

An idle query asks twice a second, and a broker holds the question. It is compared with the same query
on a source that waits as long and asks nobody: what is left is ours, in Spark's Python processes, the
broker and the NameServer.

A task's memory is that of a process that reads a range as Spark's worker does and keeps no batch.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from benchmarks.kit.instrument import Options, introduce, options, report, say
from benchmarks.kit.spark_ceilings import descendants_cpu, prepare
from benchmarks.spark_read import QUEUES, ROWS, fill
from rocketq import Client, LocalCluster

IDLE_TARGET: Final = 0.05
#: A task's memory beyond that of the imports: three pulls of 4 MiB and the batches made of them.
MEMORY_TARGET: Final = 100 * 1024 * 1024

READER: Final = """
import json, sys
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from benchmarks.spark_footprint import resident_bytes
from pyspark_rocketq.options.table import Use
from pyspark_rocketq.options.options import source_options
from pyspark_rocketq.read.batch_reader import RocketqReader
from pyspark_rocketq.read.row_schema import source_schema
import pyspark_rocketq.read.frames_to_rows

reader = RocketqReader(source_options(json.loads(sys.argv[1]), Use.BATCH_READ), source_schema(False))
partitions = reader.partitions()
before, rows = resident_bytes("VmRSS"), 0
for partition in partitions[: int(sys.argv[2])]:
    for batch in reader.read(partition):
        rows += batch.num_rows
print(json.dumps({"rows": rows, "bytes": resident_bytes("VmHWM") - before}))
"""


def resident_bytes(what: str) -> int:
    """Memory this process holds now (VmRSS) or at most ever held (VmHWM)."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(what + ":"):
                return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc does not tell {what}")


def idle_cost(frame: DataFrame, seconds: float) -> float:
    """Run a query that gets nothing; return the cores that all processes used once it was under way."""
    with tempfile.TemporaryDirectory(prefix="rocketq-bench-") as checkpoint:
        query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        try:
            query.processAllAvailable()
            return cores_used(seconds)
        finally:
            query.stop()


def cores_used(seconds: float) -> float:
    """Wait until what was started has come to rest, then so long; return the cores used meanwhile."""
    wait(seconds / 2)
    before, started = descendants_cpu(), time.perf_counter()
    wait(seconds)
    # Of a process that has ended meanwhile nothing is known; an idle query ends none.
    used = sum(now - before.get(process, now) for process, now in descendants_cpu().items())
    return used / (time.perf_counter() - started)


def wait(seconds: float) -> None:
    threading.Event().wait(seconds)


def measure_idle(chosen: Options, cluster: LocalCluster, spark: SparkSession) -> dict[str, Any]:
    options = {"nameservers": ",".join(cluster.nameservers), "subscribe": "quiet"}
    ours = spark.readStream.format("rocketq").options(**options).load()
    waiting = spark.readStream.format("prebuilt").option("rows", 0).option("partitions", QUEUES).load()
    costs: dict[str, list[float]] = {"rocketq": [], "waits": [], "no query": []}
    turns: dict[str, Callable[[], float]] = {
        "rocketq": lambda: idle_cost(ours, chosen.seconds),
        "waits": lambda: idle_cost(waiting, chosen.seconds),
        "no query": lambda: cores_used(chosen.seconds),
    }
    say(
        f"-- an idle query on a topic of {QUEUES} queues, {chosen.seconds:g} s a turn: cores of all processes"
    )
    for turn in range(chosen.turns):
        for name, run in turns.items():
            costs[name].append(run())
            say(f"  turn {turn + 1}/{chosen.turns}  {name:<12} {costs[name][-1]:.3f}")
    extra = statistics.median(costs["rocketq"]) - statistics.median(costs["waits"])
    say(f"more than a source that only waits: {extra:.3f} of a core; {verdict(extra, IDLE_TARGET)}")
    return {"cores": costs, "extra": extra, "target": IDLE_TARGET}


def measure_memory(cluster: LocalCluster) -> dict[str, Any]:
    options = json.dumps({"nameservers": ",".join(cluster.nameservers), "subscribe": "bench"})
    found = {}
    for partitions in (1, QUEUES):
        done = subprocess.run(
            [sys.executable, "-c", READER, options, str(partitions)], check=True, capture_output=True
        )
        found[str(partitions)] = measured = json.loads(done.stdout)
        megabytes = measured["bytes"] / 1e6
        say(f"{measured['rows']:>12,} rows in {partitions} range(s): {megabytes:,.0f} MB at most")
    most = max(measured["bytes"] for measured in found.values())
    say(f"a task's memory: {verdict(most, MEMORY_TARGET)}")
    return {"ranges": found, "target": MEMORY_TARGET}


def verdict(value: float, target: float) -> str:
    return "met" if value < target else "MISSED"


def main() -> None:
    chosen = options("spark_footprint", "An idle stream, and a task's memory.", seconds=10, turns=3)
    introduce("spark_footprint")
    with LocalCluster(brokers=1) as cluster:
        with Client(cluster.nameservers) as client:
            client.create_topic("quiet", queues=QUEUES)
            client.create_topic("bench", queues=QUEUES)
        fill(cluster.brokers["broker-a"], chosen.seed)
        say(f"-- a task that reads {ROWS // QUEUES:,} rows and one that reads {ROWS:,}")
        memory = measure_memory(cluster)
        spark = prepare("footprint")
        try:
            idle = measure_idle(chosen, cluster, spark)
        finally:
            spark.stop()
    report("spark_footprint", chosen, {"idle": idle, "memory": memory})


if __name__ == "__main__":
    main()
