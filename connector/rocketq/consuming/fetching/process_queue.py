"""What a consumer holds of one MessageQueue (RocketMQ: ProcessQueue): values and decisions, no I/O.

    ... handled | handed out, some acknowledged | buffered | not fetched ...
                ^ committable                   ^ position ^ fetch

`fetch` is the next offset to ask the broker for, `position` the next to hand out. The messages between them
are buffered. Below `position` lie the deliveries: messages that were handed out. They are acknowledged in
any order. `committable` is the first offset that is not acknowledged, or `position` if all are. Only it may
be committed, so a message that is still worked on is never passed over.

A message that failed is handed out again later, as a delivery of its own ("retry"), or, where order counts,
goes back in front of the buffer with everything behind it ("put back").
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa

from rocketq.consuming.consumed_message import Delivery, FailHandler
from rocketq.consuming.fetching.slice_buffer import SliceBuffer
from rocketq.errors import RocketqError
from rocketq.model import MessageQueue
from rocketq.protocol.column_values import numbers
from rocketq.protocol.frame_slices import FrameSlice

#: The only row of a part of one message.
_FIRST: Final = numbers(np.zeros(1, np.int64))


@dataclass(slots=True)
class Retry:
    """One message that failed, or some that go to another worker; `due_ms` is when to hand them out, None
    while they are out or given up.

    `is_returning`: it is being sent back to its broker.
    """

    delivery: Delivery
    due_ms: int | None
    is_returning: bool = False

    def returned(self, is_taken: bool, due_ms: int) -> None:
        """End the sending back: the message is handled, or is to be handed out again here."""
        self.is_returning = False
        if is_taken:
            self.delivery.acknowledge()
        else:
            self.due_ms = due_ms


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """How much of a queue a consumer holds before it stops fetching; beyond means more than the limit.

    RocketMQ: DefaultMQPushConsumer, pullThresholdForQueue, pullThresholdSizeForQueue,
    consumeConcurrentlyMaxSpan. `span_max` bounds the distance from the first message that is not
    acknowledged to the last one that was fetched, and so how much is read again after a crash.
    """

    messages_max: int
    bytes_max: int
    span_max: int | None

    def shared_by(self, queues: int, messages_max: int, bytes_max: int) -> FlowLimits:
        """Return the limits of one of `queues` queues that share limits for the whole consumer.

        Each has an equal share, so a queue that stands still takes nothing from the others
        (RocketMQ: pullThresholdForTopic, divided by the number of queues).
        """
        return replace(
            self,
            messages_max=min(self.messages_max, max(1, messages_max // queues)),
            bytes_max=min(self.bytes_max, max(1, bytes_max // queues)),
        )


@dataclass(slots=True)
class ProcessQueue:
    """One queue of a consumer."""

    queue: MessageQueue
    position: int
    fetch: int
    #: The max offset last heard of; there is something to fetch while `fetch` is below it.
    known_max: int
    incarnation: str
    #: A pull for an earlier generation is thrown away: there was a seek, or the queue was lost and came back.
    generation: int = 0
    #: The epoch of the member's claim; None for a consumer that claims nothing.
    epoch: int | None = None
    #: The offset may lie outside the queue: one pull is due, whatever `known_max` says.
    probe: bool = False
    slices: SliceBuffer = field(default_factory=SliceBuffer)
    #: Nothing is handed out from then on: the broker may have given the queue to another member.
    owned_until_ms: float = math.inf
    #: Raised by poll once the slices before it are handed out; a seek clears it.
    error: RocketqError | None = None
    #: A commit may take the group back: there was a seek.
    sought: bool = False
    #: Not fetched from before: the broker or the queue cannot be read now.
    paused_until_ms: int = 0
    #: Not handed out before: its first message failed and waits.
    held_until_ms: int = 0
    #: A message had its last attempt: nothing behind it is handed out before a seek.
    is_stopped: bool = False
    #: The first message is being sent back to its broker: nothing is handed out meanwhile.
    is_returning: bool = False
    #: The user paused the queue.
    is_paused: bool = False
    #: The queue is to be released: nothing of it is handed out any more.
    is_leaving: bool = False
    corrupt_seen: int = 0
    deliveries: deque[Delivery] = field(default_factory=deque)
    #: The first offset of what came back unread when the queue had to be released.
    returned_from: int | None = None
    retries: list[Retry] = field(default_factory=list)
    #: The attempt at which the first buffered message is handed out.
    next_attempt: int = 1

    # --- what is held ------------------------------------------------------------

    @property
    def buffered_bytes(self) -> int:
        """The bytes of the messages that are fetched and not handed out."""
        return self.slices.nbytes

    @property
    def held_bytes(self) -> int:
        """The bytes of all messages that are fetched and not acknowledged, or were handed out with such."""
        self.settle()
        again = sum(retry.delivery.size for retry in self.retries)
        return self.slices.nbytes + again + sum(delivery.size for delivery in self.deliveries)

    @property
    def held_messages(self) -> int:
        """The number of messages that are fetched and not acknowledged."""
        self.settle()
        handed_out = sum(delivery.unhandled for delivery in self.deliveries)
        return self.slices.rows + handed_out + len(self.retries)

    @property
    def is_idle(self) -> bool:
        """Whether nobody works on a message of the queue; nobody works on one that waits for an attempt."""
        self.settle()
        waiting = all(retry.due_ms is not None or self.error for retry in self.retries)
        return not self.deliveries and waiting and not self.is_returning

    def committable(self) -> int:
        """Return the offset that may be committed: everything before it is acknowledged."""
        self.settle()
        found = [retry.delivery.piece.offset for retry in self.retries]
        # A delivery may be acknowledged while this looks, so each is asked for itself.
        unhandled = (delivery.first_unhandled() for delivery in self.deliveries)
        first = next((offset for offset in unhandled if offset is not None), None)
        if first is not None:
            found.append(first)
        if self.returned_from is not None:
            found.append(self.returned_from)
        return min(found, default=self.position)

    def admits(self, limits: FlowLimits, pull_bytes: int) -> bool:
        """Whether one more pull stays within the limits; with nothing held one always does."""
        held_bytes = self.held_bytes
        if held_bytes == 0:
            return True
        if held_bytes + pull_bytes > limits.bytes_max or self.held_messages > limits.messages_max:
            return False
        return limits.span_max is None or self.fetch - self.committable() <= limits.span_max

    def settle(self) -> None:
        """Forget what is acknowledged and no longer stands between the queue and its commit."""
        while self.deliveries and self.deliveries[0].is_handled:
            self.deliveries.popleft()
        if self.retries:
            self.retries = [retry for retry in self.retries if not retry.delivery.is_handled]

    # --- handing out -------------------------------------------------------------

    def out(self) -> list[Delivery]:
        """Return what was handed out and is not all acknowledged."""
        self.settle()
        again = (r.delivery for r in self.retries if r.due_ms is None and not r.is_returning)
        return [*self.deliveries, *again]

    def may_hand_out(self, now_ms: int) -> bool:
        """Whether the queue takes part in handing out at all."""
        stopped = self.is_paused or self.is_leaving or self.is_stopped or self.is_returning
        return not stopped and self.held_until_ms <= now_ms < self.owned_until_ms

    def take(self, rows: int) -> tuple[FrameSlice, int] | None:
        """Take the next at most `rows` messages of one frame out of the buffer, and their size in bytes."""
        taken = self.slices.take(rows)
        if taken is not None:
            # A reset may have moved the fetch; the position follows once all before it is out.
            self.position = taken[0].next_offset if self.slices else self.fetch
        return taken

    def hand_out(self, rows: int, fail: FailHandler) -> Delivery | None:
        """Hand out the next at most `rows` messages of one frame, to be acknowledged; None if there are none.

        A message that was put back after it failed comes alone.
        """
        attempt, self.next_attempt = self.next_attempt, 1
        taken = self.take(rows if attempt == 1 else 1)
        if taken is None:
            self.next_attempt = attempt
            return None
        delivery = Delivery(self.queue, *taken, attempt, fail)
        self.deliveries.append(delivery)
        return delivery

    def due_retry(self, now_ms: int) -> Delivery | None:
        """Hand out a message that failed and whose time has come; None if there is none."""
        for retry in self.retries:
            if retry.due_ms is not None and retry.due_ms <= now_ms:
                retry.due_ms = None
                return retry.delivery
        return None

    def next_due_ms(self, now_ms: int) -> int | None:
        """Return when, after now, a message that failed is due next; None if none waits."""
        times = [retry.due_ms for retry in self.retries if retry.due_ms is not None]
        times.append(self.held_until_ms)
        return min((time_ms for time_ms in times if time_ms > now_ms), default=None)

    # --- failures ----------------------------------------------------------------

    def retry_later(self, delivery: Delivery, row: int, due_ms: int | None) -> Retry:
        """Have one message handed out again at `due_ms`, apart from the others; None: not by itself.

        The message is copied, so that it does not keep its whole frame in memory.
        """
        delivery.acknowledge(row, row + 1)
        piece = delivery.piece.part(row, 1)
        alone = pa.record_batch(
            [column.take(_FIRST) for column in piece.batch.columns], schema=piece.batch.schema
        )
        again = Delivery(
            self.queue, replace(piece, batch=alone), int(alone.nbytes), delivery.attempt + 1,
            delivery.fail_handler,
        )  # fmt: skip
        self.retries.append(retry := Retry(again, due_ms))
        return retry

    def is_last(self, delivery: Delivery) -> bool:
        """Whether nothing behind a delivery is out: its messages can go back in front of the buffer."""
        for other in reversed(self.deliveries):
            if other is delivery or not other.is_handled:
                return other is delivery
        return False

    def hand_on(self, delivery: Delivery, row: int, due_ms: int) -> None:
        """Have the messages from `row` on, which nobody has begun, handed out at `due_ms`, as they were."""
        if delivery.handled.find(0, row) < 0:
            return
        piece = delivery.piece.part(row, delivery.rows - row)
        size = delivery.size * piece.rows // delivery.rows
        rest = Delivery(self.queue, piece, size, delivery.attempt, delivery.fail_handler)
        rest.handled[:] = delivery.handled[row:]
        delivery.acknowledge(row)
        self.retries.append(Retry(rest, due_ms))

    def put_back(self, delivery: Delivery, row: int, until_ms: int) -> None:
        """Have the messages from `row` on handed out again, in order, not before `until_ms`.

        `delivery` is the last one that was handed out. Those behind `row` may have been put back before.
        """
        end = delivery.handled.find(1, row)
        rest = delivery.piece.part(row, (delivery.rows if end < 0 else end) - row)
        delivery.acknowledge(row)
        # Whoever has the delivery in hand must not go on with it.
        delivery.is_recalled = True
        self.slices.put_back(rest, delivery.size * rest.rows // delivery.rows)
        self.position = rest.offset
        self.held_until_ms = until_ms
        self.next_attempt = delivery.attempt + 1

    def returned(self, is_taken: bool, until_ms: int) -> None:
        """End the sending back of the first message: it is passed, or handed out again from `until_ms` on."""
        self.is_returning = False
        if is_taken:
            self.take(1)
            self.next_attempt = 1
        else:
            self.held_until_ms = until_ms

    def leave(self) -> None:
        """Hand out nothing more: the queue is to be released. Recall the last delivery.

        Deliveries before the last one are handled to their end: messages behind them may be handled already,
        and would come again to the next owner.
        """
        self.is_leaving = True
        if self.deliveries:
            self.deliveries[-1].is_recalled = True

    def recall(self) -> None:
        """Hand out nothing more, and have nobody go on with what is out: it is no longer this member's."""
        self.is_leaving = True
        self._recall_all()

    def take_back(self, delivery: Delivery, row: int) -> None:
        """Take the messages of a recalled delivery from `row` on, which nobody has worked on."""
        if row < delivery.rows:
            offset = delivery.offsets[row]
            self.returned_from = offset if self.returned_from is None else min(offset, self.returned_from)
            delivery.acknowledge(row)

    def stop(self, error: RocketqError) -> None:
        """Hand out nothing more before a seek; poll raises the error."""
        self.error, self.is_stopped = error, True
        self._recall_all()

    def begin_at(self, offset: int, generation: int) -> None:
        """Hand out next what is at `offset`: forget what was fetched, handed out and failed."""
        self._recall_all()
        self.slices.clear()
        self.deliveries.clear()
        self.retries.clear()
        self.position = self.fetch = offset
        self.probe, self.generation, self.next_attempt = True, generation, 1
        self.error, self.is_stopped, self.sought, self.is_returning = None, False, True, False
        self.paused_until_ms = self.held_until_ms = 0

    def _recall_all(self) -> None:
        for delivery in self.deliveries:
            delivery.is_recalled = True

    def has_work(self, now_ms: int) -> bool:
        """Whether there is something to fetch, and nothing against fetching it."""
        return self.is_behind and now_ms >= self.paused_until_ms

    @property
    def is_behind(self) -> bool:
        """Whether there is something to fetch, and the queue is not stopped."""
        stopped = self.error is not None or self.is_leaving or self.is_paused
        return (self.probe or self.fetch < self.known_max) and not stopped
