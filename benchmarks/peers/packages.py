"""What the peers need, by package coordinates: jars by Maven, Python packages by pip, kept between runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

KAFKA: Final = "4.1.1"
#: The newest PySpark that has a Kafka connector of its own version; both systems run on it.
PYSPARK: Final = "4.2.0"
CONFLUENT_KAFKA: Final = "2.16.1"
ROCKETMQ: Final = "5.5.0"

ROOT: Final = Path(__file__).parents[2]

_POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>peers</groupId><artifactId>peers</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>
  </dependency></dependencies>
</project>
"""


def cache() -> Path:
    """Where packages stay between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rocketq-peers"


def jars(group: str, artifact: str, version: str) -> Path:
    """Return a folder with a package's jar and all that it needs at run time."""
    folder = cache() / f"{artifact}-{version}"
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        pom = folder / "pom.xml"
        pom.write_text(_POM.format(group=group, artifact=artifact, version=version))
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
        subprocess.run(["mvn", "-q", "-B", "-f", str(pom), *goal], check=True)
        (folder / "complete").touch()
    return folder


def kafka() -> Path:
    """Return the folder with Kafka's server."""
    return jars("org.apache.kafka", "kafka_2.13", KAFKA)


def spark_connector() -> list[Path]:
    """Return Spark's own Kafka connector and what it needs beside Spark."""
    folder = jars("org.apache.spark", "spark-sql-kafka-0-10_2.13", PYSPARK)
    wanted = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
    return [jar for jar in sorted(folder.glob("*.jar")) if jar.name.startswith(wanted)]


def rocketmq_options(home: Path) -> list[str]:
    """Return the JVM options of RocketMQ's programs: their jars, and where they write their logs."""
    folders = [
        jars("org.apache.rocketmq", f"rocketmq-{part}", ROCKETMQ) for part in ("broker", "namesrv", "client")
    ]
    return [f"-Duser.home={home}", "-cp", ":".join(f"{folder}/*" for folder in folders)]


def python() -> Path:
    """Return a Python that has rocketq as it stands here, PySpark and confluent-kafka."""
    folder = cache() / f"python-pyspark-{PYSPARK}-confluent-kafka-{CONFLUENT_KAFKA}"
    binary = folder / "bin" / "python"
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        locked = folder / "requirements.txt"
        lines = (ROOT / "requirements" / "dev.txt").read_text().splitlines()
        locked.write_text("\n".join(line for line in lines if not line.startswith("pyspark==")) + "\n")
        wanted = ["-r", str(locked), f"pyspark=={PYSPARK}", f"confluent-kafka=={CONFLUENT_KAFKA}"]
        subprocess.run([str(binary), "-m", "pip", "install", "-q", *wanted], check=True)
        (folder / "complete").touch()
    install = [str(binary), "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*install, "-e", str(ROOT)], check=True)
    return binary
