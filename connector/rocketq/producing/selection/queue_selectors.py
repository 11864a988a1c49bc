"""Which queue a message goes to.

A selector chooses among the write queues of a route, which are ordered by
(broker, queue id), in two ways: `select` for one message, `partition` for a
whole record batch at once, with numpy and Arrow's `take`, never message by message. Both
must agree: a key's queue does not depend on how its message was sent.

    RoundRobin   the next queue; not on the broker that just failed while there
                 is another; available brokers first, then reachable, then any
    ByHash       the queue of the ordering key's hash: one key, one queue, one order
    Random       any queue
    Explicit     the given queue

`ordered` selectors promise a place, so a failed send is not moved to
another queue while its broker is in the route. Your own selector is any object with `ordered`,
`select` and `partition`.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rocketq.errors import InvalidConfiguration, QueueNotFound
from rocketq.model import MessageQueue
from rocketq.producing.selection.fault_avoidance import FaultTolerance
from rocketq.protocol.column_values import numbers
from rocketq.protocol.hashing import NULL_HASH, hash_value, queue_of
from rocketq.protocol.message_schema import TEXT_COLUMNS
from rocketq.protocol.sizes import BATCH_MESSAGES_MAX

#: A slice this small is not cut further to reach more queues.
SPREAD_MESSAGES_MIN: Final = 64
#: What a message takes besides its texts: their offsets, its validity, when it was made.
ROW_BYTES: Final = 25


Hashes: TypeAlias = npt.NDArray[np.uint64]
Rows: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Selection:
    """What a choice of a queue, or of the queues of a batch, may depend on."""

    #: Of a single message.
    ordering_key: bytes | None = None
    #: Of a batch: the hash of each ordering key, `NULL_HASH` if a message has none. None: no ordering keys.
    hashes: Hashes | None = None
    #: Brokers that just failed.
    failed: frozenset[str] = frozenset()
    now_ms: int = 0
    #: The size that a slice of a batch should have.
    slice_bytes: int = 1024 * 1024
    #: How many batches are sent together.
    batches: int = 1
    #: Whether these batches alone are to reach all queues. Those of a full request need not: the next request
    #: goes on with the next queue, and whole batches become fewer and larger frames.
    reaches_all: bool = True


@dataclass(frozen=True)
class QueueSlice:
    """Messages of one queue, in their order; `first_row` is where the first was in the batch given.

    `rows` is where each was, if they did not follow each other there. `hashes` is the hash of each one's
    ordering key, if the call gave ordering keys.
    """

    queue: MessageQueue
    batch: pa.RecordBatch
    first_row: int
    rows: Rows | None = None
    hashes: Hashes | None = None

    def row_numbers(self) -> Rows:
        """Return where each message was in the batch given."""
        if self.rows is not None:
            return self.rows
        return np.arange(self.first_row, self.first_row + self.batch.num_rows)

    def moved_by(self, rows: int) -> QueueSlice:
        """Return the slice with its place counted from `rows` rows earlier."""
        if not rows:
            return self
        places = None if self.rows is None else rows + self.rows
        return replace(self, first_row=rows + self.first_row, rows=places)

    @cached_property
    def nbytes(self) -> int:
        """About how many bytes the messages take in a request."""
        return batch_bytes(self.batch)


class QueueSelector(Protocol):
    """How queues are chosen. `queues` is never empty."""

    @property
    def ordered(self) -> bool:
        """Whether a message belongs to its queue and to no other."""
        ...

    def select(self, queues: Sequence[MessageQueue], selection: Selection) -> MessageQueue:
        """Choose the queue of one message."""
        ...

    def partition(
        self, queues: Sequence[MessageQueue], batch: pa.RecordBatch, selection: Selection
    ) -> list[QueueSlice]:
        """Share a batch among queues: each message exactly once, in order within each queue."""
        ...


class RoundRobin:
    """One queue after the other, from a random start, around brokers in trouble."""

    ordered = False

    def __init__(self, fault: FaultTolerance | None = None, rng: random.Random | None = None) -> None:
        self._fault = fault
        self._turns = itertools.count((rng or random.Random()).randrange(1 << 30))

    def select(self, queues: Sequence[MessageQueue], selection: Selection) -> MessageQueue:
        usable = self._usable(queues, selection)
        return usable[next(self._turns) % len(usable)]

    def partition(
        self, queues: Sequence[MessageQueue], batch: pa.RecordBatch, selection: Selection
    ) -> list[QueueSlice]:
        usable = self._usable(queues, selection)
        spread = 1
        if selection.reaches_all:
            spread = min(-(-len(usable) // selection.batches), -(-batch.num_rows // SPREAD_MESSAGES_MIN))
        return [
            QueueSlice(usable[next(self._turns) % len(usable)], batch.slice(begin, end - begin), begin)
            for begin, end in cut(batch, selection.slice_bytes, spread)
        ]

    def _usable(self, queues: Sequence[MessageQueue], selection: Selection) -> Sequence[MessageQueue]:
        if not selection.failed and (self._fault is None or self._fault.is_untroubled):
            return queues
        brokers = list(dict.fromkeys(q.broker for q in queues))
        wanted = [b for b in brokers if b not in selection.failed] or brokers
        if self._fault is not None:
            wanted = self._fault.preferred(wanted, selection.now_ms)
        if len(wanted) == len(brokers):
            return queues
        chosen = set(wanted)
        return [q for q in queues if q.broker in chosen]


class Random:
    """Any queue, each as likely as the other."""

    ordered = False

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()

    def select(self, queues: Sequence[MessageQueue], selection: Selection) -> MessageQueue:
        usable = [q for q in queues if q.broker not in selection.failed] or queues
        return self._rng.choice(usable)

    def partition(
        self, queues: Sequence[MessageQueue], batch: pa.RecordBatch, selection: Selection
    ) -> list[QueueSlice]:
        usable = [q for q in queues if q.broker not in selection.failed] or list(queues)
        draw = np.random.default_rng(self._rng.randrange(1 << 63))
        return divided(batch, draw.integers(0, len(usable), batch.num_rows), usable, selection.slice_bytes)


class ByHash:
    """The queue of the ordering key: `hash(key) % len(queues)`, the hash of `rocketq.protocol.hashing`.

    A message without an ordering key belongs to no order; such messages are shared out in turn.
    """

    ordered = True

    def __init__(self) -> None:
        self._keyless = itertools.count(random.randrange(1 << 30))

    def select(self, queues: Sequence[MessageQueue], selection: Selection) -> MessageQueue:
        if selection.ordering_key is None:
            return queues[next(self._keyless) % len(queues)]
        return queues[hash_value(selection.ordering_key) % len(queues)]

    def partition(
        self, queues: Sequence[MessageQueue], batch: pa.RecordBatch, selection: Selection
    ) -> list[QueueSlice]:
        hashes = selection.hashes
        if hashes is None:
            raise no_ordering_key("hash", "it chooses the queue by the hash of an ordering key")
        chosen = queue_of(hashes, len(queues))
        keyless = np.flatnonzero(hashes == NULL_HASH)
        if keyless.size:
            chosen[keyless] = (np.arange(keyless.size) + next(self._keyless)) % len(queues)
        return divided(batch, chosen, queues, selection.slice_bytes, hashes)


class Explicit:
    """Always the given queue. Raises QueueNotFound where the route does not have it."""

    ordered = True

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue

    def select(self, queues: Sequence[MessageQueue], selection: Selection) -> MessageQueue:
        if self.queue not in queues:
            counts = Counter(q.broker for q in queues)
            known = ", ".join(f"{broker} 0 to {count - 1}" for broker, count in sorted(counts.items()))
            wanted = self.queue
            raise QueueNotFound(wanted.topic, wanted.queue, counts[wanted.broker], wanted.broker, known)
        return self.queue

    def partition(
        self, queues: Sequence[MessageQueue], batch: pa.RecordBatch, selection: Selection
    ) -> list[QueueSlice]:
        queue = self.select(queues, selection)
        return [
            QueueSlice(queue, batch.slice(begin, end - begin), begin)
            for begin, end in cut(batch, selection.slice_bytes)
        ]


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to choose queues that has a name."""

    make: Callable[[FaultTolerance | None], QueueSelector]
    #: Whether the messages need ordering keys: in Python `ordering_key`, in Spark the column `key`.
    needs_key: bool


#: Every strategy by its name. `Producer`, `rocketq produce --selection` and Spark's option `queueSelection`
#: take their names from here (Spark writes them in camel case); docs/client.md and docs/spark.md list them.
STRATEGIES: Final[Mapping[str, Strategy]] = {
    "round_robin": Strategy(RoundRobin, needs_key=False),
    "hash": Strategy(lambda _: ByHash(), needs_key=True),
    "random": Strategy(lambda _: Random(), needs_key=False),
}
#: What chooses when nothing is said, and what chooses when only ordering keys are given.
DEFAULT_STRATEGY: Final = "round_robin"
DEFAULT_KEYED_STRATEGY: Final = "hash"


def strategy(name: str) -> Strategy:
    """Return the strategy of a name. Raises InvalidConfiguration."""
    found = STRATEGIES.get(name)
    if found is None:
        names = ", ".join(STRATEGIES)
        raise InvalidConfiguration(
            "selection", name, "there is no such strategy", hint=f"Use one of {names}."
        )
    return found


def is_contiguous(selector: QueueSelector) -> bool:
    """Whether the selector cuts a batch into runs of rows without a copy, and gathers no single rows."""
    return isinstance(selector, RoundRobin | Explicit)


def resolved_queue(topic: str, queue: MessageQueue | int, queues: Sequence[MessageQueue]) -> MessageQueue:
    """Return the queue that a caller named; a number alone must be unambiguous among `queues`.

    Raises InvalidConfiguration.
    """
    if isinstance(queue, MessageQueue):
        if queue.topic != topic:
            raise InvalidConfiguration("queue", str(queue), f"it is not a queue of topic {topic!r}")
        return queue
    matching = [q for q in queues if q.queue == queue]
    if len(matching) > 1:
        raise InvalidConfiguration(
            "queue",
            queue,
            f"{len(matching)} brokers have a queue of this number",
            hint="Give a MessageQueue, for example one of client.route(topic).write_queues().",
        )
    return matching[0] if matching else MessageQueue(topic, queues[0].broker, queue)


def no_ordering_key(name: str, why: str) -> InvalidConfiguration:
    """Return the error for a strategy that needs ordering keys and got none."""
    return InvalidConfiguration(
        "selection",
        name,
        why,
        hint='Give ordering_key in its place: ordering_key="key" orders by the column key.',
    )


# --- cutting batches ---------------------------------------------------------------


def divided(
    batch: pa.RecordBatch,
    chosen: npt.NDArray[np.int64],
    queues: Sequence[MessageQueue],
    slice_bytes: int,
    hashes: Hashes | None = None,
) -> list[QueueSlice]:
    """Gather each queue's rows: row i goes to `queues[chosen[i]]`, and rows of a queue keep their order.

    `hashes`, one for each row, go with their rows.
    """
    # A stable sort of small integers is a radix sort.
    narrow = chosen.astype(np.uint16) if len(queues) <= 1 << 16 else chosen
    order = np.argsort(narrow, kind="stable")
    counts = np.bincount(chosen, minlength=len(queues))
    gathered = batch if _is_sorted(order) else batch.take(numbers(order))
    slices = []
    begin = 0
    for index in np.flatnonzero(counts).tolist():
        part = gathered.slice(begin, counts[index])
        for low, high in cut(part, slice_bytes):
            rows = order[begin + low : begin + high]
            slices.append(
                QueueSlice(
                    queues[index],
                    part.slice(low, high - low),
                    int(rows[0]),
                    rows,
                    None if hashes is None else hashes[rows],
                )
            )
        begin += int(counts[index])
    return slices


def _is_sorted(order: npt.NDArray[np.int64]) -> bool:
    return bool((order[1:] > order[:-1]).all())


def cut(batch: pa.RecordBatch, slice_bytes: int, parts_min: int = 1) -> list[tuple[int, int]]:
    """Return row ranges that cover the batch, in order, of about `slice_bytes` each.

    There are about `parts_min` of them or more; none has more messages than one batch may hold, and none is
    larger than one and a half `slice_bytes` by more than a message. A batch that is a little larger than
    `slice_bytes` stays whole, because two halves would be frames that are too small.
    """
    rows = batch.num_rows
    if rows == 0:
        return []
    total = batch_bytes(batch)
    parts = max((total + slice_bytes // 2) // slice_bytes, parts_min, -(-rows // BATCH_MESSAGES_MAX))
    if parts <= 1:
        return [(0, rows)]
    ends = row_ends(batch)
    marks = np.arange(1, parts, dtype=np.float64) * (total / parts)
    edges = np.unique(np.concatenate([[0], np.searchsorted(ends, marks, side="right"), [rows]]))
    return [
        (begin, min(begin + BATCH_MESSAGES_MAX, int(high)))
        for low, high in itertools.pairwise(edges)
        for begin in range(int(low), int(high), BATCH_MESSAGES_MAX)
    ]


def row_ends(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return for each message of schema message/1 about how many bytes it and all before it take."""
    rows = batch.num_rows
    ends = np.arange(1, rows + 1, dtype=np.int64) * _fixed_bytes(batch)
    for offsets in _text_offsets(batch):
        ends += offsets[1:]
        ends -= offsets[0]
    return ends


def batch_bytes(batch: pa.RecordBatch) -> int:
    """Return about how many bytes a batch of schema message/1 takes: what `row_ends` ends with."""
    texts = sum(int(offsets[-1]) - int(offsets[0]) for offsets in _text_offsets(batch))
    return int(batch.num_rows) * _fixed_bytes(batch) + texts


def _fixed_bytes(batch: pa.RecordBatch) -> int:
    """Return what each message takes beside its texts; properties count evenly."""
    rows = batch.num_rows
    properties = batch.column("properties")
    shared = 0 if properties.null_count == rows else properties.nbytes // max(rows, 1)
    return ROW_BYTES + int(shared)


def _text_offsets(batch: pa.RecordBatch) -> Iterator[npt.NDArray[np.int32]]:
    """Yield for each column of texts that has any where each begins, and the end of the last."""
    rows = batch.num_rows
    for name in TEXT_COLUMNS:
        column = batch.column(name)
        if column.null_count < rows:
            yield np.frombuffer(column.buffers()[1], np.int32, rows + 1, 4 * column.offset)
