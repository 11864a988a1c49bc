"""A server in Java that a comparison starts: its process, its log, and the port that says it is up."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

START_S: Final = 60.0
STOP_S: Final = 30.0
#: The options that Kafka's start script gives its JVM; RocketMQ's broker gets the same heap here.
JVM_OPTIONS: Final = (
    "-Xms1G", "-Xmx1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
)  # fmt: skip


def free_ports(count: int) -> list[int]:
    """Return ports that are free now, for servers that have to be told theirs."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class JavaServer:
    """One running JVM. The caller stops it."""

    def __init__(
        self, arguments: Sequence[str], port: int, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start `java` with these arguments; return when it listens at the port, or raise with its log."""
        variables = {**os.environ, **(environment or {})}
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                ["java", *arguments], stdout=output, stderr=output, env=variables
            )
        deadline = time.monotonic() + START_S
        while not _listens(port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(log.read_text(errors="replace"))
            time.sleep(0.1)

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
