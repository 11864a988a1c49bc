"""A coroutine function that is called for each message of a group: the twin of `rocketq.consuming.listener`.

    @mq.listener("orders", group="audit", filter=Tag("paid"), workers=8)
    async def on_order(message):
        ...

    async with on_order:
        await stop.wait()

Tasks of the event loop take messages and await the function. When it returns, the message is acknowledged;
when it raises, the message is tried again. With `ordered` one task at a time works on a queue.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Final, TypeAlias

from rocketq.aio.blocking_calls import BlockingCalls
from rocketq.aio.consuming.consumed_message import AsyncConsumedMessage, messages_of
from rocketq.aio.consuming.intake import Intake
from rocketq.aio.home_loop import HomeLoop
from rocketq.aio.opening import Opening
from rocketq.consuming.consumed_message import Delivery
from rocketq.consuming.group_reader import GroupReader
from rocketq.consuming.member_view import ListenerView
from rocketq.consuming.worker_pace import WorkerPace
from rocketq.errors import Closed, InvalidConfiguration

log = logging.getLogger("rocketq.aio.consuming.listener")

#: What a listener awaits for each message.
AsyncFunction: TypeAlias = Callable[[AsyncConsumedMessage], Awaitable[object]]

#: How long a function may take to end after it was cancelled.
CANCELLED_MS: Final = 1_000


class AsyncListener(ListenerView):
    """A member of a group whose messages are handled by a coroutine function.

    It runs from when it is opened until `close`. Names, arguments and errors are those of `Listener`.
    """

    def __init__(
        self,
        reader: GroupReader,
        function: AsyncFunction,
        workers: int,
        home: HomeLoop,
        calls: BlockingCalls,
    ) -> None:
        super().__init__(reader)
        self._function, self._workers = function, workers
        self._home, self._calls = home, calls
        self._intake = Intake(reader, home)
        self._pace = WorkerPace(workers)
        self._is_closing = False
        loop = home.check()
        self._tasks = {
            loop.create_task(self._work(), name=f"rocketq-listener-{reader.group}-{number}")
            for number in range(workers)
        }

    def __call__(self, message: AsyncConsumedMessage) -> Awaitable[object]:
        return self._function(message)

    async def close(self, timeout_ms: int = 30_000) -> bool:
        """Stop taking messages, wait at most `timeout_ms` for the functions that run, and leave the group.

        Functions that have not returned by then are cancelled, and their messages are delivered again: that
        is logged, and False is returned. Twice is no error. If the task that closes is cancelled, close again
        or leave it to the client.
        """
        self._home.check()
        if asyncio.current_task() in self._tasks:
            raise InvalidConfiguration(
                "close", self.group, "the function of a listener cannot close it: it would wait for itself",
                hint="Set an event in the function, and close the listener where it was made.",
            )  # fmt: skip
        self._is_closing = True
        self._reader.recall()
        running = await self._ended(self._tasks, timeout_ms)
        if running:
            log.warning(
                "%d function(s) of the listener of group %s had not returned after %d ms and are cancelled; "
                "their messages are delivered again: %s",
                len(running), self.group, timeout_ms, ", ".join(self.in_hand),
            )  # fmt: skip
            for task in running:
                task.cancel()
            await self._ended(running, CANCELLED_MS)
        await self._calls.run(self._reader.close)
        return not running

    async def __aenter__(self) -> AsyncListener:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- tasks -------------------------------------------------------------------

    async def _ended(self, tasks: set[asyncio.Task[None]], timeout_ms: int) -> set[asyncio.Task[None]]:
        """Wait for tasks to end; return those that have not."""
        running = {task for task in tasks if not task.done()}
        return (await asyncio.wait(running, timeout=timeout_ms / 1000))[1] if running else running

    async def _work(self) -> None:
        while not self._is_closing:
            rows = self._pace.rows(self._reader.ready_messages())
            try:
                delivery = await self._intake.hand_out(rows, None, raising=False)
            except Closed:
                return
            if delivery is not None:
                began = time.perf_counter()
                self._pace.handled(await self._handle(delivery), time.perf_counter() - began)
                self._reader.settled()

    async def _handle(self, delivery: Delivery) -> int:
        """Await the function for each message; return for how many."""
        function, handled = self._function, delivery.handled
        for row, message in enumerate(messages_of(delivery)):
            # In this order: see handling_watch.
            delivery.row = row
            if delivery.is_recalled:
                self._reader.take_back(delivery, row)
                return row
            try:
                await function(message)
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                    # The task ends, not only something that the function awaited.
                    raise
                log.exception(
                    "The listener of group %s failed with message %s", self.group, message.message_id
                )
                await message.nack(reason=f"{type(error).__name__}: {error}")
            else:
                handled[row] = 1
        delivery.row = delivery.rows
        return delivery.rows


class ListenerOpening(Opening[AsyncListener]):
    """A listener to be opened; to call it calls the function, so a decorated function stays usable."""

    def __init__(
        self, what: str, function: AsyncFunction, begin: Callable[[], Coroutine[Any, Any, AsyncListener]]
    ) -> None:
        super().__init__(what, begin)
        self._function = function

    def __call__(self, message: AsyncConsumedMessage) -> Awaitable[object]:
        return self._function(message)


def checked_coroutine_function(function: object) -> AsyncFunction:
    """Return the function of a listener; raise InvalidConfiguration if calling it gives nothing to await."""
    called = getattr(function, "__call__", None)  # noqa: B004  a callable object may have an async one
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called):
        return function  # type: ignore[return-value]
    raise InvalidConfiguration(
        "function", function, "a listener of an AsyncClient awaits it, and it is no coroutine function",
        hint="Write `async def on_order(message): …`, or use the listener of a Client for a plain function.",
    )  # fmt: skip


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
