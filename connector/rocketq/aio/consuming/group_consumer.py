"""Consuming from asyncio as a member of a group: the twin of `rocketq.consuming.group_consumer`.

    async with mq.consumer("billing", {"orders": Sql("amount > 40")}) as consumer:
        async for message in consumer:
            await handle(message)

Threads of the member fetch messages and send heartbeats, so work on the event loop does not end the
membership. Messages that are fetched are handed out on the loop, without a thread.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import TypeAlias

import pyarrow as pa

from rocketq.aio.blocking_calls import BlockingCalls
from rocketq.aio.consuming.consumed_message import AsyncConsumedMessage, messages_of
from rocketq.aio.consuming.intake import Intake
from rocketq.aio.consuming.iteration import BatchLoop, Left, MessageLoop
from rocketq.aio.home_loop import HomeLoop
from rocketq.consuming.consumed_message import Delivery
from rocketq.consuming.group_reader import GroupReader
from rocketq.consuming.member_view import MemberView
from rocketq.consuming.records import last_offsets
from rocketq.model import MessageQueue

#: What `commit` takes: a message, several, or an Arrow batch.
AsyncHandled: TypeAlias = AsyncConsumedMessage | Iterable[AsyncConsumedMessage] | pa.RecordBatch


class AsyncConsumer(MemberView):
    """A member of a consumer group; made by `AsyncClient.consumer`.

    One task at a time takes messages. Any task may acknowledge them, commit and close. Names, arguments and
    errors are those of `Consumer`.
    """

    def __init__(self, reader: GroupReader, home: HomeLoop, calls: BlockingCalls) -> None:
        super().__init__(reader)
        self._home, self._calls = home, calls
        self.config = reader.config
        self._is_auto = reader.config.ack == "auto"
        self._intake = Intake(reader, home)
        #: What was polled, to be acknowledged when more is asked for.
        self._polled: list[Delivery] = []
        #: What was in hand where a loop was left.
        self._left = Left()
        #: The present loop; weak, so that leaving the loop ends it at once.
        self._loop: weakref.ref[MessageLoop | BatchLoop] | None = None
        #: The task that takes messages.
        self._taker: asyncio.Task[object] | None = None

    # --- messages ----------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[AsyncConsumedMessage]:
        """Hand out messages one by one, as they come, until the consumer is closed.

        A loop that is left, by an exception, by cancellation or by `break`, does not acknowledge its last
        message, as with `Consumer`.
        """
        self._begin()
        loop = MessageLoop(self._reader, self._intake, self._left, self._is_auto)
        self._loop = weakref.ref(loop)
        return loop

    async def poll(self, max_messages: int = 500, timeout_ms: int = 1_000) -> list[AsyncConsumedMessage]:
        """Return the next messages, as soon as there are any; an empty list after `timeout_ms`.

        Acknowledges and raises as `Consumer.poll`. If the task is cancelled meanwhile, no message is taken.
        """
        self._begin()
        self._polled = await self._intake.taken(max_messages, timeout_ms)
        return [message for delivery in self._polled for message in messages_of(delivery)]

    def arrow(self, max_rows: int = 50_000, timeout_ms: int = 1_000) -> AsyncIterator[pa.RecordBatch]:
        """Hand out batches of CONSUMED_SCHEMA, each as soon as there is any message, an empty one after
        `timeout_ms`, until the consumer is closed; acknowledges and raises as `Consumer.arrow`.
        """
        self._begin()
        loop = BatchLoop(self._reader, self._intake, self._left, self._is_auto, max_rows, timeout_ms)
        self._loop = weakref.ref(loop)
        return loop

    # --- progress ----------------------------------------------------------------

    async def commit(self, handled: AsyncHandled | None = None) -> None:
        """Acknowledge messages, and store the group's progress now, as `Consumer.commit` does.

        What is acknowledged stays so if the task is cancelled: the next commit stores it.
        """
        self._home.check()
        if handled is None:
            self._reader.acknowledge_all()
        elif isinstance(handled, pa.RecordBatch):
            for queue, offset in last_offsets(handled).items():
                self._reader.acknowledge_up_to(queue, offset)
        elif isinstance(handled, AsyncConsumedMessage):
            await handled.ack()
        else:
            for message in handled:
                await message.ack()
        self._reader.settled()
        await self._calls.run(self._reader.commit)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on in an owned queue at `offset`; the next commit may take the group back. Makes no call."""
        self._reader.seek(queue, offset)

    def pause(self, *queues: MessageQueue) -> None:
        """Hand out and fetch nothing of these queues until `resume`, or until another member gets them."""
        self._set_paused(queues, True)
        loop = self._present_loop()
        if isinstance(loop, MessageLoop):
            loop.recall(queues)

    def resume(self, *queues: MessageQueue) -> None:
        """Go on with paused queues."""
        self._set_paused(queues, False)

    # --- life --------------------------------------------------------------------

    async def close(self) -> None:
        """Commit what is acknowledged, release the queues and leave the group. Twice is no error.

        If another task is handling messages, it has `hand_over_ms` to ask for more, which ends its loop. If
        the task that closes is cancelled, the member leaves all the same.
        """
        self._home.check()
        taker = self._taker
        self._reader.recall()
        if taker is not None and taker is not asyncio.current_task() and not taker.done():
            await self._calls.run(self._close_when_idle)
        else:
            await self._calls.run(self._reader.close)

    async def __aenter__(self) -> AsyncConsumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._is_auto:
            for delivery in self._polled:
                delivery.acknowledge()
        await self.close()

    # --- inside ------------------------------------------------------------------

    def _begin(self) -> None:
        """Settle what was handed out before: a new loop or poll asks for more."""
        self._home.check()
        self._taker = asyncio.current_task()
        loop = self._present_loop()
        if loop is not None:
            loop.leave()
        self._left.settle(self._reader, self._is_auto)
        if self._is_auto:
            for delivery in self._polled:
                delivery.acknowledge()
        self._polled = []
        self._reader.settled()

    def _close_when_idle(self) -> None:
        self._reader.wait_until_idle(self.config.hand_over_ms)
        self._reader.close()

    def _present_loop(self) -> MessageLoop | BatchLoop | None:
        return None if self._loop is None else self._loop()

    def _set_paused(self, queues: Iterable[MessageQueue], paused: bool) -> None:
        for queue in queues:
            self._reader.change(queue, lambda state: setattr(state, "is_paused", paused))
