"""Leasing messages one by one from asyncio: the twin of `rocketq.consuming.simple_consumer`.

    async with mq.simple_consumer("billing", "orders", invisible_ms=30_000) as consumer:
        for message in await consumer.receive(max_messages=16):
            await handle(message)
            await message.ack()

Each call is one on a thread: a receive is a call to a broker for its caller anyway.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from types import TracebackType

from rocketq.aio.blocking_calls import BlockingCalls
from rocketq.consuming.simple_consumer import AckResult, LeasedMessage, SimpleConsumer
from rocketq.errors import RocketqError
from rocketq.model import StoredMessage
from rocketq.protocol.documents.leases import RECEIVE_MESSAGES, RefusedHandle


@dataclass(frozen=True, slots=True)
class AsyncLeasedMessage(StoredMessage):
    """A message that is leased to this consumer: the twin of `LeasedMessage`."""

    _core: LeasedMessage
    _calls: BlockingCalls

    @property
    def attempt(self) -> int:
        return self._core.attempt

    @property
    def receipt_handle(self) -> str:
        return self._core.receipt_handle

    async def ack(self) -> None:
        """Say that the message is handled: it does not come again. Raises LeaseExpired."""
        await self._calls.run(self._core.ack)

    async def nack(self) -> None:
        """Give the message back at once. Raises LeaseExpired."""
        await self._calls.run(self._core.nack)

    async def change_invisible(self, invisible_ms: int) -> None:
        """Hide the message for so long from now on. Raises LeaseExpired."""
        await self._calls.run(lambda: self._core.change_invisible(invisible_ms))

    @staticmethod
    def of(core: LeasedMessage, calls: BlockingCalls) -> AsyncLeasedMessage:
        return AsyncLeasedMessage(
            core.queue, core.offset, core.body, core.key, core.tag, core.properties, core.born_at_us,
            core.stored_at_us, core, calls,
        )  # fmt: skip


class AsyncSimpleConsumer:
    """Receives messages of some topics for a group; made by `AsyncClient.simple_consumer`."""

    def __init__(self, core: SimpleConsumer, calls: BlockingCalls) -> None:
        self._core, self._calls = core, calls
        self.group, self.config = core.group, core.config

    @property
    def away(self) -> dict[str, RocketqError]:
        """The brokers that did not answer the last receive, and why."""
        return self._core.away

    async def receive(
        self,
        max_messages: int = RECEIVE_MESSAGES,
        *,
        invisible_ms: int | None = None,
        wait_ms: int | None = None,
    ) -> list[AsyncLeasedMessage]:
        """Return the next messages, as `SimpleConsumer.receive`.

        If the task is cancelled meanwhile, what is received then comes again after its time.
        """
        found = await self._calls.run(
            lambda: self._core.receive(max_messages, invisible_ms=invisible_ms, wait_ms=wait_ms)
        )
        return [AsyncLeasedMessage.of(each, self._calls) for each in found]

    async def __aiter__(self) -> AsyncIterator[AsyncLeasedMessage]:
        """Yield messages one after the other, for ever; each is acknowledged when the next is asked for."""
        while True:
            for message in await self.receive(1):
                yield message
                await message.ack()

    async def ack(self, messages: Iterable[AsyncLeasedMessage | str]) -> AckResult:
        """Acknowledge messages, or receipt handles, with a call for each broker; may be repeated."""
        handles = [each if isinstance(each, str) else each.receipt_handle for each in messages]
        return await self._calls.run(lambda: self._core.ack(handles))

    async def change_invisible(
        self, messages: Iterable[AsyncLeasedMessage], invisible_ms: int
    ) -> tuple[RefusedHandle, ...]:
        """Hide messages for so long from now on, 0: no longer. Return those that are refused."""
        cores = [each._core for each in messages]
        return await self._calls.run(lambda: self._core.change_invisible(cores, invisible_ms))

    def raise_refused(self, refused: tuple[RefusedHandle, ...]) -> None:
        """Raise LeaseExpired if a handle was refused."""
        self._core.raise_refused(refused)

    async def close(self) -> None:
        """Close the connections; a receive that is held ends. What is leased comes again after its time."""
        await self._calls.run(self._core.close)

    @property
    def is_closed(self) -> bool:
        return self._core.is_closed

    async def __aenter__(self) -> AsyncSimpleConsumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
