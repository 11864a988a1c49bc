"""Turning many small sends into few batches: the decisions, without threads or I/O.

A message joins the newest batch of its *lane*, the lane of its destination. A batch is due when it has
enough bytes or messages, when its first message has lingered long enough, or at a flush. Its bytes stay
counted until its outcome is known.

    free lanes     (topic, no queue), and all lanes of delayed messages: batches
                   may overtake each other, so any number is under way
    ordered lanes  (topic, queue, whether by ordering key): one batch is under
                   way, the next waits for its outcome

While a message of an ordering key waits or is under way, later messages of the key join its lane,
whatever their destination: a route that changes meanwhile must not let them overtake.

When a message of an ordered batch fails, every message that waits behind it in the same order (the
same ordering key, or the same explicit queue) is taken out of its batch and fails too: were it sent, it would
overtake. A message submitted after the failure is known starts anew.

Not thread-safe: `rocketq.producing.accumulation.submit_threads` holds the lock and does what is decided here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rocketq.model import MessageQueue
from rocketq.producing.accumulation.message_columns import MessageColumns, fields_size
from rocketq.producing.accumulation.send_future import BatchOutcome

#: What a message takes in the buffer besides its bytes: its objects, and the future that its caller keeps.
MESSAGE_OVERHEAD_BYTES: Final = 192
#: Ordering keys that are remembered for nothing before they are looked through.
_SPARE_KEYS: Final = 4_096


class Destination(NamedTuple):
    """A topic, and the queue if messages belong to one: by an ordering key, or because it was named.

    Delayed messages travel apart: a batch that has one is held as a whole.
    """

    topic: str
    queue: MessageQueue | None = None
    is_keyed: bool = False
    is_delayed: bool = False

    @property
    def is_ordered(self) -> bool:
        """Whether messages keep their order. Delayed ones do not: each is delivered at its own time."""
        return self.queue is not None and not self.is_delayed


class Fields(NamedTuple):
    """What a message says besides its body."""

    key: bytes | None = None
    tag: str | None = None
    properties: dict[str, str] | None = None


NO_FIELDS: Final = Fields()


class Batch:
    """Messages of one lane that leave in one request, and their common outcome."""

    __slots__ = ("columns", "destination", "is_full", "is_hurried", "orders", "outcome", "since_ms", "size")

    def __init__(self, destination: Destination, since_ms: int) -> None:
        self.destination = destination
        self.columns = MessageColumns()
        #: Bytes of the messages that were not taken out.
        self.size = 0
        #: In an ordered lane, the order that each message belongs to: a key, or None for its queue's.
        self.orders: list[bytes | None] = []
        self.since_ms = since_ms
        self.is_full = False
        self.is_hurried = False
        self.outcome = BatchOutcome()

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def buffered_bytes(self) -> int:
        """What the batch counts in the buffer."""
        return self.size + MESSAGE_OVERHEAD_BYTES * (len(self) - len(self.outcome.taken_out))

    def live_rows(self) -> list[int] | None:
        """Return the rows that are to be sent; None if it is all of them."""
        if not self.outcome.taken_out:
            return None
        return [row for row in range(len(self)) if row not in self.outcome.taken_out]


@dataclass(slots=True)
class _Lane:
    """Batches of one destination, oldest first; messages join the last. Only that one may not be full."""

    waiting: deque[Batch] = field(default_factory=deque)
    under_way: int = 0


class Accumulator:
    """Messages that wait to be sent, lane by lane."""

    def __init__(self, *, linger_ms: int, batch_bytes: int, batch_messages: int) -> None:
        self._linger_ms = linger_ms
        self._batch_bytes, self._batch_messages = batch_bytes, batch_messages
        self._lanes: dict[Destination, _Lane] = {}
        #: Of each topic and ordering key: the lane of its messages, and the batch of the last one.
        self._keys: dict[tuple[str, bytes], tuple[Destination, Batch]] = {}
        self._keys_max = _SPARE_KEYS
        #: Bytes of all messages without an outcome, waiting or under way, each with its overhead.
        self.buffered_bytes = 0

    @property
    def is_empty(self) -> bool:
        """Whether every batch has its outcome."""
        return not self._lanes

    def add(
        self,
        destination: Destination,
        body: bytes,
        fields: Fields,
        order: bytes | None,
        born_at_us: int,
        now_ms: Callable[[], int],
    ) -> tuple[Batch, int, bool]:
        """Take a message; return its batch, its row, and whether somebody should look.

        Somebody should look if the batch is new, so that its linger begins (`now_ms` is asked when), or if it
        just became due.
        """
        if order is not None and destination.is_keyed:
            held = self._keys.get((destination.topic, order))
            if held is not None and not held[1].outcome.is_known:
                destination = held[0]
        lane = self._lanes.get(destination)
        if lane is None:
            lane = self._lanes[destination] = _Lane()
        size = len(body) if fields is NO_FIELDS else len(body) + fields_size(*fields)
        batch = lane.waiting[-1] if lane.waiting else None
        if batch is None or batch.is_full or batch.size + size > self._batch_bytes:
            if batch is not None:
                # What does not fit any more ends the batch.
                batch.is_full = True
            batch = Batch(destination, now_ms())
            lane.waiting.append(batch)
        if fields is NO_FIELDS:
            row = batch.columns.add(body, born_at_us)
        else:
            row = batch.columns.add(body, born_at_us, *fields)
        batch.size += size
        self.buffered_bytes += size + MESSAGE_OVERHEAD_BYTES
        if destination.queue is not None and destination.is_ordered:
            batch.orders.append(order)
            if order is not None and destination.is_keyed:
                self._remember(destination, order, batch)
        if batch.size >= self._batch_bytes or row + 1 >= self._batch_messages:
            batch.is_full = True
        return batch, row, batch.is_full or row == 0

    def due(self, now_ms: int) -> Batch | None:
        """Take out a batch that should be sent now, if there is one; lanes take turns."""
        for destination, lane in self._lanes.items():
            if not lane.waiting or (lane.under_way and destination.is_ordered):
                continue
            batch = lane.waiting[0]
            if batch.is_full or batch.is_hurried or now_ms >= batch.since_ms + self._linger_ms:
                lane.waiting.popleft()
                lane.under_way += 1
                self._lanes[destination] = self._lanes.pop(destination)
                return batch
        return None

    def next_due_ms(self) -> int | None:
        """Return when a batch will be due by its age alone; None if none waits for that."""
        times = [
            lane.waiting[0].since_ms + self._linger_ms
            for destination, lane in self._lanes.items()
            if lane.waiting and not (destination.is_ordered and lane.under_way)
        ]
        return min(times, default=None)

    def hurry(self) -> None:
        """Make everything that waits due now."""
        for lane in self._lanes.values():
            for batch in lane.waiting:
                batch.is_hurried = True

    def take_out(self, batch: Batch, row: int, why: BaseException) -> bool:
        """Leave a message out of a batch that waits, because of `why`; return False if it is too late."""
        lane = self._lanes.get(batch.destination)
        if lane is None or batch not in lane.waiting or row in batch.outcome.taken_out:
            return False
        batch.outcome.taken_out[row] = why
        size = batch.columns.size_of(row)
        batch.size -= size
        self.buffered_bytes -= size + MESSAGE_OVERHEAD_BYTES
        return True

    def done(self, batch: Batch, failed: Collection[int], error: BaseException | None = None) -> None:
        """Note that a batch is no longer under way, and which of its rows failed.

        What waits behind those in the same order is taken out because of `error`.
        """
        lane = self._lanes[batch.destination]
        lane.under_way -= 1
        self.buffered_bytes -= batch.buffered_bytes
        if failed and error is not None and batch.destination.is_ordered:
            orders = {batch.orders[row] for row in failed}
            for behind in lane.waiting:
                for row, order in enumerate(behind.orders):
                    if order in orders:
                        self.take_out(behind, row, error)
        if not lane.waiting and not lane.under_way:
            del self._lanes[batch.destination]
        if not self._lanes:
            self._keys.clear()

    # --- inside ------------------------------------------------------------------

    def _remember(self, destination: Destination, order: bytes, batch: Batch) -> None:
        """Note which lane holds an ordering key, until this batch has its outcome."""
        self._keys[destination.topic, order] = (destination, batch)
        if len(self._keys) > self._keys_max:
            self._keys = {key: held for key, held in self._keys.items() if not held[1].outcome.is_known}
            self._keys_max = 2 * len(self._keys) + _SPARE_KEYS
