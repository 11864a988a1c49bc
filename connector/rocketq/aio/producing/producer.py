"""Sending messages from asyncio: the twin of `rocketq.producing.producer`.

    send          one message; what is sent in one turn of the event loop leaves in one request
    submit        one message, gathered with others for `linger_ms`; gives a future when it has a place in
                  the buffer, and awaits one while the buffer is full
    send_oneway   one message, one attempt, no answer

These three make no thread wait: they put messages into the accumulator, and its threads send batches. What
sends many messages at once (`send_batch` and the others) is a call on a thread.

A task that is cancelled in `send` takes its message back if that has not left yet. If it is under way, it is
sent as if nothing had happened. A cancelled `submit` has not taken the message.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import get_running_loop
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, Final, TypeVar

from rocketq.aio.blocking_calls import BlockingCalls
from rocketq.aio.home_loop import HomeLoop
from rocketq.aio.producing.batch_sender import AsyncBatchSender
from rocketq.aio.producing.loop_producer import BufferFull, LoopProducer
from rocketq.aio.producing.send_future import AsyncSendFuture, Outcomes
from rocketq.config import Compression, ProducerConfig
from rocketq.errors import InvalidBatch, SendFailed, TooLarge
from rocketq.model import MessageQueue, SendResult
from rocketq.producing.attempts.send_hooks import SendHook
from rocketq.producing.checked_fields import Text
from rocketq.producing.input_batches import OrderingKeys
from rocketq.producing.placing import SelectionName
from rocketq.producing.selection.fault_avoidance import BrokerFault, FaultTolerance
from rocketq.producing.selection.queue_selectors import QueueSelector
from rocketq.producing.staged_send import StagedSlice
from rocketq.protocol.documents.sinks import StageName

log = logging.getLogger("rocketq.aio.producing.producer")

T = TypeVar("T")

#: After so many messages that found room at once, other tasks of the loop get a turn.
MESSAGES_PER_TURN: Final = 256


@dataclass(slots=True)
class _Asking:
    """Tasks that wait for a route: how many, and whose turn it is."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    tasks: int = 0


class AsyncProducer:
    """Sends messages to topics; made by `AsyncClient.producer`. `close` sends what still waits.

    Names, arguments and errors are those of `Producer`.
    """

    def __init__(
        self, make: Callable[[Callable[[], object]], LoopProducer], home: HomeLoop, calls: BlockingCalls
    ) -> None:
        """`make` makes the producer, given what it is to call when there is room in its buffer."""
        self._home, self._calls = home, calls
        self._outcomes = Outcomes(home)
        self._room = asyncio.Event()
        self._core = make(partial(home.post, self._note_room, None))
        self.config: ProducerConfig = self._core.config
        self.fault: FaultTolerance = self._core.fault
        #: Tasks that wait for a place in the buffer take it in the order in which they came.
        self._turn = asyncio.Lock()
        self._waiting = 0
        #: Tasks that wait for the route of a topic, in the order in which they came.
        self._asking: dict[str, _Asking] = {}
        self._since_turn = 0
        self._is_hurrying = False
        self.flush = calls.twin(self._core.flush)
        self.close = calls.twin(self._core.close)

    # --- one message -------------------------------------------------------------

    async def send(
        self,
        topic: str,
        body: Text,
        *,
        key: Text | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        ordering_key: Text | None = None,
        queue: MessageQueue | int | None = None,
        delay: str | timedelta | None = None,
        deliver_at: datetime | int | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send one message and return where it is, as `Producer.send` does.

        Await one send before the next if their order matters; `submit` keeps the order of its calls. With a
        `timeout_ms` of its own a message travels alone.
        """
        if timeout_ms is None:
            self._hurry_soon()
            future = await self.submit(
                topic, body, key=key, tag=tag, properties=properties, ordering_key=ordering_key, queue=queue,
                delay=delay, deliver_at=deliver_at,
            )  # fmt: skip
            # If it had to wait for room, the loop has turned.
            self._hurry_soon()
            try:
                return await future
            except asyncio.CancelledError:
                future.cancel()
                raise
            except (TooLarge, InvalidBatch):
                # A broker refuses a batch as a whole, and another message of it may be the reason.
                if not future.had_company:
                    raise
        alone = partial(
            self._core.send, topic, body, key=key, tag=tag, properties=properties, ordering_key=ordering_key,
            queue=queue, delay=delay, deliver_at=deliver_at, timeout_ms=timeout_ms,
        )  # fmt: skip
        return await self._calls.run(alone)

    async def submit(
        self,
        topic: str,
        body: Text,
        *,
        key: Text | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        ordering_key: Text | None = None,
        queue: MessageQueue | int | None = None,
        delay: str | timedelta | None = None,
        deliver_at: datetime | int | None = None,
    ) -> AsyncSendFuture:
        """Queue one message to be sent with others; `await` the future for its result.

        Awaits room while the buffer is full, at most the producer's `timeout_ms`: then SendFailed is raised.
        """
        # A message that finds room costs no more steps than these; all others go the way of `_admitted`.
        self._since_turn += 1
        is_anywhere = ordering_key is None and queue is None
        if (
            self._since_turn < MESSAGES_PER_TURN
            and not self._waiting
            and get_running_loop() is self._home.loop
            and (is_anywhere or self._is_ready(topic))
        ):
            try:
                taken = self._core.submit(
                    topic, body, key=key, tag=tag, properties=properties, ordering_key=ordering_key,
                    queue=queue, delay=delay, deliver_at=deliver_at,
                )  # fmt: skip
                return AsyncSendFuture(*taken.place, self._outcomes)
            except BufferFull:
                log.debug("A message to %s waits for room", topic)
        attempt = partial(
            self._core.submit, topic, body, key=key, tag=tag, properties=properties,
            ordering_key=ordering_key, queue=queue, delay=delay, deliver_at=deliver_at,
        )  # fmt: skip
        taken = await self._admitted(topic, attempt, None if is_anywhere else topic)
        return AsyncSendFuture(*taken.place, self._outcomes)

    async def send_oneway(
        self,
        topic: str,
        body: Text,
        *,
        key: Text | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        ordering_key: Text | None = None,
        queue: MessageQueue | int | None = None,
        delay: str | timedelta | None = None,
        deliver_at: datetime | int | None = None,
    ) -> None:
        """Send one message in the background, with one attempt; awaits while too many are under way."""
        self._since_turn += 1
        attempt = partial(
            self._core.send_oneway, topic, body, key=key, tag=tag, properties=properties,
            ordering_key=ordering_key, queue=queue, delay=delay, deliver_at=deliver_at,
        )  # fmt: skip
        await self._admitted(topic, attempt, None)

    @property
    def oneway_lost(self) -> int:
        """How many one-way messages were not stored, as far as is known."""
        return self._core.oneway_lost

    # --- many messages -----------------------------------------------------------

    async def send_batch(
        self,
        topic: str,
        data: Any,
        *,
        ordering_key: OrderingKeys | None = None,
        selection: SelectionName | QueueSelector | None = None,
        queue: MessageQueue | int | None = None,
        delay: str | timedelta | None = None,
        deliver_at: datetime | int | None = None,
        compression: Compression | None = None,
        timeout_ms: int | None = None,
        unique_ids: bool = False,
    ) -> list[SendResult]:
        """Send a Table, RecordBatch, DataFrame or list of Message, as `Producer.send_batch` does.

        If the task is cancelled meanwhile, the data is sent all the same.
        """
        send = partial(
            self._core.send_batch, topic, data, ordering_key=ordering_key, selection=selection, queue=queue,
            delay=delay, deliver_at=deliver_at, compression=compression, timeout_ms=timeout_ms,
            unique_ids=unique_ids,
        )  # fmt: skip
        return await self._calls.run(send)

    async def stage_batch(
        self,
        stage: StageName,
        topic: str,
        data: Any,
        *,
        ordering_key: OrderingKeys | None = None,
        selection: SelectionName | QueueSelector | None = None,
        queue: MessageQueue | int | None = None,
        compression: Compression | None = None,
        timeout_ms: int | None = None,
    ) -> list[StagedSlice]:
        """Put messages on a stage, as `Producer.stage_batch` does."""
        stage_them = partial(
            self._core.stage_batch, stage, topic, data, ordering_key=ordering_key, selection=selection,
            queue=queue, compression=compression, timeout_ms=timeout_ms,
        )  # fmt: skip
        return await self._calls.run(stage_them)

    def batch_sender(
        self,
        *,
        ordering_key: str | None = None,
        selection: SelectionName | QueueSelector | None = None,
        compression: Compression | None = None,
        timeout_ms: int | None = None,
        unique_ids: bool = False,
    ) -> AsyncBatchSender[SendResult]:
        """Return a sender for data that comes batch after batch; use it in `async with`."""
        sender = self._core.batch_sender(
            ordering_key=ordering_key, selection=selection, compression=compression, timeout_ms=timeout_ms,
            unique_ids=unique_ids,
        )  # fmt: skip
        return AsyncBatchSender(sender, self._calls)

    def batch_stager(
        self,
        stage: StageName,
        *,
        ordering_key: str | None = None,
        selection: SelectionName | QueueSelector | None = None,
        compression: Compression | None = None,
        timeout_ms: int | None = None,
    ) -> AsyncBatchSender[StagedSlice]:
        """Return a sender as `batch_sender` does, that puts the messages on a stage."""
        sender = self._core.batch_stager(
            stage, ordering_key=ordering_key, selection=selection, compression=compression,
            timeout_ms=timeout_ms,
        )  # fmt: skip
        return AsyncBatchSender(sender, self._calls)

    # --- life --------------------------------------------------------------------

    def faults(self) -> dict[str, BrokerFault]:
        """Return the brokers that are avoided now, or did not answer the last call; makes no call."""
        return self._core.faults()

    def add_hook(self, hook: SendHook) -> None:
        """Have a hook see every attempt from now on; threads call it, not the loop."""
        self._core.add_hook(hook)

    @property
    def is_closed(self) -> bool:
        return self._core.is_closed

    async def __aenter__(self) -> AsyncProducer:
        self._home.check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- inside ------------------------------------------------------------------

    async def _admitted(self, topic: str, attempt: Callable[[], T], route_of: str | None) -> T:
        """Make an attempt as soon as there is room, and once the route of `route_of` is known."""
        self._home.check()
        if route_of is not None and not self._is_ready(route_of):
            await self._make_ready(route_of)
        # Whoever comes later waits behind this one.
        self._waiting += 1
        try:
            return await self._in_turn(topic, attempt)
        finally:
            self._waiting -= 1

    def _is_ready(self, topic: str) -> bool:
        """Whether a message for a queue of a topic waits neither for the route nor for those before it."""
        return topic not in self._asking and self._core.is_ready(topic)

    async def _make_ready(self, topic: str) -> None:
        """Wait for the route of a topic, and for those that came before; messages for other topics go on."""
        asking = self._asking.setdefault(topic, _Asking())
        asking.tasks += 1
        try:
            async with asking.turn:
                if not self._core.is_ready(topic):
                    await self._calls.run(partial(self._core.make_ready, topic))
        finally:
            asking.tasks -= 1
            if not asking.tasks:
                del self._asking[topic]

    async def _in_turn(self, topic: str, attempt: Callable[[], T]) -> T:
        timeout_ms = self.config.timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000) as limit, self._turn:
                if self._since_turn >= MESSAGES_PER_TURN:
                    self._since_turn = 0
                    await asyncio.sleep(0)
                while True:
                    self._room.clear()
                    try:
                        return attempt()
                    except BufferFull:
                        await self._room.wait()
        except TimeoutError:
            if not limit.expired():
                raise
            why = f"there was no place for it in the send buffer of {self.config.buffer_bytes} bytes"
            raise SendFailed(topic, [why], timeout_ms, may_be_stored=False) from None

    def _note_room(self, _: None) -> None:
        self._room.set()

    def _hurry_soon(self) -> None:
        """Send what is submitted in this turn of the loop when the turn ends."""
        if not self._is_hurrying:
            self._is_hurrying = True
            self._home.check().call_soon(self._hurry)
            self._core.expect_hurry()

    def _hurry(self) -> None:
        self._is_hurrying = False
        self._core.hurry()
