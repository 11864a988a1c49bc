"""One server of a local cluster as a child process.

    start ──> the child prints one JSON line on stdout: {"service", "name", "address", "pid"}
          └─> or it ends, or prints nothing in time: ServerNotStarted, with the end of its log

The child writes stderr to a log file, which stays when the child has ended, so that a failure can be
explained. The child has a session of its own: Ctrl-C in a terminal or an interrupt in a notebook reaches
only the parent, which then stops its children in order. The child watches `--parent-pid` and exits when the
parent has ended.

The child does not see ROCKETQ_… variables: they are about other servers, perhaps those of a production.

With port 0 the system chooses a port at the first start. A restarted server keeps that port, so that its
clients find it again.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Final
from urllib.parse import urlsplit

from rocketq.errors import ClientError

#: A first start imports FastAPI and recovers a log, which takes long on a loaded machine.
START_TIMEOUT_S: Final = 60.0
#: What a broker may take to drain and flush before it is killed.
STOP_TIMEOUT_S: Final = 20.0
LOG_TAIL_BYTES: Final = 4_000


class ServerNotStarted(ClientError):
    """A server process of a local cluster ended, or said nothing, before it listened."""

    code = "SERVER_NOT_STARTED"
    status = 503

    def __init__(self, server: str, why: str, log: str, log_tail: str) -> None:
        shown = f" Its log ends with:\n{log_tail}\n" if log_tail else " Its log is empty."
        super().__init__(
            f"{server} did not start: {why}.{shown}",
            hint=f"The whole log is {log}.",
            facts={"server": server, "why": why, "log": log, "log_tail": log_tail},
        )


class ServerProcess:
    """A NameServer or broker process that can be stopped, killed, paused and started again."""

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        *,
        port: int,
        log: Path,
        more_arguments: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """`more_arguments` is asked at each start: some depend on what is on the disk then."""
        self._more_arguments = more_arguments
        self.name = name
        self.log = log
        self.address = ""
        self._module = module
        self._arguments = tuple(arguments)
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """What the process ended with, negative for a signal; None while it runs."""
        return self._process.poll() if self._process else None

    @property
    def command(self) -> list[str]:
        """What starts this server, on its port, without an owner."""
        started = (sys.executable, "-P", "-m", self._module)
        return [*started, *self._arguments, *self._more_arguments(), "--port", str(self._port)]

    @property
    def answering(self) -> bool:
        """Whether the process runs and is not paused."""
        return self.running and not self._paused

    @property
    def pid(self) -> int:
        """The process id; 0 if it was never started."""
        return self._process.pid if self._process else 0

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start the process and wait until it listens; raise ServerNotStarted with its log otherwise."""
        self.launch()
        self.wait_until_listening(timeout_s)

    def launch(self) -> None:
        """Start the process and do not wait, so that several processes can start at the same time."""
        if self.running:
            return
        command = [*self.command, "--parent-pid", str(os.getpid())]
        self._paused = False
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env=_environment(),
            )

    def wait_until_listening(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Take the address the launched process announces; raise ServerNotStarted if none comes."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        announced: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(
            target=_read_stdout, args=(process.stdout, announced), name=f"{self.name}-stdout", daemon=True
        ).start()
        try:
            address = announced.get(timeout=timeout_s)
        except queue.Empty:
            self.kill()
            raise self._not_started(f"it did not listen within {timeout_s:.0f} s") from None
        if address is None:
            code = process.wait(STOP_TIMEOUT_S)
            raise self._not_started(f"it ended with exit code {code}")
        self.address = address
        self._port = urlsplit(address).port or self._port

    def move(self, port: int) -> None:
        """Listen on this port from the next start on; 0 is any free one."""
        self._port = port

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int | None:
        """End the process in good order and return its exit code; kill it if it takes too long."""
        process = self._process
        if process is None:
            return None
        self.ask_to_stop()
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def ask_to_stop(self) -> None:
        """Send SIGTERM, also to a paused process, and return at once."""
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process as a crash would: with SIGKILL, without a flush, without telling anybody."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Suspend the process (SIGSTOP): its sockets stay open and do not answer."""
        self._paused = True
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process go on."""
        self._paused = False
        self._signal(signal.SIGCONT)

    def log_tail(self) -> str:
        """The end of what the process wrote to stderr."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - LOG_TAIL_BYTES))
            return log.read().decode("utf-8", "replace").strip()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _not_started(self, why: str) -> ServerNotStarted:
        return ServerNotStarted(self.name, why, str(self.log), self.log_tail())


def _environment() -> dict[str, str]:
    """Return this process's environment without settings: a local cluster is what its owner asked for."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ROCKETQ_")}


def _read_stdout(stdout: IO[bytes], announced: queue.SimpleQueue[str | None]) -> None:
    """Pass the announced address on, then keep reading, so that the child never blocks on a full pipe."""
    with stdout:
        for line in stdout:
            address = _announced_address(line)
            if address:
                announced.put(address)
    announced.put(None)


def _announced_address(line: bytes) -> str:
    try:
        said = json.loads(line)
    except ValueError:
        return ""
    address = said.get("address") if isinstance(said, dict) else None
    return address if isinstance(address, str) else ""


def kill_all(processes: Sequence[ServerProcess]) -> None:
    """Kill every process, for an owner that ends without closing."""
    for process in processes:
        process.kill()


def stop_all(processes: Sequence[ServerProcess]) -> None:
    """Ask all to end at once, then wait for each, at most STOP_TIMEOUT_S for all of them."""
    deadline = time.monotonic() + STOP_TIMEOUT_S
    for process in processes:
        process.ask_to_stop()
    for process in processes:
        process.stop(max(0.1, deadline - time.monotonic()))
