"""One process for a directory: a lock that lasts as long as the returned file is open."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO, Final

from rocketq.errors import InvalidConfiguration

LOCK_NAME: Final = "lock"


def locked(directory: Path, setting: str) -> IO[bytes]:
    """Make the directory and lock it until the returned file is closed; raise InvalidConfiguration."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / LOCK_NAME).open("wb")
    except OSError as error:
        raise InvalidConfiguration(setting, str(directory), f"it cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise InvalidConfiguration(
            setting, str(directory), "another NameServer uses it", hint="Give each a directory of its own."
        ) from error
    return lock
