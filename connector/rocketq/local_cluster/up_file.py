"""The file by which `rocketq down` and `rocketq status` find the cluster that `rocketq up` keeps up.

It is `up.json` in the cluster's data directory: the process id of `up`, and the servers with their
addresses. `up` holds a lock on it while it runs. So a file without a lock is a leftover of a process that
was killed, and a process id in it is never that of another program.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocketq.errors import InvalidConfiguration

NAME: Final = "up.json"
_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Up:
    """A cluster that is up: the process that keeps it, and its servers, by name."""

    pid: int
    servers: Mapping[str, str]


@contextmanager
def kept_up(data_dir: Path, servers: Mapping[str, str]) -> Iterator[None]:
    """Tell others of this cluster for as long as the block runs."""
    path = data_dir / NAME
    with path.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "servers": dict(servers)}))
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def find_up(data_dir: Path) -> Up | None:
    """Return the cluster of this directory that is up; None if none is."""
    path = data_dir / NAME
    try:
        with path.open(encoding="utf-8") as file:
            if not _is_locked(file.fileno()):
                return None
            document = json.load(file)
            return Up(int(document["pid"]), dict(document["servers"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError) as error:
        raise InvalidConfiguration("data_dir", str(data_dir), f"{path} cannot be read: {error}") from error


def wait_until_down(data_dir: Path, timeout_s: float) -> bool:
    """Return whether the cluster of this directory was down before the time was over."""
    deadline = time.monotonic() + timeout_s
    while find_up(data_dir) is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
