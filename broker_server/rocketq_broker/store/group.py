"""One group commit, planned before a byte is written.

The writer hands every operation that is waiting to a `GroupPlan`. The plan
decides each against the state that the ones before it leave behind, gives
messages their offsets and frames their places in the log, and says what to
answer. It touches no file: if the write then fails, nothing has happened.

Small batches for one queue become one frame, so that many small senders do not
make a log of small frames. Order within a queue is the order of arrival; across
queues it is free, except around a change of state, which is a barrier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rocketq.errors import QueueNotFound, RocketqError, TopicNotFound
from rocketq.protocol.frame import FrameKind, encode, frame_size
from rocketq.protocol.hashing import hash_column
from rocketq.protocol.ipc import BATCH_MESSAGES_MAX, encapsulate
from rocketq.protocol.model import Appended, SendStatus
from rocketq_broker.store import state as states
from rocketq_broker.store.commit_log import Extent, LogCursor
from rocketq_broker.store.queues import QueueKey, Queues
from rocketq_broker.store.state import Change, Picture, State

#: A merged frame grows no larger than this.
MERGED_BYTES_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class QueueBatch:
    """A batch addressed to a queue: its bytes as sent, and its opened columns."""

    queue: int
    encapsulated: pa.Buffer
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class AppendOutcome:
    """Where each batch of an append went, in order."""

    status: SendStatus
    appended: tuple[Appended, ...]


@dataclass(frozen=True, slots=True, eq=False)
class AppendBatches:
    """An operation: append batches to queues of one topic, all or none."""

    topic: str
    batches: Sequence[QueueBatch]
    size: int
    submitted_ms: int
    done: Callable[[AppendOutcome | RocketqError], None]


@dataclass(frozen=True, slots=True)
class ChangeState:
    """An operation: decide a change (None: nothing to do), then answer from the state it made."""

    decide: Callable[[State], Change | None]
    answer: Callable[[State], Any]
    done: Callable[[Any], None]
    size: int = 0


Operation = AppendBatches | ChangeState


@dataclass(frozen=True, slots=True)
class FrameUnits:
    """A frame of messages that went to a queue, and what its units need."""

    key: QueueKey
    topic: str
    first: int
    log_offset: int
    size: int
    tag_hashes: npt.NDArray[np.uint64]


@dataclass(slots=True)
class Receipt:
    """Collects where the batches of one append went, to answer it once."""

    operation: AppendBatches
    appended: list[Appended | None]

    def answer(self, status: SendStatus) -> None:
        places = tuple(each for each in self.appended if each is not None)
        self.operation.done(AppendOutcome(status, places))


@dataclass(slots=True)
class _Waiting:
    """A batch that has its queue but not yet its frame."""

    receipt: Receipt
    index: int
    batch: QueueBatch


@dataclass(slots=True)
class GroupPlan:
    """What one group commit will write, and what it will answer once written."""

    broker: str
    state: State
    queues: Queues
    cursor: LogCursor
    stored_at_us: int
    durable_end: int
    merge_bytes: int
    extents: list[Extent] = field(default_factory=list)
    frames: list[FrameUnits] = field(default_factory=list)
    #: Appends to answer once they are safe, and everything else with its answer or refusal.
    receipts: list[Receipt] = field(default_factory=list)
    answers: list[tuple[Callable[[Any], None], Any]] = field(default_factory=list)
    #: Numbers of topics that were deleted; their queues go once this is written.
    deleted: list[int] = field(default_factory=list)
    topics_changed: bool = False
    ends: dict[QueueKey, int] = field(default_factory=dict)
    _waiting: dict[tuple[QueueKey, str], list[_Waiting]] = field(default_factory=dict)

    def add(self, operation: Operation) -> None:
        """Plan one operation; a refused one is answered with its error."""
        try:
            if isinstance(operation, AppendBatches):
                self._add_append(operation)
            else:
                self.place_waiting()
                self._add_change(operation)
        except RocketqError as error:
            self.answers.append((operation.done, error))

    def _add_append(self, operation: AppendBatches) -> None:
        entry = self.state.topics.get(operation.topic)
        if entry is None:
            raise TopicNotFound(operation.topic, self.broker)
        for each in operation.batches:
            if not 0 <= each.queue < entry.config.write_queues:
                raise QueueNotFound(operation.topic, each.queue, entry.config.write_queues)
        receipt = Receipt(operation, [None] * len(operation.batches))
        for index, each in enumerate(operation.batches):
            key = ((entry.number, each.queue), operation.topic)
            self._waiting.setdefault(key, []).append(_Waiting(receipt, index, each))
        self.receipts.append(receipt)

    def _add_change(self, operation: ChangeState) -> None:
        change = operation.decide(self.state)
        if change is not None:
            if isinstance(change, states.TopicDeleted):
                self.deleted.append(self.state.topics[change.name].number)
            # A state frame that this change may be placed behind is still without it.
            self._place(FrameKind.CHANGE, b"", states.encode(change))
            self.topics_changed |= not isinstance(change, states.OffsetsCommitted)
            self.state = self.state.apply(change)
        self.answers.append((operation.done, operation.answer(self.state)))

    def place_waiting(self) -> None:
        """Give every batch that waits its frame; call it once more after the last operation."""
        waiting, self._waiting = self._waiting, {}
        for (key, topic), entries in waiting.items():
            run: list[_Waiting] = []
            run_bytes = run_messages = 0
            for each in entries:
                # Merged, a batch takes its inflated size: by its compressed one, a few could make
                # a frame that no reader takes in.
                inflated = each.batch.batch.get_total_buffer_size()
                size, messages = max(len(each.batch.encapsulated), inflated), each.batch.batch.num_rows
                full = run_bytes + size > MERGED_BYTES_MAX or run_messages + messages > BATCH_MESSAGES_MAX
                if run and (size > self.merge_bytes or full):
                    self._place_messages(key, topic, run)
                    run, run_bytes, run_messages = [], 0, 0
                run.append(each)
                run_bytes, run_messages = run_bytes + size, run_messages + messages
                if size > self.merge_bytes:
                    self._place_messages(key, topic, run)
                    run, run_bytes, run_messages = [], 0, 0
            if run:
                self._place_messages(key, topic, run)

    def _place_messages(self, key: QueueKey, topic: str, run: list[_Waiting]) -> None:
        if len(run) == 1:
            body, batch = run[0].batch.encapsulated, run[0].batch.batch
        else:
            batch = pa.concat_batches([each.batch.batch for each in run])
            body = encapsulate(batch)
        first = self.ends.get(key)
        if first is None:
            first = self.queues.range(key).end
        log_offset, size = self._place(
            FrameKind.MESSAGES, topic.encode(), body, queue=key[1], queue_offset=first, count=batch.num_rows,
            has_keys=_may_have_keys(batch),
        )  # fmt: skip
        tag_hashes = hash_column(batch.column("tag"))
        self.frames.append(FrameUnits(key, topic, first, log_offset, size, tag_hashes))
        for each in run:
            count = each.batch.batch.num_rows
            each.receipt.appended[each.index] = Appended(key[1], first, count)
            first += count
        self.ends[key] = first

    def _place(
        self, kind: FrameKind, topic: bytes, body: bytes | pa.Buffer, queue: int = 0, queue_offset: int = 0,
        count: int = 0, has_keys: bool = False,
    ) -> tuple[int, int]:  # fmt: skip
        """Add one frame to the plan, behind a state frame if it begins a segment; return place and size."""
        size = frame_size(topic, len(body))
        if kind != FrameKind.STATE:
            if self.cursor.is_full_for(size):
                self.cursor.roll()
            if self.cursor.is_at_head:
                picture = Picture.of(self.state, self.queues.ranges(self.state, self.ends), self.stored_at_us)
                self._place(FrameKind.STATE, b"", states.encode(picture))
        at = self.cursor.place(size)
        parts = encode(
            kind=kind, topic=topic, body=body, queue=queue, queue_offset=queue_offset, count=count,
            log_offset=at, stored_at_us=self.stored_at_us, durable_end=self.durable_end, has_keys=has_keys,
        )  # fmt: skip
        self._extend(at, size, parts)
        return at, size

    def _extend(self, at: int, size: int, parts: list[bytes | pa.Buffer]) -> None:
        if not self.extents or self.extents[-1].segment != self.cursor.start:
            self.extents.append(Extent(self.cursor.start, at))
        self.extents[-1].add(size, parts)


def _may_have_keys(batch: pa.RecordBatch) -> bool:
    """Whether the index must look into the batch: further keys are in the properties."""
    rows = batch.num_rows
    return bool(batch.column("key").null_count < rows or batch.column("properties").null_count < rows)
