"""Which data directory this process has locked, as a text that no other live process can have.

A store keeps its lock file open and locked from its start to its end. As long as it does, nobody else
can lock the file, and the file system gives the file's inode number to no other file, even if the file
is deleted. The text is made of the machine's present boot, the device and the inode: a restart on the
same directory has the same text, a copy of the directory has another, and so has a clone of the
machine. After a boot, or on another machine, the same directory has another text too. That is safe: the
broker is then refused until its own former lease has ended.
"""

from __future__ import annotations

import hashlib
import uuid
from pathlib import Path
from typing import Final

from rocketq_broker.store.disk.files import LOCK_FILE

#: Linux makes a new one at each boot; containers of a machine share it.
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def locked_store(data_dir: Path) -> str:
    """Return the text for a directory whose store this process has started; 32 hexadecimal digits."""
    lock = (data_dir / LOCK_FILE).stat()
    # Hashed, because the text is shown to everybody and the boot id is the machine's own affair.
    return hashlib.sha256(f"{_machine()} {lock.st_dev} {lock.st_ino}".encode()).hexdigest()[:32]


def _machine() -> str:
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except FileNotFoundError:
        # Not Linux: the hardware address, or a random number where there is none.
        return f"{uuid.getnode():012x}"
