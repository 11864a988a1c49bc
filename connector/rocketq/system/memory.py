"""How much memory this process may use: that of the machine, or less in a container."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

#: Where Linux says how much a control group may have, in both versions of control groups.
_LIMITS: Final = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def memory_bytes(limits: tuple[Path, ...] = _LIMITS) -> int:
    """Return the bytes of memory of this machine, or the limit of the container if that is less."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical, *(found for path in limits if (found := _limit(path)))])


def _limit(path: Path) -> int:
    """Return a limit; 0 if there is none."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() else 0
