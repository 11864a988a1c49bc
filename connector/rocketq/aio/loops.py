"""The loops of an asynchronous consumer: `async for` over messages, and over Arrow batches.

An `async for` that is left drops its iterator, and Python then calls `__del__`. So a loop notes at once where
it was left, and gives back what it had not begun. An asynchronous generator would only be closed in a later
turn of the event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection

import pyarrow as pa

from rocketq.aio.consumed_message import AsyncConsumedMessage, messages_of
from rocketq.aio.intake import Intake
from rocketq.consuming.consumed_message import Delivery
from rocketq.consuming.group_consumer import LOOP_MESSAGES
from rocketq.consuming.group_reader import GroupReader
from rocketq.consuming.records import as_arrow
from rocketq.errors import Closed
from rocketq.model import MessageQueue


class Left:
    """Where the last loop of a consumer was left: at a message, or at a batch."""

    def __init__(self) -> None:
        self.message: tuple[Delivery, int] | None = None
        self.batch: list[Delivery] = []

    def settle(self, reader: GroupReader, is_auto: bool) -> None:
        """With automatic acknowledgement: a message counts as failed, a batch is handed out again."""
        message, self.message = self.message, None
        batch, self.batch = self.batch, []
        if is_auto:
            if message is not None:
                message[0].fail(message[1], None)
            for delivery in reversed(batch):
                reader.take_back(delivery, 0)


class MessageLoop(AsyncIterator[AsyncConsumedMessage]):
    """Messages one by one. The one at `_row` is being handled; it is -1 before the first of a delivery."""

    def __init__(self, reader: GroupReader, intake: Intake, left: Left, is_auto: bool) -> None:
        self._reader, self._intake, self._left, self._is_auto = reader, intake, left, is_auto
        self._delivery: Delivery | None = None
        self._messages: list[AsyncConsumedMessage] = []
        self._row = -1
        self._is_ended = False

    def __aiter__(self) -> MessageLoop:
        return self

    async def __anext__(self) -> AsyncConsumedMessage:
        delivery = self._delivery
        if delivery is not None:
            row = self._row
            if self._is_auto and row >= 0:
                delivery.handled[row] = 1
            self._row = row = row + 1
            if row < len(self._messages) and not delivery.is_recalled:
                return self._messages[row]
            self._delivery = None
            self._reader.take_back(delivery, row)
        self._reader.settled()
        try:
            if self._is_ended:
                raise StopAsyncIteration
            delivery = await self._intake.hand_out(LOOP_MESSAGES, None)
        except Closed:
            raise StopAsyncIteration from None
        assert delivery is not None
        self._delivery, self._messages, self._row = delivery, messages_of(delivery), 0
        return self._messages[0]

    def recall(self, queues: Collection[MessageQueue]) -> None:
        """Hand out nothing more of what was taken of these queues."""
        if self._delivery is not None and self._delivery.queue in queues:
            self._delivery.is_recalled = True

    def leave(self) -> None:
        """End the loop: its last message is not acknowledged, and those behind it are given back."""
        self._is_ended = True
        delivery, self._delivery = self._delivery, None
        if delivery is not None:
            self._left.message = (delivery, self._row)
            self._reader.take_back(delivery, self._row + 1)

    def __del__(self) -> None:
        self.leave()


class BatchLoop(AsyncIterator[pa.RecordBatch]):
    """Arrow batches. What the last one was made of is `_taken`."""

    def __init__(
        self,
        reader: GroupReader,
        intake: Intake,
        left: Left,
        is_auto: bool,
        rows: int,
        timeout_ms: int,
    ) -> None:
        self._reader, self._intake, self._left, self._is_auto = reader, intake, left, is_auto
        self._rows, self._timeout_ms = rows, timeout_ms
        self._taken: list[Delivery] = []
        self._is_ended = False

    def __aiter__(self) -> BatchLoop:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        taken, self._taken = self._taken, []
        if self._is_auto:
            for delivery in taken:
                delivery.acknowledge()
        self._reader.settled()
        try:
            if self._is_ended:
                raise StopAsyncIteration
            self._taken = await self._intake.taken(self._rows, self._timeout_ms)
        except Closed:
            raise StopAsyncIteration from None
        return as_arrow([(delivery.queue, delivery.piece) for delivery in self._taken])

    def leave(self) -> None:
        """End the loop: its last batch is not acknowledged."""
        self._is_ended = True
        self._left.batch, self._taken = self._taken, []

    def __del__(self) -> None:
        if self._taken:
            self.leave()
