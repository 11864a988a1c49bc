"""Processes beside the broker's that take a share of a long scan.

A scan through a filter is the interpreter's work as much as the processor's, and within
one process only one thread has the interpreter: a second processor is of no use to it, and sends
and pulls wait for it. So a scan that reads enough is shared with processes of
their own, which read the log's files and nothing else. Each gets a job on its stdin and
answers on its stdout (pickles between a broker and its own child, never of anybody else):

    broker                            scanner
      job: places, filter  ───────>     reads, verifies, takes
      does its own share                  │
      appends the answer   <───────     filtered frames, or None

A share is an offer. A process that is busy, not ready yet, dead, slow or that met trouble gives nothing,
and the scan ends where the broker's own share ended; what was wrong there is found again, and told, by
the pull that goes on from there. So a scanner decides nothing and can lose nothing.

A process is started by the first scan that could use it, which does not wait for it. It ends with
the broker however that ends: its stdin does.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import select
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from rocketq_broker.store.jobs import Job, Scanned, Share

log = structlog.get_logger("rocketq.broker")

#: A process that takes longer, from the job to the whole answer, is ended.
ANSWER_S_MAX: Final = 10.0
#: After a process has ended on its own, another one is not started before this.
RESTART_S: Final = 30.0
#: What a process says once it takes jobs.
READY: Final = b"\n"
#: What precedes a job and an answer: its size.
LENGTH: Final = struct.Struct("<Q")
#: What a pipe is asked to hold; Linux lets anybody have so much.
PIPE_BYTES: Final = 1 << 20
_MODULE: Final = "rocketq_broker.scanner"


class Scanners:
    """Some processes that scan the log in `directory`; safe to use from any thread."""

    def __init__(self, directory: Path, count: int) -> None:
        self._all = [Scanner(directory) for _ in range(count)]

    def free(self) -> int:
        """Return how many could take a job now; those that could, but are not running, are started."""
        return sum(scanner.is_free() for scanner in self._all)

    def begin(self, job: Job) -> Share | None:
        """Give a job to a process that is free; None if there is none."""
        for scanner in self._all:
            share = scanner.begin(job)
            if share is not None:
                return share
        return None

    def close(self) -> None:
        """End all processes."""
        for scanner in self._all:
            scanner.close()


class Scanner:
    """One such process and its only job."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        self._not_before = 0.0
        self._number = 0
        self._answer_by = 0.0
        # Held from `begin` to `result`.
        self._busy = threading.Lock()

    @property
    def pid(self) -> int:
        """The process id; 0 while there is none."""
        return self._process.pid if self._process is not None else 0

    def is_free(self) -> bool:
        """Whether it could take a job now; starts the process if it is not running."""
        if not self._busy.acquire(blocking=False):
            return False
        try:
            return self._ready()
        except Exception as error:  # noqa: BLE001  the broker goes on alone, and it is logged
            self._fail(error)
            return False
        finally:
            self._busy.release()

    def begin(self, job: Job) -> Scanner | None:
        """Hand over a job; None if the process is busy or not there."""
        if not self._busy.acquire(blocking=False):
            return None
        taken = False
        try:
            if self._ready():
                self._number += 1
                self._answer_by = time.monotonic() + ANSWER_S_MAX
                asked = pickle.dumps((self._number, job), pickle.HIGHEST_PROTOCOL)
                _write(self._pipes()[0], LENGTH.pack(len(asked)) + asked, self._answer_by)
                taken = True
        except Exception as error:  # noqa: BLE001  a share is an offer; that it failed is logged
            self._fail(error)
        finally:
            if not taken:
                self._busy.release()
        return self if taken else None

    def result(self) -> Scanned | None:
        found: Scanned | None = None
        try:
            pipe = self._pipes()[1]
            [size] = LENGTH.unpack(_read(pipe, LENGTH.size, self._answer_by))
            number, found = pickle.loads(_read(pipe, size, self._answer_by))
            if number != self._number:
                raise EOFError(f"it answers job {number}, not {self._number}")
        except Exception as error:  # noqa: BLE001  a share is an offer; that it failed is logged
            self._fail(error)
            found = None
        finally:
            self._busy.release()
        return found

    def close(self) -> None:
        """End the process, whatever it does."""
        process = self._process
        if process is not None:
            # Whoever waits for its answer is told at once.
            process.kill()
        with self._busy:
            self._end()
            self._not_before = float("inf")

    def _pipes(self) -> tuple[int, int]:
        """Where jobs go and answers come from."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise EOFError("the process has ended")
        return process.stdin.fileno(), process.stdout.fileno()

    def _ready(self) -> bool:
        if self._process is None:
            if time.monotonic() >= self._not_before:
                self._start()
            return False
        if not self._is_ready and _can_read(self._pipes()[1], 0):
            self._is_ready = _read(self._pipes()[1], len(READY), time.monotonic()) == READY
        return self._is_ready

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", _MODULE, str(self._directory)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        for pipe in self._pipes():
            os.set_blocking(pipe, False)
            _widen(pipe)

    def _fail(self, error: Exception) -> None:
        if self._not_before < float("inf"):
            log.warning("scanner_failed", pid=self.pid, why=str(error) or type(error).__name__)
            self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        self._is_ready = False
        self._not_before = max(self._not_before, time.monotonic() + RESTART_S)
        if process is not None:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            process.wait()


def _widen(pipe: int) -> None:
    """Let a pipe hold a whole job or answer, where it can: in small parts each side waits for the other."""
    set_size = getattr(fcntl, "F_SETPIPE_SZ", None)
    if set_size is not None:
        with suppress(PermissionError):
            fcntl.fcntl(pipe, set_size, PIPE_BYTES)


def _can_read(pipe: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _read(pipe: int, size: int, until: float) -> bytes:
    """Read that much; raise EOFError at the end, TimeoutError if it is not here in time."""
    parts = []
    while size:
        if not _can_read(pipe, max(0.0, until - time.monotonic())):
            raise TimeoutError("it did not answer in time")
        part = os.read(pipe, size)
        if not part:
            raise EOFError("the process has ended")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _write(pipe: int, data: bytes, until: float) -> None:
    """Write all of it; raise OSError, TimeoutError if it is not taken in time."""
    poll = select.poll()
    poll.register(pipe, select.POLLOUT)
    rest = memoryview(data)
    while rest:
        if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
            raise TimeoutError("it did not take a job in time")
        rest = rest[os.write(pipe, rest) :]
