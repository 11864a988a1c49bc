"""Where the driver of a trial has its tasks run.

    local         in threads of the driver's JVM
    workers       Spark's local-cluster: two executors, processes of their own, of one core each
    speculating   the same, of two host names, and slow tasks are tried a second time beside the first

Spark runs no second attempt of a task on the host of the first, and a local-cluster is one host. So the
last kind starts its master and workers itself, in the driver's JVM, as a local-cluster does.
"""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import pyspark

_MEMORY_MB: Final = 1024
_HOSTS: Final = ("127.0.0.1", "127.0.0.2")

#: Where Spark's own files are, for workers; and this project's tests, for what their tasks import.
_HOME: Final = str(Path(pyspark.__file__).parent)
_ROOT: Final = str(Path(__file__).parents[2])

_WORKERS: Final = {
    "spark.master": f"local-cluster[{len(_HOSTS)},1,{_MEMORY_MB}]",
    "spark.test.home": _HOME,
    "spark.executorEnv.SPARK_HOME": _HOME,
    "spark.executorEnv.PYTHONPATH": os.pathsep.join([_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]),
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # What an executor that is gone had shuffled is not asked for again and again.
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "100ms",
}
#: The last task of four has a second attempt soon after the others are through.
_SPECULATION: Final = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.quantile": "0.75",
    "spark.speculation.efficiency.enabled": "false",
}


class Place(StrEnum):
    """What a driver's tasks run in."""

    LOCAL = "local"
    WORKERS = "workers"
    SPECULATING = "speculating"

    def conf(self, directory: Path) -> dict[str, str]:
        """Return what the session is to be configured with; starts what must be there before it."""
        match self:
            case Place.LOCAL:
                return {}
            case Place.WORKERS:
                return _WORKERS
            case Place.SPECULATING:
                return {**_WORKERS, **_SPECULATION, "spark.master": _two_hosts(directory)}


def _two_hosts(directory: Path) -> str:
    """Start a master and a worker for each host name in the JVM of the session to be; return its URL."""
    from pyspark import SparkContext

    from pyspark_rocketq.session.local_session import prepare_environment

    prepare_environment()
    SparkContext._ensure_initialized()
    gateway: Any = SparkContext._gateway
    spark, scala = gateway.jvm.org.apache.spark, gateway.jvm.scala
    conf = spark.SparkConf().set("spark.master.rest.enabled", "false")
    rpc = spark.deploy.master.Master.startRpcEnvAndEndpoint(_HOSTS[0], 0, 0, conf)._1()
    masters = gateway.new_array(gateway.jvm.String, 1)
    masters[0] = f"spark://{rpc.address().hostPort()}"
    for number, host in enumerate(_HOSTS):
        work = str(directory / f"worker-{number}")
        spark.deploy.worker.Worker.startRpcEnvAndEndpoint(
            host, 0, 0, 1, _MEMORY_MB, masters, work, scala.Some(number), conf, scala.Option.empty()
        )
    return str(masters[0])
