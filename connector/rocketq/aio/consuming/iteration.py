"""The loops of an asynchronous consumer: `async for` over messages, and over Arrow batches.

An `async for` that is left drops its iterator, and Python then calls `__del__`. So a loop notes at once where
it was left, and sends back what it had not begun. An asynchronous generator would only be closed in a later
turn of the event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection

import pyarrow as pa

from rocketq.aio.consuming.consumed_message import AsyncConsumedMessage, messages_of
from rocketq.aio.consuming.intake import Intake
from rocketq.consuming.consumed_message import Delivery
from rocketq.consuming.group_consumer import LOOP_MESSAGES
from rocketq.consuming.group_reader import GroupReader
from rocketq.consuming.records import as_arrow
from rocketq.consuming.retries import Failure
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
                message[0].fail(message[1], Failure())
            for delivery in reversed(batch):
                reader.take_back(delivery, 0)


class MessageLoop(AsyncIterator[AsyncConsumedMessage]):
    """Messages one by one. The one at `_row` is being handled."""

    __slots__ = (
        "__weakref__", "_delivery", "_handled", "_intake", "_is_auto", "_is_ended", "_left", "_messages",
        "_reader", "_row", "_rows",
    )  # fmt: skip

    def __init__(self, reader: GroupReader, intake: Intake, left: Left, is_auto: bool) -> None:
        self._reader, self._intake, self._left, self._is_auto = reader, intake, left, is_auto
        self._delivery: Delivery | None = None
        self._messages: list[AsyncConsumedMessage] = []
        self._row, self._rows = -1, 0
        #: Of each message, whether the next one was asked for: that of the delivery, if this acknowledges it.
        self._handled = bytearray()
        self._is_ended = False

    def __aiter__(self) -> MessageLoop:
        return self

    async def __anext__(self) -> AsyncConsumedMessage:
        delivery, row = self._delivery, self._row + 1
        if row < self._rows and delivery is not None and not delivery.is_recalled:
            self._handled[row - 1] = 1
            self._row = row
            return self._messages[row]
        if delivery is not None:
            self._handled[row - 1] = 1
            self._drop()
            self._reader.take_back(delivery, row)
        self._reader.settled()
        try:
            if self._is_ended:
                raise StopAsyncIteration
            taken = await self._intake.hand_out(LOOP_MESSAGES, None)
        except Closed:
            raise StopAsyncIteration from None
        assert taken is not None
        self._delivery, self._messages = taken, messages_of(taken)
        self._row, self._rows = 0, taken.rows
        self._handled = taken.handled if self._is_auto else bytearray(taken.rows)
        return self._messages[0]

    def recall(self, queues: Collection[MessageQueue]) -> None:
        """Hand out nothing more of what was taken of these queues."""
        if self._delivery is not None and self._delivery.queue in queues:
            self._delivery.is_recalled = True

    def leave(self) -> None:
        """End the loop: its last message is not acknowledged, and those behind it are sent back."""
        self._is_ended = True
        delivery, row = self._delivery, self._row
        if delivery is not None:
            self._drop()
            self._left.message = (delivery, row)
            self._reader.take_back(delivery, row + 1)

    def _drop(self) -> None:
        self._delivery, self._messages, self._rows = None, [], 0

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
