"""What a system takes beside processor time: memory of its processes, and disk for each message.

Memory is the proportional set size: a page that several processes share counts once in all. It is sampled
each second, and the peak of each kind is kept: the broker, Spark's JVM, Spark's Python processes. One JVM
serves both sides, and its heap does not shrink, so its number belongs to no side alone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final

from benchmarks.kit.spark_ceilings import descendants_cpu

SAMPLE_S: Final = 1.0
_BLOCK: Final = 512


def resident_mib(pid: int) -> float:
    """Return a process's proportional set size; 0 when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    [line] = [line for line in lines if line.startswith("Pss:")]
    return int(line.split()[1]) / 1024


def disk_bytes(directory: Path) -> int:
    """Return what the files below a directory take on the disk; holes take nothing."""
    return sum(file.stat().st_blocks * _BLOCK for file in directory.rglob("*") if file.is_file())


class Memory:
    """Samples the memory of a system's processes while it works; a context manager."""

    def __init__(
        self, servers: Iterable[int], jvm: int, ignored: Iterable[int] = (), *, in_python: bool = True
    ) -> None:
        """`servers` are this side's; the other side's and programs that only send are `ignored`.

        Without `in_python` the Python processes are not this side's: the other one left them.
        """
        self._servers = frozenset(servers)
        self._jvm = jvm
        self._in_python = in_python
        self._ignored = frozenset(ignored)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.peak_mib: dict[str, int] = {}

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_S):
            workers = set(descendants_cpu()) - self._servers - self._ignored - {self._jvm, os.getpid()}
            found = {"broker": self._servers, "JVM": {self._jvm}}
            if self._in_python:
                found["Python"] = frozenset(workers)
            for kind, pids in found.items():
                mib = round(sum(map(resident_mib, pids)))
                self.peak_mib[kind] = max(mib, self.peak_mib.get(kind, 0))

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
