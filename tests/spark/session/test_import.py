"""Every Spark session imports this package, so its import must be light and cannot be allowed to fail."""

from __future__ import annotations

import subprocess
import sys

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
