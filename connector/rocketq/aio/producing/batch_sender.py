"""Sending a stream of batches from asyncio: the twin of `rocketq.producing.batch_sender`.

The calls of a sender are made one at a time, in their order, also if the task of one was cancelled meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from rocketq.aio.blocking_calls import BlockingCalls
from rocketq.model import MessageQueue
from rocketq.producing.batch_sender import BatchSender

R = TypeVar("R")
T = TypeVar("T")


class AsyncBatchSender(Generic[R]):
    """Sends what is added. Use `async with`: what is not sent when the block ends by an error is dropped."""

    def __init__(self, sender: BatchSender[R], calls: BlockingCalls) -> None:
        self._sender, self._calls = sender, calls
        #: A sender belongs to one thread at a time.
        self._lock = threading.Lock()

    async def add(self, topic: str, data: Any, queue: MessageQueue | int | None = None) -> None:
        """Take over the rows of `data`; returns when few enough requests are in flight."""
        await self._alone(partial(self._sender.add, topic, data, queue))

    async def finish(self) -> list[R]:
        """Send what is left and wait for all answers; return a result for each slice, in order of adding."""
        return await self._alone(self._sender.finish)

    async def close(self) -> None:
        """Drop what is not being sent, and wait for what is. Does nothing after `finish`."""
        await self._alone(self._sender.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _alone(self, call: Callable[[], T]) -> T:
        def locked() -> T:
            with self._lock:
                return call()

        return await self._calls.run(locked)
