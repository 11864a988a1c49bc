"""What the threads of a store tell a broker: logged at once, and carried to the loop where the loop needs it.

The store may tell of something before the broker that opened it exists. Nothing of that is lost: messages
that arrive wake calls that wait already, a fault of the log stays in `failed` for whoever looks later, and
the registration that comes sends the topics as they then are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

import structlog

from rocketq.http_server.longpoll.long_poll import LongPoll
from rocketq_broker.runtime import wait_keys as arriving
from rocketq_broker.runtime.loop_bridge import Completions
from rocketq_broker.store.errors import StoreError
from rocketq_broker.store.upkeep.clock_watch import ClockNotice

log = structlog.get_logger("rocketq.broker")


class StoreEvents:
    """The hooks of `MessageStore.open`; made on the loop's thread, called on any."""

    def __init__(self, broker: str, completions: Completions, held: LongPoll[arriving.Key]) -> None:
        self._broker = broker
        self._completions = completions
        self._held = held
        #: Has the fault that stopped the log, once there is one.
        self.failed: asyncio.Future[StoreError] = asyncio.get_running_loop().create_future()
        self._on_change: Callable[[], None] | None = None

    def tell_changes_to(self, listener: Callable[[], None]) -> None:
        """Have `listener` called, on the store's thread, whenever a topic has changed."""
        self._on_change = listener

    def arrived(self, arrivals: Collection[tuple[str, int]]) -> None:
        """Wake the calls that wait for messages of these (topic, queue) pairs."""
        self._completions.post(self._held.changed, arriving.arrived(arrivals))

    def changed(self) -> None:
        """Tell that a topic was created, altered or deleted."""
        if self._on_change is not None:
            self._on_change()

    def faulted(self, error: StoreError) -> None:
        """Tell that the log takes no more writes."""
        log.critical("log_failed", broker=self._broker, why=str(error), facts=error.facts)
        self._completions.post(self._fail, error)

    def _fail(self, error: StoreError) -> None:
        if not self.failed.done():
            self.failed.set_result(error)

    def damaged(self, error: StoreError) -> None:
        """Log damage that was found on the disk."""
        log.error("damage_found", broker=self._broker, code=error.code, why=str(error), facts=error.facts)

    def clock_noticed(self, notice: ClockNotice) -> None:
        """Log a step of the wall clock."""
        write = {"error": log.error, "warning": log.warning, "info": log.info}[notice.level]
        write(notice.event, broker=self._broker, why=notice.message, facts=notice.facts)
