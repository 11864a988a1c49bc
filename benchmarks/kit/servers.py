"""Servers as processes of their own: a broker as a user starts it, or a ceiling."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final
from urllib.parse import urlsplit

_TICKS: Final = os.sysconf("SC_CLK_TCK")
#: For brokers whose messages are counted in the end: a disk that is nearly full removes none of them.
KEEPS_ALL: Final = ("--watermarks", "97,98,99")


def processor_cost(server: Server, costs: list[float], seconds: float, rate: Callable[[], float]) -> float:
    """Run a turn of `seconds` and note what each of its units cost the server; return the turn's rate."""
    used = server.cpu_seconds()
    measured = rate()
    costs.append((server.cpu_seconds() - used) / (measured * seconds))
    return measured


def cpu_seconds_of(pid: int) -> float:
    """Processor time that a process has used, of all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


class Server:
    """A process that announces its address on one line of stdout; a context manager."""

    def __init__(self, *command: str) -> None:
        self.command = [sys.executable, "-m", *command]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed when the server ends
        self._process: subprocess.Popen[bytes] | None = None
        self.host = ""
        self.port = 0

    def __enter__(self) -> Server:
        self._process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=self._log)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._log.seek(0)
            raise RuntimeError(self._log.read().decode(errors="replace"))
        place = urlsplit(json.loads(line)["address"])
        self.host, self.port = str(place.hostname), int(place.port or 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()

    def kill(self) -> None:
        """End the process as a crash would: SIGKILL, nothing said."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    @property
    def address(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def cpu_seconds(self) -> float:
        """Processor time the server has used, of all its threads."""
        return cpu_seconds_of(self.pid)

    def memory_bytes(self, what: str = "VmRSS") -> int:
        """Memory the server holds now (VmRSS) or at most ever held (VmHWM)."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(what + ":"):
                return int(line.split()[1]) * 1024
        raise RuntimeError(f"/proc does not tell {what}")


def broker(directory: str | Path, *arguments: str, sync_ms: float = 0.0) -> Server:
    """A broker on a free port of this machine, flushing asynchronously, known to no NameServer.

    With `sync_ms` its disk takes that much longer for every sync.
    """
    module = ["benchmarks.slow_disk", str(sync_ms)] if sync_ms else ["rocketq_broker"]
    return Server(
        *module, "--name", "broker-a", "--data-dir", str(directory), "--port", "0",
        "--flush", "async", "--parent-pid", str(os.getpid()), *arguments,
    )  # fmt: skip


def ceiling(*arguments: str) -> Server:
    return Server("benchmarks.ceilings", *arguments)
