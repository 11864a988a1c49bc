"""Transactional messages from asyncio: the twin of `rocketq.producing.transactions.transactions`.

    async with mq.transactions("orders-tx", check=state_of) as tp:
        async with tp.transaction("orders", body, key="o-9") as t:      # the half message is stored
            await database.save(order, t.id)                            # the local transaction
        # the block ended: committed. It raised, or its task was cancelled: rolled back.

A step that a thread has begun goes on when its task is cancelled. If that is the first half message, it is
rolled back; if it is the commit, it is committed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType

from rocketq.aio.blocking_calls import BlockingCalls
from rocketq.model import MessageQueue, TransactionState
from rocketq.producing.checked_fields import Text, text_bytes
from rocketq.producing.transactions.transactions import FirstHalf, TransactionProducer, TransactionSteps


class AsyncTransactionProducer:
    """The transactions of one producer group in this process; made by `AsyncClient.transactions`."""

    def __init__(self, core: TransactionProducer, calls: BlockingCalls) -> None:
        self._core, self._calls = core, calls
        self.group, self.config = core.group, core.config
        self.close = calls.twin(core.close)

    def transaction(
        self,
        topic: str,
        body: Text,
        *,
        key: Text | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        ordering_key: Text | None = None,
        queue: MessageQueue | int | None = None,
        delay: object = None,
        deliver_at: object = None,
    ) -> AsyncTransaction:
        """Return a transaction for an `async with` statement, whose first message is this one.

        Otherwise as `TransactionProducer.transaction`; makes no call.
        """
        first = self._core.first_half(
            topic, body, key=key, tag=tag, properties=properties, ordering_key=ordering_key, queue=queue,
            delay=delay, deliver_at=deliver_at,
        )  # fmt: skip
        return AsyncTransaction(first, self._calls)

    @property
    def is_closed(self) -> bool:
        return self._core.is_closed

    async def __aenter__(self) -> AsyncTransactionProducer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncTransaction(TransactionSteps):
    """One transaction; use it as a block, in one task."""

    def __init__(self, first: FirstHalf, calls: BlockingCalls) -> None:
        super().__init__(first)
        self._calls = calls
        #: A step waits for the one before, also if the task of that one was cancelled.
        self._lock = threading.Lock()

    async def __aenter__(self) -> AsyncTransaction:
        """Store the first half message; raises as `Transaction`."""
        self._claim()
        try:
            await self._calls.run(partial(self._step, self._begin), undo=self._roll_back)
        except BaseException:
            self._release()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()
        await self._calls.run(partial(self._step, partial(self._end_block, error)))

    async def send(
        self,
        topic: str,
        body: Text,
        *,
        key: Text | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        ordering_key: Text | None = None,
        queue: MessageQueue | int | None = None,
        delay: object = None,
        deliver_at: object = None,
    ) -> None:
        """Store a further half message, as `Transaction.send` does."""
        message = self._further(body, key, tag, properties, delay, deliver_at)
        order = text_bytes("ordering_key", ordering_key)
        send = partial(self._send_further, topic, message, order, queue)
        await self._calls.run(partial(self._step, send))

    async def commit(self) -> None:
        """Commit before the block ends; what its end does too."""
        self._check_open("A commit")
        await self._calls.run(partial(self._step, partial(self._decide, TransactionState.COMMIT)))

    async def rollback(self) -> None:
        """Roll back without an exception; the block then ends without a commit."""
        self._check_open("A rollback")
        await self._calls.run(partial(self._step, partial(self._decide, TransactionState.ROLLBACK)))

    def leave_to_check(self) -> None:
        """Leave the outcome to the check function: the block ends without a decision. Makes no call."""
        self._leave_to_check()

    def _step(self, step: Callable[[], None]) -> None:
        with self._lock:
            step()

    def _roll_back(self, _: None) -> None:
        self._end_block(asyncio.CancelledError())
