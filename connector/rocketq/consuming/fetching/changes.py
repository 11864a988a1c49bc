"""The condition that guards what a consumer has fetched, for threads and for event loops.

Threads wait for it as for any condition. An event loop cannot. It looks first, and notes the `version`; if it
has found nothing, it asks to be called with the next change, unless there was one meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Changes(threading.Condition):
    """A condition that also makes one call for each that was asked for when something changes."""

    def __init__(self) -> None:
        super().__init__()
        #: Rises with each change.
        self.version = 0
        self._calls: list[Callable[[], object]] = []

    def notify_all(self) -> None:
        """Wake the threads that wait, and make the calls that were asked for; the caller holds the lock."""
        super().notify_all()
        self.version += 1
        if self._calls:
            calls, self._calls = self._calls, []
            for call in calls:
                call()

    def call_after(self, version: int, call: Callable[[], object]) -> bool:
        """Have `call()` made once, at the first change after `version`; return False if it is there already.

        The thread that changes something makes the call, while it holds the lock.
        """
        with self:
            if self.version != version:
                return False
            self._calls.append(call)
            return True
