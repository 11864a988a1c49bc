"""Calls that wait for a change: decides which calls a change wakes, and which have waited long enough.

Pure: no clock and no event loop. The caller passes `now_ms` and answers the calls that it gets back.
(RocketMQ: PullRequestHoldService, which checks all of its calls every five seconds.) A call waits for one or
several keys; a key is any hashable value.

Invariants:
  * the cost of a change grows with the calls that wait for its keys, not with all held calls;
  * a held call is registered under each of its keys, a call that was handed back under none;
  * the heap of deadlines has every held call. It may also have ended calls, but not more than the held
    ones and a few.

A woken call looks again. It may find nothing, and be held again for the rest of its time.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

#: Ended calls that may be in the heap before it is cleaned.
_ENDED_MAX: Final = 64

K = TypeVar("K", bound=Hashable)
W = TypeVar("W")


@dataclass(frozen=True, slots=True, eq=False)
class HeldCall(Generic[K, W]):
    """One waiting call; its owner answers it through `waiter`."""

    keys: tuple[K, ...]
    deadline_ms: int
    waiter: W
    number: int


class HeldCalls(Generic[K, W]):
    """The calls that wait, at most `calls_max` of them."""

    def __init__(self, calls_max: int) -> None:
        self.calls_max = calls_max
        self._by_key: dict[K, dict[int, HeldCall[K, W]]] = {}
        self._held: dict[int, HeldCall[K, W]] = {}
        self._deadlines: list[tuple[int, int]] = []
        self._next_number = 0
        self._closed = False

    def __len__(self) -> int:
        return len(self._held)

    @property
    def closed(self) -> bool:
        """Whether all calls were released for good."""
        return self._closed

    @property
    def deadlines_kept(self) -> int:
        """The number of deadlines in the heap, with those of ended calls."""
        return len(self._deadlines)

    def hold(self, keys: tuple[K, ...], deadline_ms: int, waiter: W) -> HeldCall[K, W] | None:
        """Hold a call; None if all places are taken, or nothing is held any more."""
        if self._closed or len(self._held) >= self.calls_max:
            return None
        call = HeldCall(keys, deadline_ms, waiter, self._next_number)
        self._next_number += 1
        self._held[call.number] = call
        for key in keys:
            self._by_key.setdefault(key, {})[call.number] = call
        heapq.heappush(self._deadlines, (deadline_ms, call.number))
        return call

    def release(self, call: HeldCall[K, W]) -> bool:
        """Let go of a call; False if it was handed back before."""
        if self._held.pop(call.number, None) is None:
            return False
        for key in call.keys:
            waiting = self._by_key[key]
            del waiting[call.number]
            if not waiting:
                del self._by_key[key]
        self._clean()
        return True

    def changed(self, keys: Iterable[K]) -> list[HeldCall[K, W]]:
        """Hand back the calls that wait for any of these keys, each once."""
        found: list[HeldCall[K, W]] = []
        for key in keys:
            for call in list(self._by_key.get(key, {}).values()):
                self.release(call)
                found.append(call)
        return found

    def expired(self, now_ms: int) -> list[HeldCall[K, W]]:
        """Hand back the calls whose deadline is at or before `now_ms`."""
        found = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            call = self._held.get(heapq.heappop(self._deadlines)[1])
            if call is not None:
                self.release(call)
                found.append(call)
        return found

    def next_deadline_ms(self) -> int | None:
        """Return when the next call expires; None while nothing is held."""
        while self._deadlines and self._deadlines[0][1] not in self._held:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def release_all(self) -> list[HeldCall[K, W]]:
        """Hand back all calls and hold none from now on: the server is stopping."""
        self._closed = True
        released = list(self._held.values())
        self._held.clear()
        self._by_key.clear()
        self._deadlines.clear()
        return released

    def _clean(self) -> None:
        """Rebuild the heap once its ended calls outnumber the held ones."""
        if len(self._deadlines) > 2 * len(self._held) + _ENDED_MAX:
            self._deadlines = [(call.deadline_ms, call.number) for call in self._held.values()]
            heapq.heapify(self._deadlines)
