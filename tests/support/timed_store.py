"""Driving a store with delayed messages, whose clock the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from rocketq.clock import ManualClock
from rocketq.model import Message
from rocketq.protocol.message_schema import from_messages
from rocketq.protocol.rules.delivery_time import with_times
from rocketq_broker.store.commit.delayed_batches import delayed_batches
from rocketq_broker.store.commit.small_batches import DelayedBatch
from rocketq_broker.store.store import MessageStore
from tests.support.store_driver import Driver, answer, barrier, config, opened


def delayed(queue: int, *timed: tuple[bytes | Message, int]) -> list[DelayedBatch]:
    """Batches of messages for a queue with their delivery times in milliseconds."""
    messages = [body if isinstance(body, Message) else Message(body) for body, _ in timed]
    times = np.array([at for _, at in timed])
    return delayed_batches(queue, with_times(from_messages(messages), times), times)


MINUTE_MS = 60_000


class Timed(Driver):
    """A driver whose clock the test moves."""

    def __init__(self, store: MessageStore, clock: ManualClock) -> None:
        super().__init__(store)
        self.clock = clock

    @property
    def now_ms(self) -> int:
        return self.clock.now_us() // 1000

    def pass_time(self, ms: int) -> None:
        """Move the clock, and return when all that is due by then is delivered."""
        self.clock.advance(ms)
        self.settle()

    def settle(self) -> None:
        """Return when nothing more is due: each commit delivers something while there is."""
        before = None
        while before != (before := self.store.timers.table.cursor):
            answer(lambda done: barrier(done, self.store))


@contextmanager
def timed(directory: Path, clock: ManualClock, **settings: object) -> Iterator[Timed]:
    with opened(config(directory, **settings), clock=clock) as driver:
        yield Timed(driver.store, clock)
