"""The shell around `PullRequestHold`: futures, the one timer, and clients that go away.

However many calls are held there is one timer, set to the earliest deadline. A
held call also listens for its client's disconnect, so that a consumer that was
killed does not keep a place until its time is up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from enum import Enum
from typing import Any

from rocketq.clock import Clock
from rocketq.errors import SystemBusy
from rocketq_broker.hold import HeldCall, PullRequestHold

Receive = Callable[[], Awaitable[Any]]

#: What a caller that finds no place is told to wait.
_RETRY_AFTER_MS = 1_000


class Woken(Enum):
    """Why a held call goes on."""

    LOOK_AGAIN = "something arrived or changed"
    TIME_IS_UP = "nothing came in time, or the broker is stopping"
    GONE = "the client hung up"


Waiter = asyncio.Future[Woken]


class HeldCalls:
    """All held calls of a broker; everything here runs on the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, calls_max: int) -> None:
        self._loop = loop
        self._clock = clock
        self._calls_max = calls_max
        self._hold: PullRequestHold[Waiter] = PullRequestHold(calls_max)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0

    def __len__(self) -> int:
        return len(self._hold)

    def deadline_ms(self, wait_ms: int) -> int:
        return self._clock.monotonic_ms() + wait_ms

    async def wait(self, topic: str, queue: int, deadline_ms: int, receive: Receive) -> Woken:
        """Wait until (topic, queue) is worth another look; raise SystemBusy if no place is left.

        No await lies between the caller's look at the store and the hold, so what
        arrives in between is announced to the hold.
        """
        if self._hold.closed:
            return Woken.TIME_IS_UP
        waiter: Waiter = self._loop.create_future()
        call = self._hold.add(topic, queue, deadline_ms, waiter)
        if call is None:
            raise SystemBusy(f"{self._calls_max} calls are waiting for messages", _RETRY_AFTER_MS)
        self._set_timer(deadline_ms)
        watch = self._loop.create_task(self._watch(call, receive))
        try:
            return await waiter
        finally:
            watch.cancel()
            self._hold.remove(call)

    def arrived(self, arrivals: Collection[tuple[str, int]]) -> None:
        _wake(self._hold.arrived(arrivals), Woken.LOOK_AGAIN)

    def changed(self, topic: str) -> None:
        _wake(self._hold.changed(topic), Woken.LOOK_AGAIN)

    def release_all(self) -> None:
        """Let every call answer as things stand, and hold none from now on."""
        _wake(self._hold.release_all(), Woken.TIME_IS_UP)
        if self._timer is not None:
            self._timer.cancel()

    async def _watch(self, call: HeldCall[Waiter], receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if self._hold.remove(call):
            _wake([call], Woken.GONE)

    def _set_timer(self, deadline_ms: int) -> None:
        if self._timer is not None:
            if self._timer_at_ms <= deadline_ms:
                return
            self._timer.cancel()
        left_ms = max(0, deadline_ms - self._clock.monotonic_ms())
        self._timer_at_ms = deadline_ms
        self._timer = self._loop.call_later((left_ms + 1) / 1000, self._expire)

    def _expire(self) -> None:
        self._timer = None
        _wake(self._hold.expired(self._clock.monotonic_ms()), Woken.TIME_IS_UP)
        next_ms = self._hold.next_deadline_ms()
        if next_ms is not None:
            self._set_timer(next_ms)


def _wake(calls: Iterable[HeldCall[Waiter]], why: Woken) -> None:
    for call in calls:
        if not call.waiter.done():
            call.waiter.set_result(why)
