"""The shell around `Watches`: futures, the one timer, and clients that go away.

However many calls wait there is one timer, set to the earliest deadline. A waiting call also
listens for its client's disconnect, so that one that was killed keeps no place
until its time is up. Everything here runs on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from rocketq.clock import Clock
from rocketq.errors import SystemBusy
from rocketq.service.answers import Disconnected
from rocketq_nameserver.route_table import Changes
from rocketq_nameserver.watch import TOPIC_LIST, Watch, Watches

RETRY_AFTER_MS: Final = 1_000

Receive = Callable[[], Awaitable[Any]]
#: The result is True if somebody still waits for the answer.
Waiter = asyncio.Future[bool]


class WaitingCalls:
    """The calls that one NameServer holds."""

    def __init__(self, clock: Clock, held_max: int) -> None:
        self._clock = clock
        self._watches: Watches[Waiter] = Watches(held_max)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0

    def __len__(self) -> int:
        return len(self._watches)

    async def until(self, is_new: Callable[[], bool], subject: str, wait_ms: int, receive: Receive) -> None:
        """Return once `is_new()`, or after `wait_ms`; raise SystemBusy if no place is left.

        No await lies between the look and the hold, so no change is missed in between.
        """
        deadline_ms = self._clock.monotonic_ms() + wait_ms
        while not is_new() and not self._watches.closed:
            if self._clock.monotonic_ms() >= deadline_ms:
                return
            await self._hold(subject, deadline_ms, receive)

    def announce(self, changes: Changes) -> None:
        """Wake those who watch what changed."""
        subjects = [*changes.topics, TOPIC_LIST] if changes.listed else changes.topics
        _wake(self._watches.changed(subjects))

    def release_all(self) -> None:
        """Have every waiting call answered as things stand, and hold none from now on."""
        _wake(self._watches.release_all())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _hold(self, subject: str, deadline_ms: int, receive: Receive) -> None:
        loop = asyncio.get_running_loop()
        waiter: Waiter = loop.create_future()
        watch = self._watches.hold(subject, deadline_ms, waiter)
        if watch is None:
            raise SystemBusy(f"{self._watches.held_max} calls are waiting for changes", RETRY_AFTER_MS)
        self._set_timer(deadline_ms)
        listening = loop.create_task(self._listen(watch, receive))
        try:
            if not await waiter:
                raise Disconnected
        finally:
            listening.cancel()
            self._watches.end(watch)

    async def _listen(self, watch: Watch[Waiter], receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if self._watches.end(watch) and not watch.waiter.done():
            watch.waiter.set_result(False)

    def _set_timer(self, deadline_ms: int) -> None:
        if self._timer is not None:
            if self._timer_at_ms <= deadline_ms:
                return
            self._timer.cancel()
        left_ms = max(0, deadline_ms - self._clock.monotonic_ms())
        self._timer_at_ms = deadline_ms
        self._timer = asyncio.get_running_loop().call_later((left_ms + 1) / 1000, self._expire)

    def _expire(self) -> None:
        self._timer = None
        _wake(self._watches.expired(self._clock.monotonic_ms()))
        next_ms = self._watches.next_deadline_ms()
        if next_ms is not None:
            self._set_timer(next_ms)


def _wake(watches: Iterable[Watch[Waiter]]) -> None:
    for watch in watches:
        if not watch.waiter.done():
            watch.waiter.set_result(True)
