"""Waiting for what no event announces, and how long a test waits for anything.

The limit is for what hangs, and says nothing of speed: a machine that is busy may take seconds for what
an idle one does at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

#: How long a test waits for what must come.
WAIT_S: Final = 60
WAIT_MS: Final = 1000 * WAIT_S


def wait_until(condition: Callable[[], object], pause_s: float = 0.005) -> None:
    """Look until the condition holds, with a pause between two looks; fail after WAIT_S."""
    deadline = time.monotonic() + WAIT_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"it did not come about in {WAIT_S} s"
        pause.wait(pause_s)
