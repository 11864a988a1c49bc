"""Python processes of a session from `local_session` use the installed PySpark, and not its archive."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession

from pyspark_rocketq.session.worker_python import worker_python

INSTALLED = Path(pyspark.__file__).parent
ARCHIVES = sorted(str(each) for each in INSTALLED.glob("python/lib/*.zip"))


def path_seen(python_path: str | None, *arguments: str) -> list[str]:
    """The search path of a process that is started like one of Spark's."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if python_path is not None:
        environment["PYTHONPATH"] = python_path
    program = "import os, sys; print(os.environ.get('PYTHONPATH')); print(*sys.argv[1:], sep='\\n')"
    done = subprocess.run(
        [worker_python(), "-c", program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.spark
def test_workers_import_the_installed_pyspark(spark: SparkSession) -> None:
    def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import py4j
        import pyspark

        for _ in batches:
            yield pa.record_batch({"file": [pyspark.__file__, py4j.__file__, sys.executable]})

    found = [row["file"] for row in spark.range(0, 1, 1, 1).mapInArrow(where, "file string").collect()]
    assert found[0] == str(INSTALLED / "__init__.py")
    assert ".zip" not in found[1]
    assert found[2] == sys.executable


def test_only_the_archives_of_the_installed_pyspark_are_left_out(tmp_path: Path) -> None:
    other = str(tmp_path / "pyspark.zip")
    with_blank = str(tmp_path / "a folder")
    assert ARCHIVES
    assert path_seen(":".join([*ARCHIVES, other, with_blank])) == [f"{other}:{with_blank}", ""]
    assert path_seen(":".join(ARCHIVES)) == ["None", ""]
    assert path_seen(None) == ["None", ""]


def test_arguments_arrive_as_they_are() -> None:
    assert path_seen(None, "two words", "*", "$HOME", "") == ["None", "two words", "*", "$HOME", ""]
