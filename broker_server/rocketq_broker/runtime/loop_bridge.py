"""Passes outcomes from the log writer's thread to the event loop, with one wake-up for each commit.

The writer answers every send of a commit, one after the other. To wake the loop costs one write to its
self-pipe. So the writer appends outcomes to a deque, and wakes the loop only if no wake-up is on its way. The
loop handles outcomes in their order: it answers a send before it wakes the pulls that wait for its messages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from rocketq.errors import RocketqError


class Completions:
    """Calls that other threads want made on the loop's thread, in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._woken = False

    def post(self, call: Callable[[Any], None], argument: Any) -> None:
        """Have `call(argument)` made on the loop; any thread may ask for it."""
        self._calls.append((call, argument))
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._drain)

    async def outcome(self, write: Callable[[Callable[[Any], None]], None]) -> Any:
        """Make a write of the store, handing it its `done`; return its outcome or raise its error."""
        future: asyncio.Future[Any] = self._loop.create_future()
        write(partial(self.post, partial(_set_outcome, future)))
        outcome = await future
        if isinstance(outcome, RocketqError):
            raise outcome
        return outcome

    def _drain(self) -> None:
        # Cleared before the deque is looked at: whoever adds later wakes the loop again.
        self._woken = False
        try:
            while self._calls:
                call, argument = self._calls.popleft()
                call(argument)
        finally:
            # After a defect in one call the others are made all the same, in a later turn of the loop.
            if self._calls:
                self._loop.call_soon(self._drain)


def _set_outcome(future: asyncio.Future[Any], outcome: Any) -> None:
    # The request's task may have been cancelled; the write was made all the same.
    if not future.done():
        future.set_result(outcome)
