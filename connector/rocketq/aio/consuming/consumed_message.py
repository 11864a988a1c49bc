"""Messages as a member of a group gets them in asyncio."""

from __future__ import annotations

from datetime import timedelta
from itertools import repeat

from rocketq.consuming.consumed_message import Delivery, MessageView
from rocketq.consuming.retries import Failure
from rocketq.protocol.rules.delivery_time import duration_ms


class AsyncConsumedMessage(MessageView, frozen=True, gc=False):
    """A message as an asynchronous member of a consumer group gets it: as `ConsumedMessage`, with `await`."""

    async def ack(self) -> None:
        """Say that the message is handled: the group's offset may pass it. Twice is no error."""
        self._delivery.handled[self._row] = 1

    async def nack(self, delay: str | timedelta | None = None, *, reason: str = "") -> None:
        """Say that the message could not be handled, as by `ConsumedMessage.nack`; a thread sends it back."""
        self._delivery.fail(self._row, Failure(None if delay is None else duration_ms(delay), reason))


def messages_of(delivery: Delivery) -> list[AsyncConsumedMessage]:
    """Return the messages of a delivery as views."""
    return list(map(AsyncConsumedMessage, repeat(delivery), range(delivery.rows)))
