"""Broker processes to be killed, forked by a nursery (`nursery`) and waited for without sleeping."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ANSWER_S = 60


class Nursery:
    """Starts one broker at a time and kills it."""

    def __init__(self, log: Path) -> None:
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.crash_nursery"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
        )  # fmt: skip
        self._facts: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        self._pid = 0

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._facts.put(json.loads(line))
        self._facts.put(None)

    def _wait_for(self, key: str) -> dict[str, Any]:
        while True:
            fact = self._facts.get(timeout=ANSWER_S)
            assert fact is not None, f"the nursery ended; see {self._log.name}"
            if "ended" in fact and key != "ended":
                raise AssertionError(f"the broker ended by itself; see {self._log.name}")
            if key in fact:
                return fact

    def fork(self, arguments: Sequence[str]) -> None:
        """Start a broker without waiting for it to listen."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(list(arguments)).encode() + b"\n")
        self._process.stdin.flush()
        self._pid = int(self._wait_for("forked")["forked"])

    def address(self) -> str:
        """Wait until the broker listens, which is after its recovery."""
        return str(self._wait_for("address")["address"])

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Signal the broker to end; return when the process is no more."""
        os.kill(self._pid, how)
        self._wait_for("ended")
        self._pid = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            if pipe is not None:
                pipe.close()
