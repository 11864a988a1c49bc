"""The commits of sinks that wait, for a bounded time, until all participants have published the batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class CommitWaits:
    """Who waits for which batch. Everything here is called on the loop's thread."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, unsettled: Callable[[str, int], tuple[str, ...]]
    ) -> None:
        self._loop = loop
        self._unsettled = unsettled
        self._waiting: dict[tuple[str, int], set[asyncio.Event]] = {}
        self._released = False

    async def wait(self, sink: str, batch: int, timeout_ms: int) -> tuple[str, ...]:
        """Return the participants that have not published when all have, or the time is up."""
        deadline = self._loop.time() + timeout_ms / 1000
        event = asyncio.Event()
        self._waiting.setdefault((sink, batch), set()).add(event)
        try:
            while (rest := self._unsettled(sink, batch)) and not self._released:
                try:
                    async with asyncio.timeout_at(deadline):
                        await event.wait()
                except TimeoutError:
                    return self._unsettled(sink, batch)
                event.clear()
            return rest
        finally:
            self._waiting[sink, batch].discard(event)
            if not self._waiting[sink, batch]:
                del self._waiting[sink, batch]

    def published(self, batch: tuple[str, int]) -> None:
        """Let those who wait for a batch look again: a participant has published it."""
        for event in self._waiting.get(batch, ()):
            event.set()

    def release_all(self) -> None:
        """End all waits, and let no call wait from now on: the broker is stopping."""
        self._released = True
        for events in self._waiting.values():
            for event in events:
                event.set()
