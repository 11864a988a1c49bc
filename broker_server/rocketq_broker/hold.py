"""Calls that wait for messages: which there are, whom an arrival wakes, who has waited long enough.

Pure: no clock, no loop, no store. The caller hands in `now_ms`, and acts on the
requests it gets back (RocketMQ: PullRequestHoldService, which instead looks
through all of its holds every five seconds).

A hold watches one queue, or with `WHOLE_TOPIC` all queues of a topic. Invariants:
  * an arrival costs the number of calls that watch what arrived, not the number held;
  * a hold is in `_watchers` and in `_live` together, or in neither;
  * the heap has every live hold and, being cleaned lazily, at most as many dead
    ones again and a few: short waits that are answered early never pile up in it.

Being woken promises nothing: the caller looks again, and may hold again for the
rest of its time.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

#: The queue of a hold that watches its whole topic; no real queue id is negative.
WHOLE_TOPIC: Final = -1
#: Dead heap entries that are not worth a cleaning.
_DEAD_MIN: Final = 64

W = TypeVar("W")


@dataclass(frozen=True, slots=True, eq=False)
class HeldCall(Generic[W]):
    """One waiting call; `waiter` is whatever its owner answers it through."""

    topic: str
    queue: int
    deadline_ms: int
    waiter: W
    number: int = field(default=0)


class PullRequestHold(Generic[W]):
    """The calls that wait, at most `calls_max` of them."""

    def __init__(self, calls_max: int) -> None:
        self._calls_max = calls_max
        self._watchers: dict[tuple[str, int], dict[int, HeldCall[W]]] = {}
        self._live: dict[int, HeldCall[W]] = {}
        self._heap: list[tuple[int, int]] = []
        self._next_number = 0
        self._closed = False

    def __len__(self) -> int:
        return len(self._live)

    @property
    def closed(self) -> bool:
        """Whether everything was released for good."""
        return self._closed

    def add(self, topic: str, queue: int, deadline_ms: int, waiter: W) -> HeldCall[W] | None:
        """Hold a call; None if all places are taken, or nothing is held any more."""
        if self._closed or len(self._live) >= self._calls_max:
            return None
        call = HeldCall(topic, queue, deadline_ms, waiter, self._next_number)
        self._next_number += 1
        self._live[call.number] = call
        self._watchers.setdefault((topic, queue), {})[call.number] = call
        heapq.heappush(self._heap, (deadline_ms, call.number))
        return call

    def remove(self, call: HeldCall[W]) -> bool:
        """Let go of a call whose client went away; False if it was already handed back."""
        if self._live.pop(call.number, None) is None:
            return False
        key = (call.topic, call.queue)
        watchers = self._watchers[key]
        del watchers[call.number]
        if not watchers:
            del self._watchers[key]
        self._clean()
        return True

    def arrived(self, arrivals: Collection[tuple[str, int]]) -> list[HeldCall[W]]:
        """Hand back the calls that watch any of these (topic, queue), or the topic of one."""
        if not self._watchers:
            return []
        woken = self._taken(key for key in arrivals if key in self._watchers)
        topics = {(topic, WHOLE_TOPIC) for topic, _ in arrivals}
        return woken + self._taken(key for key in topics if key in self._watchers)

    def changed(self, topic: str) -> list[HeldCall[W]]:
        """Hand back every call that watches this topic, which was altered or deleted."""
        return self._taken([key for key in self._watchers if key[0] == topic])

    def expired(self, now_ms: int) -> list[HeldCall[W]]:
        """Hand back the calls whose deadline is at or before `now_ms`."""
        found = []
        while self._heap and self._heap[0][0] <= now_ms:
            call = self._live.get(heapq.heappop(self._heap)[1])
            if call is not None:
                found.append(call)
        for call in found:
            self.remove(call)
        return found

    def next_deadline_ms(self) -> int | None:
        """When `expired` next has something to hand back; None while nothing is held."""
        while self._heap and self._heap[0][1] not in self._live:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def release_all(self) -> list[HeldCall[W]]:
        """Hand back everything and hold nothing more: the broker is stopping."""
        self._closed = True
        released = list(self._live.values())
        self._live.clear()
        self._watchers.clear()
        self._heap.clear()
        return released

    def _taken(self, keys: Iterable[tuple[str, int]]) -> list[HeldCall[W]]:
        taken: list[HeldCall[W]] = []
        for key in keys:
            calls = self._watchers.pop(key, {})
            taken.extend(calls.values())
            for number in calls:
                del self._live[number]
        if taken:
            self._clean()
        return taken

    def _clean(self) -> None:
        """Rebuild the heap once its dead entries outnumber the live ones."""
        if len(self._heap) > 2 * len(self._live) + _DEAD_MIN:
            self._heap = [(call.deadline_ms, call.number) for call in self._live.values()]
            heapq.heapify(self._heap)
