"""The event loop that a client belongs to, and the way of its threads back to it.

A client belongs to the loop in which it is first used. What is used in another loop, or without one, raises
`WrongEventLoop`: a wait there could never end.

Threads of the client tell the loop of batches that are sent and messages that arrived. To wake a loop costs a
system call. So they append calls to a deque, and wake the loop only if no wake-up is on its way.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from rocketq.consuming.fetching.changes import Changes
from rocketq.errors import WrongEventLoop

log = logging.getLogger("rocketq.aio.home_loop")


class HomeLoop:
    """One event loop. `check` is for the loop's thread, `post` for any."""

    def __init__(self, what: str) -> None:
        self._what = what
        #: None until the first use.
        self.loop: asyncio.AbstractEventLoop | None = None
        self._calls: deque[tuple[Callable[[Any], object], Any]] = deque()
        self._is_woken = False

    def check(self) -> asyncio.AbstractEventLoop:
        """Return the loop, which is the running one; raise WrongEventLoop if it is not."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            raise WrongEventLoop(self._what, "no event loop is running in this thread") from None
        if self.loop is None:
            self.loop = running
        if running is not self.loop:
            raise WrongEventLoop(self._what, "it belongs to another event loop, the first one that used it")
        return running

    def post(self, call: Callable[[Any], object], argument: Any) -> None:
        """Have `call(argument)` made on the loop."""
        self._calls.append((call, argument))
        if not self._is_woken and self.loop is not None:
            self._is_woken = True
            try:
                self.loop.call_soon_threadsafe(self._make_calls)
            except RuntimeError:
                # The loop is closed, and with it ended everybody who could wait.
                log.debug("%s has news, and its event loop is closed", self._what)
                self._calls.clear()

    def _make_calls(self) -> None:
        # Cleared before the deque is looked at: whoever adds later wakes the loop again.
        self._is_woken = False
        try:
            while self._calls:
                call, argument = self._calls.popleft()
                call(argument)
        finally:
            # After a defect in one call the others are made all the same, in a later turn of the loop.
            if self._calls and self.loop is not None:
                self.loop.call_soon(self._make_calls)


class News:
    """Lets tasks wait for the changes of a consumer. Belongs to the loop."""

    def __init__(self, home: HomeLoop, changes: Changes) -> None:
        self._home, self._changes = home, changes
        self._waiters: set[asyncio.Future[None]] = set()
        self._is_asked = False

    @property
    def version(self) -> int:
        """What to note before looking for messages."""
        return self._changes.version

    async def after(self, version: int, timeout_s: float | None) -> None:
        """Return when something has changed since `version` was noted, at most `timeout_s` later."""
        if not self._is_asked or self._changes.version != version:
            self._is_asked = self._changes.call_after(version, self._tell)
            if not self._is_asked:
                return
        loop = self._home.check()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.add(waiter)
        timer = None if timeout_s is None else loop.call_later(timeout_s, _end, waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)
            if timer is not None:
                timer.cancel()

    def _tell(self) -> None:
        self._home.post(self._wake, None)

    def _wake(self, _: None) -> None:
        self._is_asked = False
        for waiter in self._waiters:
            _end(waiter)


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
