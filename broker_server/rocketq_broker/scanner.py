"""A scanner process: takes jobs on stdin, answers on stdout, ends when stdin does (`store.scanners`).

It opens the segments that a job needs, for reading, and closes them after it: a file that retention
removed would otherwise keep its room on the disk.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rocketq.errors import RocketqError
from rocketq_broker.heap import collect_rarely, keep_freed_memory, leave_out_pandas
from rocketq_broker.store.commit_log import CommitLog
from rocketq_broker.store.errors import CorruptQueue
from rocketq_broker.store.jobs import Job, Scanned
from rocketq_broker.store.scanners import LENGTH, READY
from rocketq_broker.store.selection import scan


class Segments:
    """The log's files for one job, for reading only; what retention removes is let go of after it."""

    def __init__(self, directory: Path, starts: tuple[int, ...]) -> None:
        self._directory = directory
        self._starts = starts
        self._open: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def segment_of(self, at: int) -> int:
        return self._starts[max(0, bisect_right(self._starts, at) - 1)]

    def read(self, at: int, size: int) -> bytes:
        """Read what lies at a log offset; less, and so no valid frame, where the file ends."""
        start = self.segment_of(at)
        if start not in self._open:
            path = self._directory / CommitLog.path(start)
            self._open[start] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self._open[start], size, at - start)


@dataclass(slots=True)
class JobQueue:
    """The queue of a job, by its number."""

    id: int

    def corrupt(self, offset: int, why: str) -> CorruptQueue:
        return CorruptQueue(f"queue {self.id}", offset, why)


def answer(directory: Path, job: Job) -> Scanned | None:
    """Do a job; None if there was trouble, which the broker finds where it belongs."""
    try:
        with Segments(directory, job.segments) as segments:
            return scan(segments, JobQueue(job.queue), job, iter(job.pieces))
    except (RocketqError, OSError):
        return None


def main() -> None:
    """Take jobs until there are no more."""
    # A broker that is asked to stop stops its scanners itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    leave_out_pandas()
    keep_freed_memory()
    collect_rarely()
    directory = Path(sys.argv[1])
    jobs, answers = sys.stdin.buffer, sys.stdout.buffer
    try:
        answers.write(READY)
        answers.flush()
        while length := jobs.read(LENGTH.size):
            number, job = pickle.loads(jobs.read(*LENGTH.unpack(length)))
            found = pickle.dumps((number, answer(directory, job)), pickle.HIGHEST_PROTOCOL)
            answers.write(LENGTH.pack(len(found)))
            answers.write(found)
            answers.flush()
    except BrokenPipeError:
        # The broker has ended, or has no more use for this process; nothing is left to be flushed.
        os._exit(0)


if __name__ == "__main__":
    main()
