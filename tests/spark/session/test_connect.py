"""Spark Connect: the client names the source, the server finds it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rocketq import LocalCluster
from tests.support.patience import PatientClient

pytestmark = [pytest.mark.spark, pytest.mark.slow]

# A process of its own: a session of Connect and a classic one do not share a Python.
PROGRAM = """
import sys
from pyspark_rocketq.session.local_session import prepare_environment
prepare_environment()
from pyspark.sql import SparkSession

spark = SparkSession.builder.remote("local[2]").getOrCreate()
options = {"nameservers": sys.argv[1]}
frame = spark.range(10).selectExpr("CAST(id AS STRING) AS value")
frame.write.format("rocketq").options(topic="first", **options).mode("append").save()
query = (
    spark.readStream.format("rocketq").options(subscribe="first", startingOffsets="earliest", **options)
    .load().select("value").writeStream.format("rocketq")
    .options(topic="second", sinkId="connected", **options)
    .option("checkpointLocation", sys.argv[2]).trigger(availableNow=True).start()
)
query.awaitTermination(120)
rows = spark.read.format("rocketq").options(subscribe="second", **options).load().collect()
print("READ", sorted(int(row["value"]) for row in rows))
spark.stop()
"""


def test_batches_and_streams_run_over_connect(cluster: LocalCluster, tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, ",".join(cluster.nameservers), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert f"READ {list(range(10))}" in done.stdout, done.stderr[-4000:]
    with PatientClient(cluster.nameservers) as client:
        known = client.sink("connected").describe()
    assert known.decided is not None, "a Connect query writes exactly once, too"
    assert known.query
