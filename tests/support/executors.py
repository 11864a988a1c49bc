"""Spark's executors on this machine, as processes, seen from the Python processes of the same application.

    driver       Python ── JVM ── executor JVM ── daemon ── worker of a task
                            └──── daemon ── worker that commits

The driver of a trial leads a session of its own, which all of these are in; so nobody's executors
but its own are found.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_MAIN_CLASS: Final = b"CoarseGrainedExecutorBackend"


def nearest_executor() -> int:
    """Return the process of the executor around this one; outside of tasks, of any of its session."""
    around = next((each for each in _above(os.getpid()) if _is_executor(each)), None)
    found = around or next(_executors(), None)
    if found is None:
        raise ProcessLookupError("no executor runs")
    return found


def orphan_this_worker() -> None:
    """End the executor around this task, but its daemon first, so that nothing ends this worker."""
    daemon, *_ = _above(os.getpid())
    executor = nearest_executor()
    os.kill(daemon, signal.SIGKILL)
    os.kill(executor, signal.SIGKILL)


def _executors() -> Iterator[int]:
    """Yield the executors of this session, the oldest first."""
    session = os.getsid(0)
    for process in sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        # Processes end while one looks.
        with suppress(ProcessLookupError):
            if os.getsid(process) == session and _is_executor(process):
                yield process


def _above(process: int) -> Iterator[int]:
    while process > 1:
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        yield process


def _is_executor(process: int) -> bool:
    try:
        return _MAIN_CLASS in Path(f"/proc/{process}/cmdline").read_bytes()
    except FileNotFoundError:
        return False
