"""What the first use of the connector costs in a session, beside a Python source that does nothing.

    write     `spark.range(100)` into a topic; into nothing
    read      100 rows of a topic into `noop`; of no source
    stream    the same by a stream, `availableNow`

Each turn has a session of its own, in a process of its own, and one use in it. The session's own start is
left out; Spark's first Python process, all imports and the plan are in. What each turn prints are seconds.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Final

from pyspark.sql import SparkSession

from benchmarks.kit.instrument import Contestant, Options, alternate, introduce, options, report, say
from benchmarks.kit.spark_ceilings import descendants_cpu_seconds, prepare
from benchmarks.kit.spark_trivial import ROWS, TrivialSource
from rocketq import Client, LocalCluster

TOPIC: Final = "first"
USES: Final = ("write", "read", "stream")
#: Beyond a trivial Python source, in time.
TARGET: Final = 0.10


def use(spark: SparkSession, what: str, source: str, given: dict[str, str]) -> None:
    """Use a source once."""
    if what == "write":
        rows = spark.range(0, ROWS, 1, 1).selectExpr("cast('x' as binary) as value")
        rows.write.format(source).mode("append").options(**given).save()
    elif what == "read":
        rows = spark.read.format(source).options(**given).load().select("value")
        rows.write.format("noop").mode("overwrite").save()
    else:
        with tempfile.TemporaryDirectory(prefix="rocketq-bench-") as checkpoint:
            rows = spark.readStream.format(source).options(**given).load().select("value")
            writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
            writer.trigger(availableNow=True).start().awaitTermination()


def child(what: str, source: str, nameservers: str) -> None:
    """Use a source once in a new session; print the seconds and the processor seconds that it took."""
    given = {}
    if source == "rocketq":
        wanted = {"topic": "written"} if what == "write" else {"subscribe": TOPIC}
        given = {"nameservers": nameservers, **wanted}
        if what != "write":
            given["startingOffsets"] = "earliest"
    spark = prepare("first-use")
    spark.dataSource.register(TrivialSource)
    used, started = descendants_cpu_seconds() + time.process_time(), time.perf_counter()
    use(spark, what, source, given)
    seconds = time.perf_counter() - started
    used = descendants_cpu_seconds() + time.process_time() - used
    spark.stop()
    print(json.dumps([seconds, used]))


def measure(chosen: Options, what: str, nameservers: str) -> dict[str, Any]:
    def contestant(source: str) -> Contestant:
        side = Contestant(f"first {what}, {source}")

        def turn() -> float:
            command = [sys.executable, "-m", "benchmarks.spark_first_use", what, source, nameservers]
            run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            seconds, used = json.loads(run.stdout.splitlines()[-1])
            side.costs.append(used)
            return float(seconds)

        side.turn = turn
        return side

    ours, trivial = contestant("rocketq"), contestant("trivial")
    alternate([ours, trivial], chosen.turns)
    more = ours.median / trivial.median - 1
    say(
        f"first {what}: {ours.median:.2f} s, trivial {trivial.median:.2f} s, {more:+.0%} "
        f"({'met' if more <= TARGET else 'MISSED'}); processor s {ours.cost:.2f}, {trivial.cost:.2f}"
    )
    sides = {
        name: {"seconds": side.rates, "median": side.median, "processor_s": statistics.median(side.costs)}
        for name, side in (("ours", ours), ("trivial", trivial))
    }
    return {**sides, "more": round(more, 4), "target": TARGET}


def main() -> None:
    if len(sys.argv) == 4 and sys.argv[1] in USES:
        child(*sys.argv[1:])
        return
    chosen = options("spark_first_use", "The first use of the connector in a session.", turns=5)
    introduce("spark_first_use")
    with LocalCluster(brokers=1) as cluster, Client(cluster.nameservers) as client:
        for topic in (TOPIC, "written"):
            client.create_topic(topic, queues=8)
        with client.producer() as producer:
            for number in range(ROWS):
                producer.send(TOPIC, b"x", queue=number % 8)
        results = {what: measure(chosen, what, ",".join(cluster.nameservers)) for what in USES}
    report("spark_first_use", chosen, results)


if __name__ == "__main__":
    main()
