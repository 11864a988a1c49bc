"""A SparkSession for a whole run of tests: small, quick to start, and with the connector in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def spark_session(warehouse: str | Path, app_name: str = "tests", **conf: object) -> Iterator[SparkSession]:
    """Yield a session on two cores in which a task may fail once, and stop it; `conf` adds to its settings.

    `format("rocketq")` is found in it, and Java and the workers' Python are those that Spark can use.
    Starting takes seconds, so share one among all tests. Raises JavaNotFound.
    """
    from pyspark_rocketq.session.local_session import local_session

    settings = {"spark.master": "local[2,2]", "spark.sql.warehouse.dir": str(warehouse), **conf}
    session = local_session(app_name, cores=2, short_lived=True, **settings)
    try:
        yield session
    finally:
        session.stop()
