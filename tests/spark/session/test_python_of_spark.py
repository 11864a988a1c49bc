"""Which Python Spark starts beside a job that is run from an environment nobody activated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from rocketq import LocalCluster
from rocketq.system.spark_python import set_spark_python

JOB = """
import sys

import pyspark_rocketq
from pyspark.sql import SparkSession

nameservers, topic = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    .getOrCreate()
)
rocketq = {"nameservers": nameservers}
rows = spark.createDataFrame([("one",), ("two",)], "value string")
rows.write.format("rocketq").options(topic=topic, **rocketq).mode("append").save()
print("rows:", spark.read.format("rocketq").options(subscribe=topic, **rocketq).load().count())
"""


@pytest.fixture
def unactivated(tmp_path: Path) -> dict[str, str]:
    """An environment whose `python3` is the one that this virtual environment was made from."""
    other = tmp_path / "bin"
    other.mkdir()
    (other / "python3").symlink_to(os.path.realpath(sys.executable))
    ours = str(Path(sys.executable).parent)
    rest = [folder for folder in os.environ["PATH"].split(os.pathsep) if folder != ours]
    left_out = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYTHONPATH", "ROCKETQ_SET_PYSPARK_PYTHON")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**kept, "PATH": os.pathsep.join([str(other), *rest])}


def run_job(
    environment: dict[str, str], cluster: LocalCluster, topic: str, directory: Path
) -> subprocess.CompletedProcess[str]:
    script = directory / "job.py"
    script.write_text(JOB)
    command = [sys.executable, str(script), cluster.nameservers[0], topic]
    return subprocess.run(
        command, env=environment, cwd=directory, capture_output=True, text=True, timeout=540, check=False
    )


@pytest.mark.spark
def test_a_job_run_by_path_writes_and_reads_topics(
    unactivated: dict[str, str], cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    done = run_job(unactivated, cluster, topic, tmp_path)
    assert done.returncode == 0, done.stderr[-4_000:]
    assert "rows: 2" in done.stdout


@pytest.mark.slow
def test_with_the_switch_off_the_other_python_knows_no_rocketq(
    unactivated: dict[str, str], cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    done = run_job({**unactivated, "ROCKETQ_SET_PYSPARK_PYTHON": "0"}, cluster, topic, tmp_path)
    assert done.returncode != 0
    assert "DATA_SOURCE_NOT_FOUND" in done.stderr


def test_the_doctor_finds_that_spark_would_start_another_python(unactivated: dict[str, str]) -> None:
    command = [sys.executable, "-m", "rocketq.cli.main", "doctor", "-o", "json"]
    done = subprocess.run(command, env=unactivated, capture_output=True, text=True, check=False)
    [found] = [row for row in json.loads(done.stdout) if row["check"] == "PYSPARK_PYTHON"]
    assert done.returncode == 10
    assert found["status"] == "bad"
    assert "No module named 'pyspark_rocketq'" in found["found"]
    assert f"export PYSPARK_PYTHON={sys.executable}" in found["fix"]
    mended = {**unactivated, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, env=mended, capture_output=True, text=True, check=False)
    [found] = [row for row in json.loads(done.stdout) if row["check"] == "PYSPARK_PYTHON"]
    assert found["status"] == "ok", found


Outcome = Callable[[dict[str, str]], str | None]


@pytest.fixture
def outcome(unactivated: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """What PYSPARK_PYTHON becomes in the unactivated environment with these variables, before any session."""
    monkeypatch.setitem(sys.modules, "pyspark.core.context", None)
    monkeypatch.setattr("rocketq.system.spark_python.was_set", False)

    def become(changed: dict[str, str]) -> str | None:
        environment = {**unactivated, **changed}
        set_spark_python(environment)
        return environment.get("PYSPARK_PYTHON")

    return become


def test_the_interpreter_is_set_where_another_one_would_be_started(outcome: Outcome) -> None:
    assert outcome({}) == sys.executable
    assert outcome({"PATH": "/nonexistent"}) == sys.executable


@pytest.mark.parametrize(
    "changed",
    [
        {"PYSPARK_DRIVER_PYTHON": "/usr/bin/python3"},
        {"ROCKETQ_SET_PYSPARK_PYTHON": "0"},
        {"PATH": str(Path(sys.executable).parent)},
        {"PYSPARK_GATEWAY_PORT": "4711"},
        {"PYTHON_WORKER_FACTORY_PORT": "4711"},
        {"PYTHON_WORKER_FACTORY_SOCK_PATH": "/tmp/socket"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_nothing_is_set_where_it_is_needless_or_too_late(outcome: Outcome, changed: dict[str, str]) -> None:
    assert outcome(changed) is None


def test_a_choice_of_the_user_stays(outcome: Outcome) -> None:
    assert outcome({"PYSPARK_PYTHON": "/opt/python"}) == "/opt/python"


def test_nothing_is_set_once_this_process_has_started_the_jvm(
    outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = types.SimpleNamespace(SparkContext=types.SimpleNamespace(_gateway=object()))
    monkeypatch.setitem(sys.modules, "pyspark.core.context", started)
    assert outcome({}) is None
