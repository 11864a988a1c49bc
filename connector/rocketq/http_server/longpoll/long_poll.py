"""Holds calls on the event loop: futures, one timer, and the disconnects of clients, around `HeldCalls`.

There is one timer for all held calls, set to the earliest deadline. A held call also waits for the disconnect
of its client, so that a client that was killed does not keep its place. Everything here runs on the event
loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from rocketq.clock import Clock
from rocketq.errors import SystemBusy
from rocketq.http_server.error_answers import Disconnected
from rocketq.http_server.longpoll.held_calls import HeldCall, HeldCalls

#: A caller that finds no place is told to try again after this time.
RETRY_AFTER_MS: Final = 1_000

Receive = Callable[[], Awaitable[Any]]
K = TypeVar("K", bound=Hashable)


class Woken(Enum):
    """Why a held call goes on."""

    LOOK_AGAIN = "something changed"
    TIME_IS_UP = "nothing changed in time, or the server is stopping"
    GONE = "the client hung up"


Waiter = asyncio.Future[Woken]


class LongPoll(Generic[K]):
    """All held calls of one server; `waits_for` says in a refusal what they wait for."""

    def __init__(self, clock: Clock, calls_max: int, waits_for: str) -> None:
        self._clock = clock
        self._waits_for = waits_for
        self._held: HeldCalls[K, Waiter] = HeldCalls(calls_max)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0

    def __len__(self) -> int:
        return len(self._held)

    def deadline_ms(self, wait_ms: int) -> int:
        return self._clock.monotonic_ms() + wait_ms

    async def wait(self, keys: tuple[K, ...], deadline_ms: int, receive: Receive) -> Woken:
        """Wait until one of the keys is worth another look; raise SystemBusy if no place is left.

        The caller must not await between its look and this call. Then a change after the look finds the
        call held.
        """
        if self._held.closed:
            return Woken.TIME_IS_UP
        loop = asyncio.get_running_loop()
        waiter: Waiter = loop.create_future()
        call = self._held.hold(keys, deadline_ms, waiter)
        if call is None:
            why = f"{self._held.calls_max} calls are waiting for {self._waits_for}"
            raise SystemBusy(why, RETRY_AFTER_MS)
        self._set_timer(deadline_ms)
        listening = loop.create_task(self._listen(call, receive))
        try:
            return await waiter
        finally:
            listening.cancel()
            self._held.release(call)

    async def until(
        self, is_new: Callable[[], bool], keys: tuple[K, ...], wait_ms: int, receive: Receive
    ) -> None:
        """Return once `is_new()`, or after `wait_ms`; raise SystemBusy, or Disconnected."""
        deadline_ms = self.deadline_ms(wait_ms)
        while not is_new() and self._clock.monotonic_ms() < deadline_ms:
            woken = await self.wait(keys, deadline_ms, receive)
            if woken is Woken.GONE:
                raise Disconnected
            if woken is Woken.TIME_IS_UP:
                return

    def changed(self, keys: Iterable[K]) -> None:
        """Wake the calls that wait for any of these keys."""
        _wake(self._held.changed(keys), Woken.LOOK_AGAIN)

    def release_all(self) -> None:
        """End all waits, and hold no call from now on."""
        _wake(self._held.release_all(), Woken.TIME_IS_UP)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _listen(self, call: HeldCall[K, Waiter], receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if self._held.release(call):
            _wake([call], Woken.GONE)

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
        _wake(self._held.expired(self._clock.monotonic_ms()), Woken.TIME_IS_UP)
        next_ms = self._held.next_deadline_ms()
        if next_ms is not None:
            self._set_timer(next_ms)


def _wake(calls: Iterable[HeldCall[K, Waiter]], why: Woken) -> None:
    for call in calls:
        if not call.waiter.done():
            call.waiter.set_result(why)
