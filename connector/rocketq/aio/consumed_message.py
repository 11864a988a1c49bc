"""Messages as a member of a group gets them in asyncio."""

from __future__ import annotations

from itertools import repeat

from rocketq.consuming.consumed_message import Delivery, MessageView


class AsyncConsumedMessage(MessageView, frozen=True, gc=False):
    """A message as an asynchronous member of a consumer group gets it: as `ConsumedMessage`, with `await`."""

    async def ack(self) -> None:
        """Say that the message is handled: the group's offset may pass it. Twice is no error."""
        self._delivery.handled[self._row] = 1

    async def nack(self, delay_ms: int | None = None) -> None:
        """Say that the message could not be handled: it is handed out again, as by `ConsumedMessage.nack`."""
        self._delivery.fail(self._row, delay_ms)


def messages_of(delivery: Delivery) -> list[AsyncConsumedMessage]:
    """Return the messages of a delivery as views."""
    return list(map(AsyncConsumedMessage, repeat(delivery), range(delivery.rows)))
