"""Turning many small sends into few batches: the decisions, without threads or I/O.

A message waits in the *lane* of its destination until the lane is due: enough bytes,
enough messages, the first has lingered long enough, or a flush. A due
lane gives a batch, whose bytes stay counted until its outcome is known.

    free lanes     (topic, no queue): batches may overtake each other, so any
                   number is under way
    ordered lanes  (topic, queue, whether by ordering key): one batch is under
                   way, the next waits for its outcome

While a message of an ordering key waits or is under way, later messages of the key join its lane,
whatever their destination: a route that changes meanwhile must not let them overtake.

When an ordered batch fails, every message that waits behind it in the same order (the
same ordering key, or the same explicit queue) fails with it: were it sent, it would overtake.
A message submitted after the failure is known starts anew.

Not thread-safe: `rocketq.producing.submit_threads` holds the lock and does what is decided here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field

from rocketq.model import Message, MessageQueue, SendResult

#: What a message costs in the buffer besides its bytes.
MESSAGE_OVERHEAD_BYTES = 256


@dataclass(frozen=True, slots=True)
class Destination:
    """A topic, and the queue if messages belong to one: by an ordering key, or because it was named.

    Delayed messages travel apart: a batch that has one is held as a whole.
    """

    topic: str
    queue: MessageQueue | None = None
    is_keyed: bool = False
    is_delayed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """A submitted message, its future, and the order it belongs to: a key, or None for its queue's.

    `generation` counts the flushes before it (see `rocketq.producing.submit_threads`).
    """

    message: Message
    future: Future[SendResult]
    size: int
    order: bytes | None = None
    generation: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Messages that go to one destination in one request."""

    destination: Destination
    messages: tuple[Waiting, ...]
    size: int


@dataclass(slots=True)
class _Lane:
    """Messages of one destination, oldest first."""

    waiting: deque[Waiting] = field(default_factory=deque)
    size: int = 0
    since_ms: int = 0
    under_way: int = 0


def size_of(message: Message) -> int:
    """Return what a message counts in the buffer."""
    size = len(message.body) + len(message.key or b"") + len(message.tag or "")
    for name, value in (message.properties or {}).items():
        size += len(name) + len(value)
    return size + MESSAGE_OVERHEAD_BYTES


class Accumulator:
    """Messages that wait to be sent, lane by lane."""

    def __init__(self, *, linger_ms: int, batch_bytes: int, batch_messages: int) -> None:
        self._linger_ms = linger_ms
        self._batch_bytes, self._batch_messages = batch_bytes, batch_messages
        self._lanes: dict[Destination, _Lane] = {}
        #: Of each topic and ordering key: the lane of its messages without an outcome, and how many they are.
        self._keys: dict[tuple[str, bytes], tuple[Destination, int]] = {}
        #: Bytes of all messages without an outcome, waiting or under way.
        self.buffered_bytes = 0

    @property
    def is_empty(self) -> bool:
        """Whether every message has its outcome."""
        return not self._lanes

    def add(self, destination: Destination, waiting: Waiting, now_ms: int) -> bool:
        """Take a message; return whether somebody should look: its lane is new, or just became due."""
        if destination.is_keyed and waiting.order is not None:
            key = (destination.topic, waiting.order)
            destination, count = self._keys.get(key, (destination, 0))
            self._keys[key] = (destination, count + 1)
        lane = self._lanes.get(destination)
        if lane is None:
            lane = self._lanes[destination] = _Lane()
        first = not lane.waiting
        if first:
            lane.since_ms = now_ms
        lane.waiting.append(waiting)
        lane.size += waiting.size
        self.buffered_bytes += waiting.size
        return first or self._is_full(lane)

    def due(self, now_ms: int, flushing: bool = False) -> list[Batch]:
        """Take out every batch that should be sent now."""
        batches = []
        for destination, lane in self._lanes.items():
            ordered = destination.queue is not None
            while lane.waiting and not (ordered and lane.under_way):
                if not (flushing or self._is_full(lane) or now_ms >= lane.since_ms + self._linger_ms):
                    break
                batches.append(self._taken(destination, lane))
        return batches

    def next_due_ms(self) -> int | None:
        """Return when a lane will be due by its age alone; None if none waits for that."""
        times = [
            lane.since_ms + self._linger_ms
            for destination, lane in self._lanes.items()
            if lane.waiting and not (destination.queue is not None and lane.under_way)
        ]
        return min(times, default=None)

    def done(self, batch: Batch, failed: Collection[Waiting]) -> list[Waiting]:
        """Note a batch's outcome and which of its messages failed; return those behind that must fail."""
        lane = self._lanes[batch.destination]
        lane.under_way -= 1
        self.buffered_bytes -= batch.size
        doomed: list[Waiting] = []
        if failed and batch.destination.queue is not None:
            orders = {waiting.order for waiting in failed}
            doomed = self._removed(lane, lambda waiting: waiting.order in orders)
        if batch.destination.is_keyed:
            self._forget_keys(batch.destination.topic, (*batch.messages, *doomed))
        if not lane.waiting and not lane.under_way:
            del self._lanes[batch.destination]
        return doomed

    # --- inside ------------------------------------------------------------------

    def _is_full(self, lane: _Lane) -> bool:
        return lane.size >= self._batch_bytes or len(lane.waiting) >= self._batch_messages

    def _taken(self, destination: Destination, lane: _Lane) -> Batch:
        messages: list[Waiting] = []
        size = 0
        while lane.waiting and len(messages) < self._batch_messages:
            if messages and size + lane.waiting[0].size > self._batch_bytes:
                break
            waiting = lane.waiting.popleft()
            messages.append(waiting)
            size += waiting.size
        lane.size -= size
        lane.under_way += 1
        return Batch(destination, tuple(messages), size)

    def _forget_keys(self, topic: str, messages: Iterable[Waiting]) -> None:
        """Note that these messages have their outcome; the last of a key ends its hold on the lane."""
        for waiting in messages:
            if waiting.order is not None:
                destination, count = self._keys.pop((topic, waiting.order))
                if count > 1:
                    self._keys[topic, waiting.order] = (destination, count - 1)

    def _removed(self, lane: _Lane, matches: Callable[[Waiting], bool]) -> list[Waiting]:
        found = [waiting for waiting in lane.waiting if matches(waiting)]
        if found:
            lane.waiting = deque(waiting for waiting in lane.waiting if not matches(waiting))
            size = sum(waiting.size for waiting in found)
            lane.size -= size
            self.buffered_bytes -= size
        return found
