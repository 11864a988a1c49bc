"""How bytes reach the disk on each system: the one place that decides it, for every file that must last.

    system              a file                   a directory (names in it)
    Linux, FreeBSD      fdatasync                fsync
    macOS               fcntl F_FULLFSYNC        fcntl F_FULLFSYNC
    any other           fsync                    fsync

fdatasync writes what is needed to read the data back, the file's size included, and leaves times out. macOS
has no fdatasync, and its fsync only hands the data to the drive, which may keep it in a cache that a power
cut empties; F_FULLFSYNC has the drive write its cache (Apple: fsync(2), fcntl(2)). A file system that does
not know F_FULLFSYNC, as on some network shares, says so; then fsync is all there is.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from enum import Enum
from pathlib import Path
from typing import Final

#: macOS: <sys/fcntl.h>. Python has the name on macOS only.
F_FULLFSYNC: Final = 51
#: How a file system says that it does not know F_FULLFSYNC; anything else is a failed sync.
NOT_KNOWN_ERRORS: Final = frozenset({errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL})


class SyncCall(Enum):
    """The system call that puts a file on disk."""

    FDATASYNC = "fdatasync"
    FULL_FSYNC = "F_FULLFSYNC"
    FSYNC = "fsync"


def sync_call(platform: str, *, is_directory: bool = False) -> SyncCall:
    """Return the call for a system, named as `sys.platform` names it."""
    if platform == "darwin":
        return SyncCall.FULL_FSYNC
    if platform.startswith(("linux", "freebsd")) and not is_directory:
        return SyncCall.FDATASYNC
    return SyncCall.FSYNC


def sync_file(descriptor: int, platform: str = sys.platform) -> None:
    """Put a file's data on disk; raise OSError, after which it is not known what arrived."""
    _sync(descriptor, sync_call(platform))


def sync_directory(path: str | Path, platform: str = sys.platform) -> None:
    """Put the names in a directory on disk; raise OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _sync(descriptor, sync_call(platform, is_directory=True))
    finally:
        os.close(descriptor)


def _sync(descriptor: int, call: SyncCall) -> None:
    match call:
        case SyncCall.FDATASYNC:
            os.fdatasync(descriptor)
        case SyncCall.FULL_FSYNC:
            try:
                fcntl.fcntl(descriptor, F_FULLFSYNC)
            except OSError as error:
                if error.errno not in NOT_KNOWN_ERRORS:
                    raise
                os.fsync(descriptor)
        case SyncCall.FSYNC:
            os.fsync(descriptor)
