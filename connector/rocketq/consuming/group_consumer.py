"""Consuming as a member of a group: in a loop, by polling, or as Arrow batches.

    with client.consumer("billing", {"orders": Sql("amount > 40")}) as consumer:
        for message in consumer:
            handle(message)

The members of a group share the queues of its topics. A message is acknowledged when the next one is asked
for (`ack="auto"`), or by `ack` and `commit` alone (`ack="manual"`). The group's offset never passes a message
that is not acknowledged, so what is not handled when a member ends comes again, at this member or another.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Generator, Iterable, Iterator
from types import TracebackType
from typing import Any, Final, TypeAlias

import pyarrow as pa

from rocketq.config import ConsumerConfig
from rocketq.consuming.consumed_message import ConsumedMessage, Delivery
from rocketq.consuming.group_reader import GroupReader
from rocketq.consuming.member_view import MemberView
from rocketq.consuming.records import as_arrow, last_offsets
from rocketq.consuming.retries import Failure
from rocketq.errors import Closed, InvalidConfiguration
from rocketq.model import MessageQueue

#: What `commit` takes: a message, several, or an Arrow batch.
Handled: TypeAlias = ConsumedMessage | Iterable[ConsumedMessage] | pa.RecordBatch

#: How many messages a loop takes at once.
LOOP_MESSAGES: Final = 500


class Consumer(MemberView):
    """A member of a consumer group; made by `Client.consumer`.

    >>> with client.producer() as producer:
    ...     sent = producer.send("payments", "42", tag="paid")
    >>> with client.consumer("billing", "payments") as consumer:
    ...     for message in consumer:
    ...         print(message.body.decode(), message.tag)
    ...         break  # it is not acknowledged; the end of the loop's body would be
    42 paid

    One thread at a time takes messages. Any thread may acknowledge them, commit and close.
    """

    def __init__(self, reader: GroupReader) -> None:
        super().__init__(reader)
        self.config = reader.config
        self._is_auto = reader.config.ack == "auto"
        #: What was polled, to be acknowledged when more is asked for.
        self._polled: list[Delivery] = []
        #: The message, or the batch, at which a loop was left.
        self._left: tuple[Delivery, int] | None = None
        self._left_batch: list[Delivery] = []
        #: The present loop; weak, so that leaving the loop ends its generator at once.
        self._loop: weakref.ref[Generator[Any]] | None = None
        #: What a loop is going through.
        self._current: Delivery | None = None
        #: The thread that takes messages.
        self._taker: threading.Thread | None = None

    # --- messages ----------------------------------------------------------------

    def __iter__(self) -> Iterator[ConsumedMessage]:
        """Hand out messages one by one, as they come, until the consumer is closed.

        Raises what `poll` raises. A loop that is left, by an exception or `break`, does not acknowledge its
        last message: with ack="auto" it counts as failed when the next loop or poll begins, and is tried
        again. To leave a loop after a message that is handled, call its `ack` first.
        """
        self._begin()
        loop = self._messages()
        self._loop = weakref.ref(loop)
        return loop

    def poll(self, max_messages: int = 500, timeout_ms: int = 1_000) -> list[ConsumedMessage]:
        """Return the next messages, as soon as there are any; an empty list after `timeout_ms`.

        With ack="auto", polling again acknowledges them. Raises CorruptFrame, OffsetOutOfRange (with
        offset_reset="error"), RetriesExhausted, TopicNotFound or NoPermission for a queue that cannot go
        on, until it is sought elsewhere, paused, or goes to another member; GroupDisabled; Closed.
        """
        self._begin()
        self._polled = self._taken(max_messages, timeout_ms)
        return [message for delivery in self._polled for message in delivery.messages()]

    def arrow(self, max_rows: int = 50_000, timeout_ms: int = 1_000) -> Iterator[pa.RecordBatch]:
        """Hand out batches of CONSUMED_SCHEMA, each as soon as there is any message, an empty one after
        `timeout_ms`, until the consumer is closed.

        With ack="auto", asking for the next batch acknowledges one. A batch at which the loop is left is not
        acknowledged: its messages are handed out again by the next loop or poll. Raises what `poll` raises.
        """
        self._begin()
        loop = self._batches(max_rows, timeout_ms)
        self._loop = weakref.ref(loop)
        return loop

    # --- progress ----------------------------------------------------------------

    def commit(self, handled: Handled | None = None) -> None:
        """Acknowledge messages, and store the group's progress now.

        `handled` is a message, several, or an Arrow batch. Of a batch, for each queue everything counts that
        was handed out up to its last message in the batch. None: everything that was handed out. Raises the
        error of the first broker that did not take it, after the others have: BrokerUnreachable, or ClaimLost
        or MemberUnknown if queues went to another member meanwhile, to which their messages come again.
        """
        if handled is None:
            self._reader.acknowledge_all()
        elif isinstance(handled, pa.RecordBatch):
            for queue, offset in last_offsets(handled).items():
                self._reader.acknowledge_up_to(queue, offset)
        elif isinstance(handled, ConsumedMessage):
            handled.ack()
        else:
            for message in handled:
                message.ack()
        self._reader.settled()
        self._reader.commit()

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on in an owned queue at `offset`; the next commit may take the group back."""
        self._reader.seek(queue, offset)

    def pause(self, *queues: MessageQueue) -> None:
        """Hand out and fetch nothing of these queues until `resume`, or until another member gets them."""
        self._set_paused(queues, True)
        if self._current is not None and self._current.queue in queues:
            self._current.is_recalled = True

    def resume(self, *queues: MessageQueue) -> None:
        """Go on with paused queues."""
        self._set_paused(queues, False)

    # --- life --------------------------------------------------------------------

    def close(self) -> None:
        """Commit what is acknowledged, release the queues and leave the group. Twice is no error.

        What was handed out and is not acknowledged comes again. If another thread is handling messages, it
        has `hand_over_ms` to ask for more, which ends its loop.
        """
        taker = self._taker
        if taker is not None and taker is not threading.current_thread() and taker.is_alive():
            self._reader.recall()
            self._reader.wait_until_idle(self.config.hand_over_ms)
        self._reader.close()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._is_auto:
            for delivery in self._polled:
                delivery.acknowledge()
        self.close()

    # --- inside ------------------------------------------------------------------

    def _messages(self) -> Generator[ConsumedMessage]:
        while True:
            try:
                delivery = self._reader.hand_out(LOOP_MESSAGES, None)
            except Closed:
                return
            assert delivery is not None
            yield from self._rows(delivery)
            self._reader.settled()

    def _rows(self, delivery: Delivery) -> Generator[ConsumedMessage]:
        handled, is_auto, row = delivery.handled, self._is_auto, 0
        self._current = delivery
        try:
            for row, message in enumerate(delivery.messages()):
                if delivery.is_recalled:
                    self._reader.take_back(delivery, row)
                    return
                yield message
                if is_auto:
                    handled[row] = 1
        except GeneratorExit:
            self._left = (delivery, row)
            self._reader.take_back(delivery, row + 1)
            raise

    def _batches(self, rows: int, timeout_ms: int) -> Generator[pa.RecordBatch]:
        while True:
            try:
                taken = self._taken(rows, timeout_ms)
            except Closed:
                return
            try:
                yield as_arrow([(delivery.queue, delivery.piece) for delivery in taken])
            except GeneratorExit:
                self._left_batch = taken
                raise
            if self._is_auto:
                for delivery in taken:
                    delivery.acknowledge()
            self._reader.settled()

    def _taken(self, messages_max: int, timeout_ms: int) -> list[Delivery]:
        if messages_max < 1:
            raise InvalidConfiguration("max_messages", messages_max, "it must be at least 1")
        wait_ms: int = max(0, timeout_ms)
        found: list[Delivery] = []
        left = messages_max
        while left:
            delivery = self._reader.hand_out(left, 0 if found else wait_ms, raising=not found)
            if delivery is None:
                break
            found.append(delivery)
            left -= delivery.rows
        return found

    def _begin(self) -> None:
        """Settle what was handed out before: a new loop or poll asks for more."""
        self._taker = threading.current_thread()
        self._end_loop()
        if self._left is not None:
            (delivery, row), self._left = self._left, None
            if self._is_auto:
                delivery.fail(row, Failure())
        if self._is_auto:
            for delivery in reversed(self._left_batch):
                self._reader.take_back(delivery, 0)
            for delivery in self._polled:
                delivery.acknowledge()
        self._left_batch, self._polled = [], []
        self._reader.settled()

    def _end_loop(self) -> None:
        loop = None if self._loop is None else self._loop()
        if loop is not None:
            loop.close()

    def _set_paused(self, queues: Iterable[MessageQueue], paused: bool) -> None:
        for queue in queues:
            self._reader.change(queue, lambda state: setattr(state, "is_paused", paused))


def checked_loop_config(config: ConsumerConfig) -> ConsumerConfig:
    """Return the configuration of a consumer; raise InvalidConfiguration for what only listeners have."""
    if config.consume_timeout_ms is not None:
        raise InvalidConfiguration(
            "consume_timeout_ms", config.consume_timeout_ms,
            "it bounds the function of a listener, and a loop may hold its messages as long as it likes",
            hint="Leave it out, or use a listener.",
        )  # fmt: skip
    return config
