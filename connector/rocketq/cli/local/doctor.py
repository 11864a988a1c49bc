"""`rocketq doctor` and `rocketq demo`."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import rich_click as click

from rocketq.cli.terminal.output import UNHEALTHY, output_option, say, show
from rocketq.system import spark_python
from rocketq.system.extras import need

PORTS: Final = (9876, 10911, 10912)
PYTHON_MIN: Final = (3, 11)
DISK_FREE_MIN: Final = 2 << 30
#: What a worker of Spark must be able to import, and what it then says: Python's and PySpark's version.
WORKER_QUESTION: Final = (
    "import pyspark, pyspark_rocketq, sys; print('%d.%d' % sys.version_info[:2], pyspark.__version__)"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: ok, note (works, but know it) or bad, and what mends it."""

    check: str
    status: str
    found: str
    fix: str = ""


@click.command()
@click.option("--spark", is_flag=True, help="This host is to run Spark jobs: missing PySpark is a problem.")
@output_option
def doctor(spark: bool, output: str) -> int:
    """Look for what makes first runs fail: Python, Java, packages, ports, disk, proxies.

    A host that only has servers needs no PySpark. Exit code 10: there is a problem.

    \b
    Examples:
      rocketq doctor
      rocketq doctor --spark
      rocketq doctor -o json
    """
    findings = [check() for check in CHECKS]
    if spark and not has_pyspark():
        findings.append(Finding("--spark", "bad", "PySpark is not installed", "pip install 'rocketq[spark]'"))
    show([asdict(finding) for finding in findings], output)
    bad = [finding for finding in findings if finding.status == "bad"]
    if output == "table":
        fine = "everything rocketq and Spark need is here"
        without = "everything the servers and the client need is here; Spark jobs need PySpark, too"
        say(f"{len(bad)} problem(s)" if bad else fine if has_pyspark() else without)
    return UNHEALTHY if bad else 0


def has_pyspark() -> bool:
    return importlib.util.find_spec("pyspark") is not None


def python() -> Finding:
    found = f"{sys.version.split()[0]} at {sys.executable}"
    if sys.version_info[:2] < PYTHON_MIN:
        return Finding("python", "bad", found, "PySpark 4.3 needs Python 3.11 or newer")
    return Finding("python", "ok", found)


def pyspark() -> Finding:
    if not has_pyspark():
        return Finding("pyspark", "note", "not installed", "for Spark jobs: pip install 'rocketq[spark]'")
    return _package("pyspark", "pip install 'rocketq[spark]'")


def pandas() -> Finding:
    if not has_pyspark():
        return Finding("pandas", "note", "not looked for: there is no PySpark")
    finding = _package("pandas", "pip install 'rocketq[spark]'")
    if finding.status == "ok" and int(finding.found.split(".")[0]) >= 3:
        return Finding(
            "pandas", "note", finding.found, "PySpark 4.3 warns on pandas 3: pip install 'pandas<3'"
        )
    return finding


def servers() -> Finding:
    finding = _package("fastapi", "pip install 'rocketq[server]'")
    return Finding("servers", "ok" if finding.status == "ok" else "note", finding.found, finding.fix)


def java() -> Finding:
    if not has_pyspark():
        return Finding("java", "note", "not looked for: there is no PySpark")
    # Asked of a process of its own: this package stands below the Spark connector and cannot import it.
    asked = [sys.executable, "-m", "pyspark_rocketq.session.java"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        error = (
            json.loads(done.stdout) if done.stdout else {"message": done.stderr.strip()[-300:], "hint": ""}
        )
        return Finding("java", "bad", error["message"], error["hint"])
    found = json.loads(done.stdout)
    shim = ", through a shim for its missing vector module" if found["shimmed"] else ""
    return Finding("java", "ok", f"{found['version']} from {found['origin']} at {found['home']}{shim}")


def worker_python() -> Finding:
    """Ask the interpreter that Spark would start for a job that imports nothing of rocketq."""
    if not has_pyspark():
        return Finding("PYSPARK_PYTHON", "note", "not looked for: there is no PySpark")
    environment = dict(os.environ)
    if spark_python.was_set:
        # Importing rocketq has set it; a job need not have done so.
        del environment[spark_python.WORKERS]
    chosen, origin = spark_python.chosen_by_environment(environment)
    path = shutil.which(chosen, path=environment.get("PATH"))
    where = f"{path or chosen} (from {origin})"
    mend = f"export PYSPARK_PYTHON={shlex.quote(sys.executable)}"
    if path is None:
        return Finding("PYSPARK_PYTHON", "bad", f"Spark would start {where}, which does not exist", mend)
    if origin == spark_python.VARIABLES[0]:
        mend = f"unset {origin}; {mend}"
    elif origin == "PATH":
        mend += "   (or let the job import pyspark_rocketq before it makes its session)"
    problem = _problem_of(path, environment)
    if problem:
        return Finding("PYSPARK_PYTHON", "bad", f"Spark would start {where}: {problem}", mend)
    return Finding("PYSPARK_PYTHON", "ok", where)


def _problem_of(interpreter: str, environment: dict[str, str]) -> str:
    """Have an interpreter import what a worker of Spark imports; return why it cannot, or nothing."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    home = Path(environment.get("SPARK_HOME") or Path(spec.origin).parent)
    # Spark brings its own Python code to its workers, whatever their interpreter has installed.
    brought = [str(path) for path in sorted((home / "python" / "lib").glob("*.zip"))]
    inherited = [environment["PYTHONPATH"]] if environment.get("PYTHONPATH") else []
    environment["PYTHONPATH"] = os.pathsep.join([*brought, *inherited])
    # Not from this directory: a worker's is another one.
    asked = [interpreter, "-c", WORKER_QUESTION]
    try:
        done = subprocess.run(
            asked,
            env=environment,
            cwd=tempfile.gettempdir(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"it does not run: {error}"
    if done.returncode:
        last = done.stderr.strip().splitlines()
        return f"it cannot import pyspark_rocketq: {last[-1] if last else f'exit code {done.returncode}'}"
    said = done.stdout.split()
    here = "{}.{}".format(*sys.version_info[:2])
    if said[0] != here:
        return f"it is Python {said[0]}, this one is {here}"
    mine = version("pyspark").split(".")[:2]
    if said[1].split(".")[:2] != mine:
        return f"its PySpark is {said[1]}, here it is {version('pyspark')}"
    return ""


def ports() -> Finding:
    taken = []
    for port in PORTS:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                taken.append(str(port))
    if taken:
        return Finding(
            "ports",
            "note",
            f"in use: {', '.join(taken)}",
            "fine if your cluster is up; else: rocketq up --nameserver-port 0 --broker-port 0",
        )
    return Finding("ports", "ok", "free: " + ", ".join(map(str, PORTS)))


def disk() -> Finding:
    free = shutil.disk_usage(".").free
    found = f"{free / (1 << 30):.1f} GiB free here"
    if free < DISK_FREE_MIN:
        return Finding("disk", "bad", found, "free some, or choose another place: rocketq up --data-dir DIR")
    return Finding("disk", "ok", found)


def proxies() -> Finding:
    names = [name for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY") if os.environ.get(name)]
    if names:
        return Finding("proxies", "note", f"{', '.join(names)} set", "rocketq's client never uses a proxy")
    return Finding("proxies", "ok", "none set")


CHECKS: Final[tuple[Callable[[], Finding], ...]] = (
    python,
    java,
    pyspark,
    worker_python,
    pandas,
    servers,
    ports,
    disk,
    proxies,
)


def _package(name: str, fix: str) -> Finding:
    try:
        return Finding(name, "ok", version(name))
    except PackageNotFoundError:
        return Finding(name, "bad", "not installed", fix)


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def demo(arguments: tuple[str, ...]) -> None:
    """Run 336,776 flights through two brokers and Spark, and count them (under 90 s).

    \b
    Examples:
      rocketq demo
      rocketq demo --flights 20000
    """
    need("the demo", "server", "spark", "notebooks")
    # In this process's place: Spark's JVM wants a fresh process, and Ctrl-C is then the demo's own.
    os.execv(sys.executable, [sys.executable, "-m", "pyspark_rocketq.demo", *arguments])
