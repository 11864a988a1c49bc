"""The time that the function of a listener may take for one message (RocketMQ: consumeTimeout, 15 minutes).

A worker notes the row of its delivery before it looks whether the delivery is recalled. Whoever recalls it
looks at the row after that. So at least one of the two sees what the other did, and a row on which nobody has
begun is never handed out twice.

A function that takes longer is *overdue*. Python cannot end it. Its message fails as if it had raised an
exception, and what its worker took besides is handed out to others. Where order counts, that would break the
order: the message holds its queue until the function returns, and is only told of.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rocketq.clock import Clock
from rocketq.consuming.consumed_message import Delivery, MessageView
from rocketq.consuming.fetching.fetch_threads import Fetching
from rocketq.consuming.receive_hooks import not_handled
from rocketq.consuming.retries import Failure
from rocketq.model import MessageQueue

log = logging.getLogger("rocketq.consuming.listener")

#: RocketMQ: DefaultMQPushConsumer.consumeTimeout.
CONSUME_TIMEOUT_MS: Final = 15 * 60_000
#: How many times in a timeout the functions are looked at, and the least time between.
LOOKS: Final = 20
LOOK_MS_MIN: Final = 10


@dataclass(frozen=True, slots=True)
class Overdue:
    """A message whose function has not returned in time: `running_ms` is how long it has run at least."""

    message_id: str
    queue: MessageQueue
    offset: int
    attempt: int
    running_ms: int


@dataclass(frozen=True, slots=True)
class Handling:
    """A message that a worker has in hand: a row of a delivery, and when it was first seen there."""

    delivery: Delivery
    row: int
    since_ms: int

    @property
    def is_running(self) -> bool:
        return self.delivery.row == self.row


def seen_now(
    before: Iterable[Handling], deliveries: Iterable[Delivery], now_ms: int
) -> dict[Delivery, Handling]:
    """Return what workers have in hand now, with the times of those that had it before already."""
    known = {each.delivery: each for each in before}
    found: dict[Delivery, Handling] = {}
    for delivery in deliveries:
        row = delivery.row
        if 0 <= row < delivery.rows:
            one = known.get(delivery)
            found[delivery] = one if one is not None and one.row == row else Handling(delivery, row, now_ms)
    return found


class HandlingWatch:
    """Looks at what the workers of one listener have in hand, on a thread of the member."""

    def __init__(self, fetching: Fetching, clock: Clock, timeout_ms: int, ordered: bool, group: str) -> None:
        self._fetching, self._clock, self._group = fetching, clock, group
        self._timeout_ms, self._ordered = timeout_ms, ordered
        self._seen: dict[Delivery, Handling] = {}
        self._overdue: list[Handling] = []

    def start(self) -> None:
        self._fetching.start_thread(("handling",), self._run)

    def overdue(self) -> tuple[Overdue, ...]:
        """Return the messages whose functions have not returned in time, and still have not."""
        now_ms = self._clock.monotonic_ms()
        return tuple(_told(each, now_ms) for each in list(self._overdue) if each.is_running)

    def in_hand(self) -> tuple[str, ...]:
        """Return the ids of the messages that workers have in hand now."""
        with self._fetching.changed:
            found = seen_now((), self._deliveries(), 0)
            late = [each for each in self._overdue if each.is_running and each.delivery not in found]
        return tuple(MessageView(each.delivery, each.row).message_id for each in (*late, *found.values()))

    def _run(self) -> None:
        while not self._fetching.is_stopping:
            self._fetching.wait(max(LOOK_MS_MIN, self._timeout_ms // LOOKS))
            self._look()

    def _look(self) -> None:
        with self._fetching.changed:
            now_ms = self._clock.monotonic_ms()
            before = self._seen
            self._seen = seen_now(before.values(), self._deliveries(), now_ms)
            known = {(id(each.delivery), each.row) for each in self._overdue}
            self._overdue = [each for each in self._overdue if each.is_running]
            late = [
                each
                for each in self._seen.values()
                if now_ms - each.since_ms >= self._timeout_ms and (id(each.delivery), each.row) not in known
            ]
            self._overdue += [each for each in late if self._is_given_up(each, now_ms)]

    def _deliveries(self) -> list[Delivery]:
        return [delivery for state in self._fetching.prefetch.states() for delivery in state.out()]

    def _is_given_up(self, late: Handling, now_ms: int) -> bool:
        """Give a message up whose function is overdue; False if it has just returned."""
        delivery, row = late.delivery, late.row
        if not self._ordered:
            delivery.is_recalled = True
            if not late.is_running:
                # The worker has gone on, and sends back itself what it has not begun.
                return False
        told = _told(late, now_ms)
        log.warning(
            "The listener of group %s has worked on message %s for %d ms, which is longer than "
            "consume_timeout_ms. %s", self._group, told.message_id, told.running_ms,
            "Its queue waits, because order counts." if self._ordered else "The message is tried again.",
        )  # fmt: skip
        state = self._fetching.prefetch.state(delivery.queue)
        if not self._ordered and state is not None:
            not_handled(delivery, row + 1)
            state.hand_on(delivery, row + 1, now_ms)
            delivery.fail(row, Failure(reason=f"TimeoutError: no return in {self._timeout_ms} ms"))
            self._fetching.changed.notify_all()
        return True


def _told(late: Handling, now_ms: int) -> Overdue:
    message = MessageView(late.delivery, late.row)
    return Overdue(message.message_id, message.queue, message.offset, message.attempt, now_ms - late.since_ms)
