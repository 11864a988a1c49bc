"""The producer for threads as an event loop can use it: nothing that the loop calls waits.

Where a thread would wait for room in the buffer, BufferFull is raised, and `on_room` is called when there is
some. `is_ready` tells whether a message that chooses a queue can be submitted without asking for a route.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from rocketq.clock import Clock
from rocketq.config import ProducerConfig
from rocketq.errors import Closed, TooLarge
from rocketq.model import Message, SendResult
from rocketq.net.route_cache import RouteCache
from rocketq.net.transport import Transport
from rocketq.producing.accumulation.accumulator import Batch
from rocketq.producing.accumulation.submit_threads import Pipeline, Rows, SendBatch
from rocketq.producing.oneway_sends import OnewaySends
from rocketq.producing.producer import Producer
from rocketq.producing.selection.fault_avoidance import FaultTolerance
from rocketq.producing.selection.queue_selectors import Selection
from rocketq.producing.unique_ids import UNIQUE_IDS

_FIRST_ROW: Final = np.zeros(1, np.int64)


class BufferFull(Exception):
    """There is no room for a message now; inside the client only."""


class Room:
    """Whether somebody wants to hear that there is room; any thread says so."""

    def __init__(self, on_room: Callable[[], object]) -> None:
        self._on_room = on_room
        self._is_wanted = False

    def want(self) -> None:
        self._is_wanted = True

    def announce(self) -> None:
        if self._is_wanted:
            self._is_wanted = False
            self._on_room()


class LoopPipeline(Pipeline):
    """A pipeline whose `submit` raises BufferFull instead of waiting."""

    def __init__(
        self,
        send: SendBatch,
        send_one: Callable[[str, Message], SendResult],
        config: ProducerConfig,
        clock: Clock,
        room: Room,
    ) -> None:
        self._send_one, self._news = send_one, room
        #: `hurry` follows in this turn of the loop, so a new batch wakes nobody before it.
        self.is_hurrying = False
        super().__init__(send, config, clock)

    def hurry(self) -> None:
        """Send everything now, as far as a thread is free."""
        with self._lock:
            self.is_hurrying = False
            self._accumulator.hurry()
            self._wake_one()

    def _tell(self, batch: Batch, row: int) -> None:
        if self.is_hurrying and row == 0 and not batch.is_full:
            self._enter(batch)
        else:
            super()._tell(batch, row)

    def _sent(self, batch: Batch, rows: list[int] | None) -> Iterable[tuple[Rows, SendResult]]:
        """Send a batch. A single message without an order needs no Arrow, and goes as by `send`."""
        if rows is not None or len(batch) > 1 or batch.destination.queue is not None:
            return super()._sent(batch, rows)
        if self._config.unique_ids:
            batch.outcome.ids = UNIQUE_IDS.many(1)
            batch.outcome.own_ids = batch.columns.own_ids()
        message = batch.columns.message(0, batch.outcome.unique_id_of(0))
        return [(_FIRST_ROW, self._send_one(batch.destination.topic, message))]

    def _wait_for_room(self, topic: str, size: int) -> None:
        # Called with the lock, which `_announce_room` is called with too.
        if size > self._config.buffer_bytes:
            raise TooLarge("a message", size, self._config.buffer_bytes)
        if self._closed:
            raise Closed("The producer")
        self._news.want()
        raise BufferFull

    def _announce_room(self) -> None:
        super()._announce_room()
        self._news.announce()


class LoopProducer(Producer):
    """A producer that an event loop may call for `submit` and `send_oneway`; both raise BufferFull."""

    def __init__(
        self,
        transport: Transport,
        routes: RouteCache,
        *,
        config: ProducerConfig,
        clock: Clock,
        fault: FaultTolerance,
        on_room: Callable[[], object],
        **settings: Any,
    ) -> None:
        """`settings` are further arguments of `Producer`."""
        super().__init__(transport, routes, config=config, clock=clock, fault=fault, **settings)
        self._routes, self._room = routes, Room(on_room)
        self._oneway = LoopOnewaySends(self._room)

    def is_ready(self, topic: str) -> bool:
        """Whether the queues of a topic are known, so that choosing one makes no call."""
        return self._routes.is_fresh(topic)

    def make_ready(self, topic: str) -> None:
        """Learn the queues of a topic, creating it where that is allowed; raises as `send`."""
        self._queues(topic)

    def expect_hurry(self) -> None:
        """Say that `hurry` follows in this turn of the loop."""
        if isinstance(self._pipeline, LoopPipeline):
            self._pipeline.is_hurrying = True

    def hurry(self) -> None:
        """Send what was submitted without waiting for more."""
        if isinstance(self._pipeline, LoopPipeline):
            self._pipeline.hurry()

    def _new_pipeline(self) -> Pipeline:
        return LoopPipeline(self._send_waiting, self._send_alone, self.config, self._clock, self._room)

    def _send_alone(self, topic: str, message: Message) -> SendResult:
        queues = self._attempts.write_queues(topic)
        selector = self._selectors.of_message(topic, None, None, queues)
        chosen = selector.select(queues, Selection(now_ms=self._attempts.now_ms()))
        config = self.config
        return self._attempts.send_one(
            chosen, message, None, selector, timeout_ms=config.timeout_ms, retries=config.retries
        )


class LoopOnewaySends(OnewaySends):
    """One-way sends whose `begin` raises BufferFull instead of waiting."""

    def __init__(self, room: Room) -> None:
        super().__init__()
        self._room = room

    def take_place(self) -> None:
        if self._places.acquire(blocking=False):
            return
        # A place that comes free from here on is announced; one that did before is found now.
        self._room.want()
        if not self._places.acquire(blocking=False):
            raise BufferFull

    def give_place_back(self) -> None:
        super().give_place_back()
        self._room.announce()
