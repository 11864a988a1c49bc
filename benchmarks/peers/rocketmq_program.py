"""RocketMQ's own Java client, driven from here: one JVM that stays warm between the turns."""

from __future__ import annotations

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.peers import packages

SOURCE: Final = Path(__file__).with_name("RocketmqProgram.java")


class RocketmqProgram:
    """A running `RocketmqProgram.java`."""

    def __init__(self, nameserver: str, topic: str, backlog: str) -> None:
        self._home = TemporaryDirectory(prefix="peers-rocketmq-client-")
        command = ["java", *packages.rocketmq_options(Path(self._home.name)), str(SOURCE)]
        self._process = subprocess.Popen(
            [*command, nameserver, topic, backlog],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def do(self, what: str, messages: int) -> None:
        """Let it `send`, `async`, `batch`, `fill` or `consume` so many messages; return when that is done."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what} {messages}\n")
        self._process.stdin.flush()
        printed = []
        for line in self._process.stdout:
            if line == "done\n":
                return
            printed.append(line)
        raise RuntimeError("".join(printed[-50:]))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.stdout is not None
        self._process.stdout.read()
        self._process.wait()
        self._home.cleanup()
