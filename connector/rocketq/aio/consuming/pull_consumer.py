"""Reading messages from asyncio without a group's sharing: the twin of `rocketq.consuming.pull_consumer`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Protocol, TypeVar

import pyarrow as pa

from rocketq.aio.blocking_calls import BlockingCalls
from rocketq.aio.home_loop import HomeLoop, News
from rocketq.consuming.pull_consumer import PullConsumer
from rocketq.model import StoredMessage


class _Sized(Protocol):
    def __len__(self) -> int: ...


M = TypeVar("M", bound=_Sized)


class AsyncPullConsumer:
    """Reads topics from all their queues; made by `AsyncClient.pull_consumer`.

    Names, arguments and errors are those of `PullConsumer`.
    """

    def __init__(self, core: PullConsumer, home: HomeLoop, calls: BlockingCalls) -> None:
        self._core, self._home = core, home
        self._news = News(home, core.changes)
        self.config, self.topics, self.group = core.config, core.topics, core.group
        self.assign, self.commit = calls.twin(core.assign), calls.twin(core.commit)
        self.close = calls.twin(core.close)
        #: These make no call.
        self.positions, self.lag, self.seek = core.positions, core.lag, core.seek
        self.pause, self.resume = core.pause, core.resume

    async def poll(self, max_messages: int = 500, timeout_ms: int = 1_000) -> list[StoredMessage]:
        """Return the next messages, as soon as there are any; an empty list after `timeout_ms`.

        Raises as `PullConsumer.poll`. If the task is cancelled meanwhile, no message is taken.
        """
        return await self._polled(partial(self._core.poll, max_messages, 0), timeout_ms)

    async def poll_arrow(self, max_messages: int = 50_000, timeout_ms: int = 1_000) -> pa.RecordBatch:
        """Return the next messages as one batch of CONSUMED_SCHEMA; otherwise as `poll`."""
        return await self._polled(partial(self._core.poll_arrow, max_messages, 0), timeout_ms)

    @property
    def buffered_bytes(self) -> int:
        """The bytes of the messages that were fetched ahead of `poll`; about `prefetch_bytes` at most."""
        return self._core.buffered_bytes

    @property
    def is_closed(self) -> bool:
        return self._core.is_closed

    async def __aenter__(self) -> AsyncPullConsumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _polled(self, poll: Callable[[], M], timeout_ms: int) -> M:
        now_s = self._home.check().time
        await asyncio.sleep(0)
        until_s = now_s() + max(0, timeout_ms) / 1000
        while True:
            version = self._news.version
            found = poll()
            left_s = until_s - now_s()
            if len(found) or left_s <= 0:
                return found
            await self._news.after(version, left_s)
