"""Every Spark session imports this package, so its import must be light and cannot be allowed to fail."""

from __future__ import annotations

import subprocess
import sys

from rocketq import LocalCluster

FORBIDDEN = (
    "fastapi",
    "uvicorn",
    "pydantic",
    "pandas",
    "grpc",
    "pyspark.sql.connect",
    "pyarrow",
    "numpy",
    "urllib3",
)


def test_importing_the_package_loads_next_to_nothing() -> None:
    code = (
        "import pyspark.sql.datasource, sys\n"
        "before = set(sys.modules)\n"
        "import pyspark_rocketq\n"
        "print('\\n'.join(set(sys.modules) - before))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "pyspark_rocketq" in loaded
    assert [name for name in loaded if name.startswith(FORBIDDEN)] == []


def test_the_name_spark_looks_for_is_there() -> None:
    from pyspark.sql.datasource import DataSource

    from pyspark_rocketq import DefaultSource

    assert issubclass(DefaultSource, DataSource)
    assert DefaultSource.name() == "rocketq"


def test_a_worker_that_reads_or_writes_loads_no_dataframe_library(cluster: LocalCluster, topic: str) -> None:
    """The worker's own code, as Spark calls it. Arrow imports pandas with the first value it converts."""
    program = """
import sys

from rocketq import LocalCluster
import pyarrow as pa
from pyspark_rocketq.options.options import source_options
from pyspark_rocketq.options.table import Use
from pyspark_rocketq.read.batch_reader import RocketqReader
from pyspark_rocketq.read.row_schema import source_schema
from pyspark_rocketq.write.rows_to_messages import addressed
from rocketq import Client

nameserver, topic = sys.argv[1:]
with Client(nameserver) as mq, mq.producer() as producer:
    mq.create_topic(topic, queues=2)
    producer.send(topic, b"a", key="k", tag="t", properties={"p": "1"})
    producer.send(topic, b"b")
given = {"nameservers": nameserver, "subscribe": topic, "includeProperties": "true"}
reader = RocketqReader(source_options(given, Use.BATCH_READ), source_schema(True))
batches = [batch for one in reader.partitions() for batch in reader.read(one)]
assert sum(batch.num_rows for batch in batches) == 2
for batch in batches:
    for _, messages in addressed(batch.select(["topic", "broker", "queue", "value", "key"]), None):
        with Client(nameserver) as mq, mq.producer() as producer:
            producer.send_batch(topic, messages)
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program, cluster.nameservers[0], topic], check=True)
