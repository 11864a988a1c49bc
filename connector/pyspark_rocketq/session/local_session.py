"""Makes a SparkSession on this machine that works: with a Java, with the right Python, on loopback.

Three things make first runs of PySpark fail, with error messages that do not name them: there is no usable
Java ("Java gateway process exited"), the workers use another `python3` from PATH than the driver ("Python
worker failed to connect back"), or the host name does not resolve. `local_session` prevents all three.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from pyspark_rocketq.session.java import Java, find_java
from pyspark_rocketq.session.worker_python import worker_python

#: Settings for one machine, not for a cluster: loopback only, no UI port, no progress bar.
DEFAULTS: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

#: Spark's own logging configuration writes ten lines of warnings at each start.
LOGGING: Final = Path(__file__).with_name("log4j2.properties")

JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
#: The JVM compiles quickly instead of well, and collects garbage in one thread.
SHORT_LIVED: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def prepare_environment() -> Java:
    """Point JAVA_HOME and PySpark's Python at what Spark can use; raise JavaNotFound.

    Changes os.environ, since the JVM and the workers are started from it. A PYSPARK_PYTHON
    that is already set is the user's choice and stays.
    """
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # The workers of an interpreter in a virtual environment must find its `bin` first, too.
    here = str(Path(sys.executable).parent)
    if here not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([here, os.environ.get("PATH", os.defpath)])
    return java


def local_session(
    app_name: str = "rocketq", cores: int = 2, *, short_lived: bool = False, **conf: object
) -> SparkSession:
    """Return a SparkSession on `local[cores]`; `conf` adds to or overrides the defaults.

    `short_lived` is for tests and demonstrations: the JVM starts with a third less work, and long jobs
    run slower. Raises JavaNotFound, which names the places that were tried. A session that already runs is
    returned with the given conf, as Spark's builder does.

    Spark's Python processes are this interpreter without Spark's zip archives (`worker_python`), unless
    PYSPARK_PYTHON or PYSPARK_DRIVER_PYTHON names another one.
    """
    prepare_environment()
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        if os.environ[name] == sys.executable:
            os.environ[name] = worker_python()
    java_options = [
        f"-Dlog4j2.configurationFile={LOGGING.as_uri()}",
        *(SHORT_LIVED if short_lived else ()),
        str(conf.pop(JAVA_OPTIONS, "")),
    ]
    settings = {
        **DEFAULTS,
        JAVA_OPTIONS: " ".join(java_options).strip(),
        "spark.sql.shuffle.partitions": cores,
        **conf,
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName(app_name)
    for key, value in settings.items():
        builder = builder.config(key, str(value))
    return builder.getOrCreate()
