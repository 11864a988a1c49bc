"""Which Python Spark starts beside a job, and how importing rocketq makes it the job's own.

Spark plans and runs Python data sources in processes that its JVM starts. The JVM takes the interpreter from
its environment (`PythonUtils.defaultPythonExec` in Spark 4.2 and 4.3): PYSPARK_DRIVER_PYTHON, else
PYSPARK_PYTHON, else `python3` on PATH. A job that is run as `.venv/bin/python job.py`, without activating the
environment, so has another `python3` there, one without rocketq, and its `format("rocketq")` ends with
DATA_SOURCE_NOT_FOUND.

So importing rocketq sets PYSPARK_PYTHON to this interpreter, but only where this trap is open: PySpark is
installed, neither variable is set, `python3` on PATH is of another environment, and this process has yet to
start its JVM. ROCKETQ_SET_PYSPARK_PYTHON=0 turns it off.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping, MutableMapping
from typing import Final

SWITCH: Final = "ROCKETQ_SET_PYSPARK_PYTHON"
WORKERS: Final = "PYSPARK_PYTHON"
#: In the JVM's order.
VARIABLES: Final = ("PYSPARK_DRIVER_PYTHON", WORKERS)
#: Set where the JVM is there already: it started this process, as a job or as a worker.
_OF_A_JVM: Final = ("PYSPARK_GATEWAY_PORT", "PYTHON_WORKER_FACTORY_PORT", "PYTHON_WORKER_FACTORY_SOCK_PATH")

#: Whether this module has set PYSPARK_PYTHON in this process.
was_set = False


def chosen_by_environment(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the interpreter that a JVM with this environment starts, and what names it."""
    for name in VARIABLES:
        if environment.get(name):
            return environment[name], name
    return "python3", "PATH"


def set_spark_python(environment: MutableMapping[str, str] | None = None) -> None:
    """Set PYSPARK_PYTHON in the environment, `os.environ` if none is given, where the header says so."""
    global was_set
    variables = os.environ if environment is None else environment
    if sys.executable and _may_mix_pythons(variables):
        variables[WORKERS] = sys.executable
        was_set = True


def _may_mix_pythons(environment: Mapping[str, str]) -> bool:
    if environment.get(SWITCH) == "0" or any(environment.get(name) for name in (*VARIABLES, *_OF_A_JVM)):
        return False
    if _has_jvm() or _is_of_this_environment(shutil.which("python3", path=environment.get("PATH"))):
        return False
    return importlib.util.find_spec("pyspark") is not None


def _has_jvm() -> bool:
    """Whether this process has started Spark's JVM, which then has its environment."""
    context = sys.modules.get("pyspark.core.context")
    return context is not None and context.SparkContext._gateway is not None


def _is_of_this_environment(python3: str | None) -> bool:
    """Whether an interpreter is in the folder of this one; a virtual environment has its own folder."""
    if python3 is None:
        return False
    return os.path.realpath(os.path.dirname(python3)) == os.path.realpath(os.path.dirname(sys.executable))
