"""What sees messages that a consumer hands out, and what becomes of them (RocketMQ: ConsumeMessageHook).

A hook observes: it changes nothing. `after_receipt` is called on the thread that takes messages,
`after_handling` on the one that acknowledges them or says that they failed, so both should be quick. An
exception that a hook raises is logged and changes nothing.

Acknowledging sets a byte of `Delivery.handled`. For a consumer with a hook that array is a `Watch`, which
notes the rows that are set; without a hook nothing is different.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from rocketq.consuming.consumed_message import ConsumedMessage, Delivery
from rocketq.model import MessageQueue

log = logging.getLogger("rocketq.consuming.members.member")


@dataclass(frozen=True, slots=True)
class Receipt:
    """Messages of one queue that a member hands out at once."""

    group: str
    client_id: str
    delivery: Delivery

    @property
    def queue(self) -> MessageQueue:
        return self.delivery.queue

    def attempt_of(self, row: int) -> int:
        """1 for a message that is handed out for the first time, 2 after one failure, and so on."""
        return self.delivery.attempt_of(row)

    def messages(self) -> list[ConsumedMessage]:
        return self.delivery.messages()


class ReceiveHook(Protocol):
    """What sees messages."""

    def after_receipt(self, receipt: Receipt) -> Collection[int]:
        """See messages that are handed out now; return the rows of those whose outcome is to be told."""
        ...

    def after_handling(
        self, receipt: Receipt, rows: Sequence[int], elapsed_ms: int, is_acknowledged: bool
    ) -> None:
        """See that some messages, by their rows, were acknowledged or failed, `elapsed_ms` after the receipt.

        Messages that come back unread, or with a queue that was lost, are not told of.
        """
        ...


class Watch(bytearray):
    """`Delivery.handled`, telling hooks of the rows that are set and that they asked for."""

    __slots__ = ("_begun_ms", "_now_ms", "_receipt", "_wanted", "_wanting")

    def __init__(
        self,
        wanting: Sequence[tuple[ReceiveHook, Collection[int]]],
        receipt: Receipt,
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__(receipt.delivery.handled)
        self._wanting, self._receipt, self._now_ms = wanting, receipt, now_ms
        self._begun_ms = now_ms()
        #: The rows that some hook asked for and has not been told of.
        self._wanted = {row for _, rows in wanting for row in rows}

    def __setitem__(self, rows: Any, value: Any) -> None:
        super().__setitem__(rows, value)
        if type(rows) is int:
            # Nearly every message is acknowledged by itself, and few of them are asked for.
            if rows in self._wanted:
                self._tell([rows], True)
        elif isinstance(rows, slice) and self._wanted:
            meant = range(*rows.indices(len(self)))
            self._tell(sorted(row for row in self._wanted if row in meant), True)

    def silence(self, first: int, end: int | None = None) -> None:
        """Say nothing more of the rows from `first` on, whatever becomes of them here."""
        self._wanted.difference_update(range(first, len(self) if end is None else end))

    def fail(self, row: int, with_those_behind: bool) -> None:
        """Tell that a message failed; those behind it may come back with it, unread."""
        if row in self._wanted:
            self._tell([row], False)
        self.silence(row, None if with_those_behind else row + 1)

    def _tell(self, rows: Sequence[int], is_acknowledged: bool) -> None:
        self._wanted.difference_update(rows)
        elapsed_ms = self._now_ms() - self._begun_ms
        for hook, wanted in self._wanting:
            own = [row for row in rows if row in wanted]
            if own:
                _told(partial(hook.after_handling, self._receipt, own, elapsed_ms, is_acknowledged))


def watched(
    delivery: Delivery,
    hooks: Sequence[ReceiveHook],
    group: str,
    client_id: str,
    now_ms: Callable[[], int],
) -> None:
    """Tell hooks of a delivery that is handed out now, and have them hear of the rows that they ask for."""
    receipt = Receipt(group, client_id, delivery)
    asked = [(hook, _told(partial(hook.after_receipt, receipt))) for hook in hooks]
    wanting = [(hook, rows) for hook, rows in asked if rows]
    if wanting:
        delivery.handled = Watch(wanting, receipt, now_ms)


def not_handled(delivery: Delivery, row: int) -> None:
    """Say that the messages from `row` on come back unread: they are set, and not acknowledged."""
    if isinstance(delivery.handled, Watch):
        delivery.handled.silence(row)


def _told(call: Callable[[], Collection[int] | None]) -> Collection[int]:
    try:
        return call() or ()
    except Exception:
        log.exception("A receive hook raised an exception; the messages are handled all the same")
        return ()
