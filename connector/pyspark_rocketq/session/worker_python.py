"""The interpreter of Spark's Python processes: this one, with PySpark from where it is installed.

Spark puts two archives of PySpark's own folder, `pyspark.zip` and Py4J's, first on PYTHONPATH of each Python
process that it starts (Spark: `PythonUtils.sparkPythonPath`). Python keeps no bytecode for modules in a zip,
so every such process compiles PySpark anew, 0.4 to 0.6 s of processor time. The installed packages are the
same code, with bytecode. So Spark is given a script that takes the two archives off PYTHONPATH and then
becomes this interpreter.

The archives of another Spark, which SPARK_HOME may name, stay: their code may differ from what is installed.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

import pyspark

_SCRIPT: Final = """\
#!/bin/sh
kept=
set -f
IFS=:
for part in $PYTHONPATH; do
    case $part in
        {left_out}) ;;
        *) kept=${{kept:+$kept:}}$part ;;
    esac
done
if [ -n "$kept" ]; then export PYTHONPATH="$kept"; else unset PYTHONPATH; fi
unset IFS
exec {python} "$@"
"""


@cache
def worker_python() -> str:
    """Return the path of the script, which is removed when this process ends.

    Returns this interpreter's own path where there are no archives, or no script can be run.
    """
    archives = sorted(Path(pyspark.__file__).parent.glob("python/lib/*.zip"))
    if os.name != "posix" or not archives:
        return sys.executable
    folder = Path(tempfile.mkdtemp(prefix="rocketq-python-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    script = folder / "python"
    left_out = "|".join(shlex.quote(str(archive)) for archive in archives)
    script.write_text(_SCRIPT.format(left_out=left_out, python=shlex.quote(sys.executable)))
    script.chmod(0o755)
    # Nothing in a file system that is mounted with `noexec` can be run.
    return str(script) if os.access(script, os.X_OK) else sys.executable
