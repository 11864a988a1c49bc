"""What a consumer has fetched ahead of all its queues, and whose turn it is: values and decisions, no I/O.

`process_queue` is what it holds of one queue. A seek raises the queue's generation, so that the answer
to a pull from before the seek is recognised and dropped.

The buffer is bounded in bytes over all queues: a pull reserves its bytes before it is made. With nothing
buffered or reserved one pull is always admitted, so that a message larger than the bound still passes.
With `FlowLimits` each queue is bounded as well, and what was handed out counts until it is acknowledged.

Not thread-safe: `rocketq.consuming.fetching.fetch_threads` has the lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rocketq.consuming.consumed_message import Delivery, FailHandler
from rocketq.consuming.fetching.process_queue import FlowLimits, ProcessQueue
from rocketq.consuming.records import Fetched
from rocketq.errors import RocketqError
from rocketq.model import MessageQueue
from rocketq.protocol.frame_slices import FrameSlice


@dataclass(frozen=True, slots=True)
class Fetch:
    """A pull to make: of what, from where, how many bytes, and for which generation of the queue."""

    queue: MessageQueue
    offset: int
    generation: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class ConsumerLimits:
    """The limits of one queue (`queue`), and those that all queues share.

    RocketMQ: DefaultLitePullConsumer.pullThresholdForAll is `messages_max`.
    """

    queue: FlowLimits
    messages_max: int


#: The least that a pull asks for, however many queues share the buffer.
PULL_BYTES_MIN: Final = 64 * 1024


class Prefetch:
    """All queues of one consumer."""

    def __init__(self, bytes_max: int, limits: ConsumerLimits | None = None) -> None:
        self._bytes_max, self._limits = bytes_max, limits
        self._reserved = 0
        self._states: dict[MessageQueue, ProcessQueue] = {}
        self._order: deque[MessageQueue] = deque()
        self._fetch_turn: dict[str, int] = {}
        self._generations = 0

    def __contains__(self, queue: MessageQueue) -> bool:
        return queue in self._states

    def state(self, queue: MessageQueue) -> ProcessQueue | None:
        return self._states.get(queue)

    @property
    def buffered_bytes(self) -> int:
        """The bytes of the messages that were fetched and not yet handed out."""
        return sum(state.buffered_bytes for state in self._states.values())

    def states(self) -> Iterable[ProcessQueue]:
        return self._states.values()

    def add(
        self, queue: MessageQueue, offset: int, known_max: int, incarnation: str, epoch: int | None = None
    ) -> None:
        """Begin with a queue at `offset`."""
        self._states[queue] = ProcessQueue(
            queue, offset, offset, known_max, incarnation, self._next_generation(), epoch
        )
        self._order.append(queue)

    def remove(self, queue: MessageQueue) -> None:
        """Forget a queue; what was handed out of it stays usable, and acknowledging it changes nothing."""
        del self._states[queue]
        self._order.remove(queue)

    # --- fetching ----------------------------------------------------------------

    def next_fetch(self, broker: str, pull_bytes: int, now_ms: int) -> Fetch | None:
        """Return the next pull from a broker, its bytes reserved; None if there is nothing or no room."""
        ready = [s for s in self._states.values() if s.queue.broker == broker and s.has_work(now_ms)]
        if ready and self._limits is not None:
            limits, pull_bytes = self._shares(self._limits, pull_bytes)
            ready = [s for s in ready if s.admits(limits, pull_bytes)]
        if not ready:
            return None
        held = self.buffered_bytes if self._limits is None else sum(s.held_bytes for s in self.states())
        taken = held + self._reserved
        if taken and taken + pull_bytes > self._bytes_max:
            return None
        turn = self._fetch_turn.get(broker, 0)
        self._fetch_turn[broker] = turn + 1
        state = ready[turn % len(ready)]
        self._reserved += pull_bytes
        return Fetch(state.queue, state.fetch, state.generation, pull_bytes)

    def is_held_back(self, broker: str, now_ms: int) -> bool:
        """Whether something could be fetched from a broker if there were room for it."""
        return any(s.queue.broker == broker and s.has_work(now_ms) for s in self._states.values())

    def release(self, fetch: Fetch) -> None:
        """Give back what `next_fetch` reserved."""
        self._reserved -= fetch.bytes_max

    def store(self, fetch: Fetch, slices: Sequence[FrameSlice], next_offset: int, known_max: int) -> bool:
        """Store the answer to a pull; return False if it is of an earlier generation."""
        state = self.current(fetch)
        if state is None:
            return False
        state.slices.extend(slices)
        state.fetch, state.known_max = next_offset, known_max
        state.corrupt_seen, state.probe = 0, False
        if not state.slices:
            state.position = next_offset
        return True

    def note_max(self, topic: str, broker: str, maxima: Sequence[int], incarnation: str) -> None:
        """Note how far a topic's queues on one broker reach; the index is the queue id."""
        for queue_id, offset in enumerate(maxima):
            state = self._states.get(MessageQueue(topic, broker, queue_id))
            if state is not None:
                state.known_max = offset
                state.probe |= state.fetch > offset or state.incarnation != incarnation

    def is_caught_up(self, topic: str, broker: str, pull_bytes: int) -> bool:
        """Whether nothing known is left to fetch, so that the caller waits for new messages.

        Of a queue that is paused, released or full nothing is to be fetched now, whatever it has: the news
        of the other queues must not wait for it.
        """
        here = [s for q, s in self._states.items() if q.topic == topic and q.broker == broker]
        behind = [s for s in here if s.is_behind]
        if behind and self._limits is not None:
            limits, pull_bytes = self._shares(self._limits, pull_bytes)
            return not any(s.admits(limits, pull_bytes) for s in behind)
        return bool(here) and not behind

    def has_unfetched(self, topic: str, broker: str) -> bool:
        """Whether a queue has more than was fetched, be it paused or full."""
        states = (s for q, s in self._states.items() if q.topic == topic and q.broker == broker)
        return any(s.fetch < s.known_max and s.error is None for s in states)

    def resume_at(self, fetch: Fetch, offset: int, known_max: int, incarnation: str) -> bool:
        """Continue at `offset` because the wanted one is gone; return False if a seek came first."""
        state = self.current(fetch)
        if state is None:
            return False
        state.fetch, state.known_max, state.incarnation = offset, known_max, incarnation
        state.probe = False
        if not state.slices:
            state.position = offset
        return True

    def fail(self, fetch: Fetch, error: RocketqError) -> None:
        """Stop fetching a queue; poll will raise the error."""
        state = self.current(fetch)
        if state is not None:
            state.error = error

    def fail_topic(self, topic: str, broker: str, error: RocketqError) -> None:
        """Stop fetching all queues of a topic on one broker."""
        for queue, state in self._states.items():
            if queue.topic == topic and queue.broker == broker:
                state.error = state.error or error

    # --- handing out -------------------------------------------------------------

    def error(self) -> RocketqError | None:
        """Return the error of a queue of which nothing more is handed out, unless the user paused it."""
        return next((error for queue, error in self.stopped() if not self._states[queue].is_paused), None)

    def stopped(self) -> Iterator[tuple[MessageQueue, RocketqError]]:
        """Yield the queues of which nothing more is handed out, each with the error that stopped it."""
        for queue, state in self._states.items():
            if state.error is not None and (state.is_stopped or not state.slices):
                yield queue, state.error

    def has_messages(self) -> bool:
        return any(state.slices and not state.is_paused for state in self._states.values())

    def take(self, messages_max: int) -> list[Fetched]:
        """Hand out at most `messages_max` messages, a fair share of each queue that has some first."""
        ready = [queue for queue, s in self._in_turn() if s.slices and not s.is_paused]
        if not ready:
            return []
        taken: list[Fetched] = []
        left = messages_max
        share = max(1, messages_max // len(ready))
        for queue in ready:
            left -= self._take_from(self._states[queue], min(share, left), taken)
        for queue in ready:
            left -= self._take_from(self._states[queue], left, taken)
        self._order.rotate(-1)
        return taken

    def hand_out(
        self,
        rows: int,
        now_ms: int,
        fail: FailHandler,
        *,
        ordered: bool = False,
    ) -> Delivery | None:
        """Hand out at most `rows` messages of the queue whose turn it is; None if no queue has any now.

        A message that failed and is due comes first, alone. With `ordered` a queue of which something is out
        gives nothing more.
        """
        for _ in range(len(self._order)):
            state = self._states[self._order[0]]
            self._order.rotate(-1)
            if not state.may_hand_out(now_ms):
                continue
            if ordered:
                state.settle()
                if state.deliveries:
                    continue
            delivery = state.due_retry(now_ms) or state.hand_out(rows, fail)
            if delivery is not None:
                return delivery
        return None

    def next_due_ms(self, now_ms: int) -> int | None:
        """Return when a message that failed is due next, None if none waits."""
        times = (state.next_due_ms(now_ms) for state in self._states.values() if not state.is_leaving)
        return min((time for time in times if time is not None), default=None)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Hand out next what is at `offset`, forgetting what was fetched ahead."""
        self._states[queue].begin_at(offset, self._next_generation())

    def pause(self, queues: Collection[MessageQueue], until_ms: int) -> None:
        """Do not fetch from queues until `until_ms`, because they or their broker cannot be read now."""
        for queue in queues:
            if queue in self._states:
                self._states[queue].paused_until_ms = until_ms

    def _in_turn(self) -> Iterator[tuple[MessageQueue, ProcessQueue]]:
        return ((queue, self._states[queue]) for queue in self._order)

    def _shares(self, limits: ConsumerLimits, pull_bytes: int) -> tuple[FlowLimits, int]:
        """Return the limits of each queue, and how much of one a pull may ask for."""
        of_queue = limits.queue.shared_by(len(self._states), limits.messages_max, self._bytes_max)
        return of_queue, min(pull_bytes, max(PULL_BYTES_MIN, of_queue.bytes_max // 2))

    def _take_from(self, state: ProcessQueue, rows: int, taken: list[Fetched]) -> int:
        count = 0
        while count < rows:
            part = state.take(rows - count)
            if part is None:
                break
            piece = part[0]
            taken.append((state.queue, piece))
            count += piece.rows
        return count

    def current(self, fetch: Fetch) -> ProcessQueue | None:
        """Return the queue of a pull, None if it is another generation's or gone."""
        state = self._states.get(fetch.queue)
        return state if state is not None and state.generation == fetch.generation else None

    def _next_generation(self) -> int:
        # Counted over all queues: one that is lost and comes back has a new generation.
        self._generations += 1
        return self._generations
