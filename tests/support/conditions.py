"""Waiting for what no event announces."""

from __future__ import annotations

import threading
from collections.abc import Callable


def wait_until(condition: Callable[[], object]) -> None:
    """Look until the condition holds, with a pause between two looks; the test's timeout bounds it."""
    pause = threading.Event()
    while not condition():
        pause.wait(0.005)
