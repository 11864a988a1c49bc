"""The wheel, installed with each extra in a new environment outside the clone, and what is said of a part
whose extra is missing there.

Each environment costs a download and a minute or more: all of this is slow. pip's own configuration decides
where packages come from, and its cache saves most of the time of the next run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from rocketq.system.extras import MODULES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

CLONE = Path(__file__).parents[2]

#: A Spark query that nothing was registered for. Importing no rocketq, it is a job as users write it.
STREAM = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.readStream.format("rocketq").option("nameservers", sys.argv[1]).option("subscribe", "t")
rows = rows.option("startingOffsets", "earliest").load()
assert "value" in rows.columns, rows.columns
if sys.argv[2:]:
    query = rows.writeStream.format("memory").queryName("seen").option("checkpointLocation", sys.argv[2])
    query.trigger(availableNow=True).start().awaitTermination()
    assert [bytes(row.value) for row in spark.table("seen").collect()] == [b"hello"]
print("found")
"""

WITH_A_CLUSTER = """
import subprocess, sys
from rocketq import Client, LocalCluster
with LocalCluster(1) as cluster:
    with Client(cluster.nameservers) as client, client.producer() as producer:
        producer.send("t", b"hello")
    job = [sys.executable, "job.py", cluster.nameservers[0], "checkpoint"]
    sys.exit(subprocess.run(job).returncode)
"""


class Environment:
    """A virtual environment with the wheel, and an empty directory to run programs in."""

    def __init__(self, wheel: Path, directory: Path, extras: str) -> None:
        venv.create(directory / "venv", with_pip=True)
        self._bin, self._cwd = directory / "venv" / "bin", directory / "work"
        self._cwd.mkdir()
        wanted = f"{wheel}[{extras}]" if extras else str(wheel)
        installed = self.run("pip", "install", "--quiet", "--disable-pip-version-check", wanted)
        assert installed.returncode == 0, installed.stderr

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        ours = ("PYTHON", "PYSPARK")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        # As activating it does.
        environment = {**kept, "PATH": f"{self._bin}{os.pathsep}{os.environ['PATH']}"}
        return subprocess.run(
            [str(self._bin / program), *arguments],
            cwd=self._cwd, env=environment, capture_output=True, text=True, timeout=1500, check=False,
        )  # fmt: skip

    def python(self, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("python", "-c", code, *arguments)

    def write(self, name: str, text: str) -> None:
        (self._cwd / name).write_text(text)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(directory)]
    subprocess.run([*pip, str(CLONE)], check=True, timeout=600)
    return next(directory.glob("rocketq-*.whl"))


def missed(done: subprocess.CompletedProcess[str], extras: str) -> bool:
    """Whether a program ended with exit code 2 and the sentence that names these extras, and no traceback."""
    told = f"pip install 'rocketq[{extras}]'" in done.stderr and "Traceback" not in done.stderr
    return told and done.returncode == 2


def test_without_an_extra_the_client_is_there_and_each_other_part_names_its_extra(
    wheel: Path, tmp_path: Path
) -> None:
    bare = Environment(wheel, tmp_path, "")
    assert bare.run("rocketq", "--version").stdout.startswith("rocketq ")
    assert bare.python("from rocketq import Client; Client('http://127.0.0.1:1')").returncode == 0
    for server in (["up"], ["broker", "run"], ["nameserver", "run"], ["console"]):
        done = bare.run("rocketq", *server)
        assert missed(done, "server"), (server, done.stderr)
    for module in ("rocketq_broker", "rocketq_nameserver", "rocketq.console"):
        done = bare.run("python", "-m", module, *(["--name=a", "--data-dir=d"] if "broker" in module else []))
        assert missed(done, "server"), (module, done.stderr)
    demo = bare.run("rocketq", "demo")
    assert missed(demo, "server,spark,notebooks"), demo.stderr
    for code, extra in (
        ("from rocketq import LocalCluster; LocalCluster().start()", "server"),
        ("from rocketq.testing import EmbeddedCluster; EmbeddedCluster().start()", "server"),
        ("import pyspark_rocketq", "spark"),
        ("from pyspark_rocketq import local_session", "spark"),
        ("from rocketq import Client; Client('http://127.0.0.1:1', opentelemetry=True)", "otel"),
    ):
        last = bare.python(code).stderr.strip().splitlines()[-1]
        assert f"pip install 'rocketq[{extra}]'" in last, (code, last)


@pytest.mark.parametrize("extra", sorted(MODULES))
def test_each_extra_brings_what_it_is_known_by(wheel: Path, tmp_path: Path, extra: str) -> None:
    done = Environment(wheel, tmp_path, extra).python(
        f"from rocketq.system.extras import missing_modules; print(missing_modules({extra!r}))"
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_with_the_server_extra_alone_a_message_goes_through_a_cluster(wheel: Path, tmp_path: Path) -> None:
    servers = Environment(wheel, tmp_path, "server")
    done = servers.python(
        "from rocketq import Client, LocalCluster\n"
        "with LocalCluster(1) as cluster, Client(cluster.nameservers) as client:\n"
        "    with client.producer() as producer:\n"
        "        print(producer.send('t', b'hello').offset)\n"
    )
    assert done.stdout.strip() == "0", done.stderr
    assert servers.run("rocketq", "doctor").returncode in (0, 10)
    assert missed(servers.run("rocketq", "demo"), "spark,notebooks")


@pytest.mark.spark
def test_spark_finds_the_source_of_the_wheel_and_reads_a_stream_with_it(wheel: Path, tmp_path: Path) -> None:
    both = Environment(wheel, tmp_path, "server,spark,java")
    both.write("job.py", STREAM)
    done = both.python(WITH_A_CLUSTER)
    assert "found" in done.stdout, done.stderr[-3000:]
    where = both.python("import pyspark_rocketq; print(pyspark_rocketq.__file__)").stdout
    assert re.search(r"site-packages", where), where
    assert str(CLONE) not in where
