"""What a consumer has fetched ahead, and its positions: values and decisions, no threads, no I/O.

Each queue has two offsets. `fetch` is the next offset to ask the broker for. `position` is the next offset to
hand out; a commit stores it. The buffer has the slices of frames between the two. A seek moves both offsets,
drops the slices and raises the generation of the queue. The answer to a pull of an earlier generation is
dropped.

The buffer is bounded in bytes over all queues: a pull reserves its bytes before it is made. If nothing is
buffered or reserved, one pull is always admitted, so that a message larger than the bound still passes.

Not thread-safe: `rocketq.consuming.pull_consumer` holds the lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from rocketq.consuming.records import Fetched
from rocketq.errors import RocketqError
from rocketq.model import MessageQueue
from rocketq.protocol.frame_slices import FrameSlice


@dataclass(slots=True)
class QueueState:
    """One queue of the consumer."""

    queue: MessageQueue
    position: int
    fetch: int
    #: The queue's last known max offset; there is something to fetch while `fetch` is below it.
    known_max: int
    incarnation: str
    #: The offset may lie outside the queue: one pull is due, whatever `known_max` says.
    probe: bool = False
    generation: int = 0
    slices: deque[FrameSlice] = field(default_factory=deque)
    #: Raised by poll once the slices before it are handed out; a seek clears it.
    error: RocketqError | None = None
    sought: bool = False
    paused_until_ms: int = 0
    corrupt_seen: int = 0


@dataclass(frozen=True, slots=True)
class Fetch:
    """A pull to make: of what, from where, and for which generation of the queue."""

    queue: MessageQueue
    offset: int
    generation: int


class Prefetch:
    """All queues of one consumer."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._reserved = 0
        self._states: dict[MessageQueue, QueueState] = {}
        self._order: deque[MessageQueue] = deque()
        self._fetch_turn: dict[str, int] = {}

    def __contains__(self, queue: MessageQueue) -> bool:
        return queue in self._states

    def state(self, queue: MessageQueue) -> QueueState | None:
        return self._states.get(queue)

    @property
    def buffered_bytes(self) -> int:
        """The bytes of the messages that were fetched and not yet handed out."""
        return self._bytes

    def states(self) -> Iterable[QueueState]:
        return self._states.values()

    def add(self, queue: MessageQueue, offset: int, known_max: int, incarnation: str) -> None:
        """Begin with a queue at `offset`."""
        self._states[queue] = QueueState(queue, offset, offset, known_max, incarnation)
        self._order.append(queue)

    # --- fetching ----------------------------------------------------------------

    def next_fetch(self, broker: str, pull_bytes: int, now_ms: int) -> Fetch | None:
        """Return the next pull from a broker, its bytes reserved; None if there is nothing or no room."""
        taken = self._bytes + self._reserved
        if taken and taken + pull_bytes > self._bytes_max:
            return None
        ready = [s for s in self._states.values() if s.queue.broker == broker and _has_work(s, now_ms)]
        if not ready:
            return None
        turn = self._fetch_turn.get(broker, 0)
        self._fetch_turn[broker] = turn + 1
        state = ready[turn % len(ready)]
        self._reserved += pull_bytes
        return Fetch(state.queue, state.fetch, state.generation)

    def release(self, pull_bytes: int) -> None:
        """Give back what `next_fetch` reserved."""
        self._reserved -= pull_bytes

    def store(self, fetch: Fetch, slices: Sequence[FrameSlice], next_offset: int, known_max: int) -> bool:
        """Store the answer to a pull; return False if it is of an earlier generation."""
        state = self._states[fetch.queue]
        if state.generation != fetch.generation:
            return False
        state.slices.extend(slices)
        self._bytes += sum(piece.batch.nbytes for piece in slices)
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

    def is_caught_up(self, topic: str, broker: str) -> bool:
        """Whether nothing known is left to fetch, so that the caller waits for new messages."""
        return all(
            state.error is not None or not (state.probe or state.fetch < state.known_max)
            for queue, state in self._states.items()
            if queue.topic == topic and queue.broker == broker
        )

    def resume_at(self, fetch: Fetch, offset: int, known_max: int, incarnation: str) -> bool:
        """Continue at `offset` because the wanted one is gone; return False if a seek came first."""
        state = self._states[fetch.queue]
        if state.generation != fetch.generation:
            return False
        state.fetch, state.known_max, state.incarnation = offset, known_max, incarnation
        state.probe = False
        if not state.slices:
            state.position = offset
        return True

    def fail(self, fetch: Fetch, error: RocketqError) -> None:
        """Stop fetching a queue; poll will raise the error."""
        state = self._states[fetch.queue]
        if state.generation == fetch.generation:
            state.error = error

    def fail_topic(self, topic: str, broker: str, error: RocketqError) -> None:
        """Stop fetching all queues of a topic on one broker."""
        for queue, state in self._states.items():
            if queue.topic == topic and queue.broker == broker:
                state.error = state.error or error

    # --- handing out -------------------------------------------------------------

    def error(self) -> RocketqError | None:
        """Return the error of a queue whose slices are all handed out."""
        return next((s.error for s in self._states.values() if s.error and not s.slices), None)

    def has_messages(self) -> bool:
        return any(state.slices for state in self._states.values())

    def take(self, messages_max: int) -> list[Fetched]:
        """Hand out at most `messages_max` messages, a fair share of each queue that has some first."""
        ready = [queue for queue in self._order if self._states[queue].slices]
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

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Hand out next what is at `offset`, forgetting what was fetched ahead."""
        state = self._states[queue]
        self._bytes -= sum(piece.batch.nbytes for piece in state.slices)
        state.slices.clear()
        state.position = state.fetch = offset
        state.probe = True
        state.generation += 1
        state.error, state.sought, state.paused_until_ms = None, True, 0

    def pause(self, queues: Collection[MessageQueue], until_ms: int) -> None:
        """Do not fetch from queues until `until_ms`, because they or their broker cannot be read now."""
        for queue in queues:
            self._states[queue].paused_until_ms = until_ms

    def _take_from(self, state: QueueState, rows: int, taken: list[Fetched]) -> int:
        count = 0
        while state.slices and count < rows:
            piece = state.slices.popleft()
            self._bytes -= piece.batch.nbytes
            left = rows - count
            if piece.rows > left:
                rest = piece.part(left, piece.rows - left)
                piece = piece.part(0, left)
                state.slices.appendleft(rest)
                self._bytes += rest.batch.nbytes
            taken.append((state.queue, piece))
            count += piece.rows
            state.position = piece.next_offset
        if not state.slices:
            # A reset may have moved `fetch`; the position follows when all slices before it are handed out.
            state.position = state.fetch
        return count


def _has_work(state: QueueState, now_ms: int) -> bool:
    wanted = state.probe or state.fetch < state.known_max
    return wanted and state.error is None and now_ms >= state.paused_until_ms
