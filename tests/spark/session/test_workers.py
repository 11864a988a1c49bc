"""Executors that are processes of their own, as on a cluster: nothing travels but options and offsets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rocketq import LocalCluster
from tests.support.patience import PatientClient

pytestmark = [pytest.mark.spark, pytest.mark.slow]

# A process of its own: a JVM has one master.
PROGRAM = """
import sys
from pathlib import Path
from pyspark_rocketq.session.local_session import DEFAULTS, prepare_environment
prepare_environment()
import pyspark
from pyspark.sql import SparkSession

nameservers, checkpoint, first, second = sys.argv[1:]
# Workers find Spark's own files by this.
home = str(Path(pyspark.__file__).parent)
builder = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.test.home", home)
for key, value in DEFAULTS.items():
    builder = builder.config(key, value)
spark = builder.config("spark.executorEnv.SPARK_HOME", home).getOrCreate()
options = {"nameservers": nameservers}

tag = "IF(id % 2 = 0, 'even', 'odd') AS tag"
frame = spark.range(4000).repartition(4).selectExpr("CAST(id AS STRING) AS value", tag)
frame.write.format("rocketq").options(topic=first, **options).mode("append").save()
query = (
    spark.readStream.format("rocketq")
    .options(subscribe=first, startingOffsets="earliest", tags="even", maxOffsetsPerTrigger=1500, **options)
    .load().select("value").writeStream.format("rocketq").options(topic=second, **options)
    .option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
)
query.awaitTermination(180)
rows = spark.read.format("rocketq").options(subscribe=second, minPartitions=6, **options).load().collect()
executors = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
print("READ", sorted(int(row["value"]) for row in rows) == list(range(0, 4000, 2)), len(executors) - 1)
spark.stop()
"""


def test_batches_and_streams_run_on_two_workers(cluster: LocalCluster, topic: str, tmp_path: Path) -> None:
    first, second = f"{topic}-first", f"{topic}-second"
    with PatientClient(cluster.nameservers) as client:
        for name in (first, second):
            client.create_topic(name, queues=2)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, ",".join(cluster.nameservers), str(tmp_path), first, second],
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert "READ True 2" in done.stdout, done.stderr[-4000:]
