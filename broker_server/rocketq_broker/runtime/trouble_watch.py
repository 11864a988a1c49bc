"""Tells of the store's troubles: a log line when one comes, changes or goes, and the latest for whoever asks.

A *trouble* is damage, or a full disk, that a task of the store met when it last ran: `MessageStore.troubles`.
The broker goes on, so this is no reason to send it no calls: `/readyz` then says "degraded".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog

log = structlog.get_logger("rocketq.broker")

#: How often the store is looked at; seconds.
INTERVAL_S = 1.0


class TroubleWatch:
    """Looks at the store once a second, on the loop's thread."""

    def __init__(self, broker: str, troubles: Callable[[], Mapping[str, str]]) -> None:
        self._broker = broker
        self._troubles = troubles
        self._known: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def look(self) -> dict[str, str]:
        """Return the troubles of now by task, and log what is new about them."""
        found = dict(self._troubles())
        for task, why in found.items():
            if self._known.get(task) != why:
                log.warning("store_troubled", broker=self._broker, task=task, why=why)
        for task in self._known.keys() - found.keys():
            log.info("store_trouble_over", broker=self._broker, task=task)
        self._known = found
        return found

    async def _run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(INTERVAL_S)
