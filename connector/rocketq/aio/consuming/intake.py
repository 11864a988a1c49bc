"""Taking messages of a member on the event loop: what is fetched is handed out at once, the rest is awaited.

A task waits only while it holds nothing, so a task that is cancelled here has lost no message.
"""

from __future__ import annotations

import asyncio

from rocketq.aio.home_loop import HomeLoop, News
from rocketq.consuming.consumed_message import Delivery
from rocketq.consuming.group_reader import GroupReader
from rocketq.errors import InvalidConfiguration


class Intake:
    """Messages of one member."""

    def __init__(self, reader: GroupReader, home: HomeLoop) -> None:
        self._reader, self._home = reader, home
        self._news = News(home, reader.changes)

    async def hand_out(self, rows: int, timeout_ms: int | None, *, raising: bool = True) -> Delivery | None:
        """Hand out at most `rows` messages of one queue, as `GroupReader.hand_out` does.

        Other tasks of the loop get a turn first, also if messages are there.
        """
        now_s = self._home.check().time
        await asyncio.sleep(0)
        until_s = None if timeout_ms is None else now_s() + timeout_ms / 1000
        while True:
            version = self._news.version
            delivery = self._reader.hand_out(rows, 0, raising=raising)
            if delivery is not None:
                return delivery
            due_s = self._reader.next_due_s()
            if until_s is not None:
                left_s = until_s - now_s()
                if left_s <= 0:
                    return None
                due_s = left_s if due_s is None else min(left_s, due_s)
            await self._news.after(version, due_s)

    async def taken(self, messages_max: int, timeout_ms: int) -> list[Delivery]:
        """Take at most `messages_max` messages, as soon as there are any; nothing after `timeout_ms`."""
        if messages_max < 1:
            raise InvalidConfiguration("max_messages", messages_max, "it must be at least 1")
        found: list[Delivery] = []
        delivery = await self.hand_out(messages_max, max(0, timeout_ms))
        while delivery is not None:
            found.append(delivery)
            messages_max -= delivery.rows
            delivery = self._reader.hand_out(messages_max, 0, raising=False) if messages_max else None
        return found
