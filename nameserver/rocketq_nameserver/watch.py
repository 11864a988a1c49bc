"""Calls that wait for a route or the topic list to change: which there are, whom a change wakes.

Pure: no clock and no loop. The caller hands in `now_ms` and acts on the watches it
gets back. A watch has one subject, a topic's name or `TOPIC_LIST`. A change costs
what watches its subjects, not what is held; being woken promises nothing, so
a watcher looks again.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

#: The subject of the topic list; no topic has an empty name.
TOPIC_LIST: Final = ""
#: Ended watches that may lie in the heap before it is worth a cleaning.
_ENDED_MAX: Final = 1_000

W = TypeVar("W")


@dataclass(frozen=True, slots=True, eq=False)
class Watch(Generic[W]):
    """One waiting call; `waiter` is whatever its owner answers it through."""

    subject: str
    deadline_ms: int
    waiter: W
    number: int


class Watches(Generic[W]):
    """The calls that wait, at most `held_max` of them."""

    def __init__(self, held_max: int) -> None:
        self.held_max = held_max
        self._by_subject: dict[str, dict[int, Watch[W]]] = {}
        self._heap: list[tuple[int, int, Watch[W]]] = []
        self._held = 0
        self._next_number = 0
        self._closed = False

    def __len__(self) -> int:
        return self._held

    @property
    def closed(self) -> bool:
        """Whether all were released for good."""
        return self._closed

    def hold(self, subject: str, deadline_ms: int, waiter: W) -> Watch[W] | None:
        """Hold a call; None if all places are taken or nothing is held any more."""
        if self._closed or self._held >= self.held_max:
            return None
        watch = Watch(subject, deadline_ms, waiter, self._next_number)
        self._next_number += 1
        self._held += 1
        self._by_subject.setdefault(subject, {})[watch.number] = watch
        heapq.heappush(self._heap, (deadline_ms, watch.number, watch))
        if len(self._heap) > 2 * self._held + _ENDED_MAX:
            self._heap = [entry for entry in self._heap if self._is_held(entry[2])]
            heapq.heapify(self._heap)
        return watch

    def end(self, watch: Watch[W]) -> bool:
        """Let go of one; False if it was handed back before."""
        watching = self._by_subject.get(watch.subject, {})
        if watching.pop(watch.number, None) is None:
            return False
        if not watching:
            del self._by_subject[watch.subject]
        self._held -= 1
        return True

    def changed(self, subjects: Iterable[str]) -> list[Watch[W]]:
        """Return the watches of these subjects; they are held no longer."""
        woken = [watch for subject in subjects for watch in self._by_subject.pop(subject, {}).values()]
        self._held -= len(woken)
        return woken

    def expired(self, now_ms: int) -> list[Watch[W]]:
        """Return the watches whose time is up; they are held no longer."""
        due = []
        while self._heap and self._heap[0][0] <= now_ms:
            watch = heapq.heappop(self._heap)[2]
            if self.end(watch):
                due.append(watch)
        return due

    def next_deadline_ms(self) -> int | None:
        """Return when the next watch expires; None if none is held."""
        while self._heap and not self._is_held(self._heap[0][2]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def release_all(self) -> list[Watch[W]]:
        """Return all watches, and hold none from now on."""
        self._closed = True
        self._heap.clear()
        return self.changed(list(self._by_subject))

    def _is_held(self, watch: Watch[W]) -> bool:
        return watch.number in self._by_subject.get(watch.subject, {})
