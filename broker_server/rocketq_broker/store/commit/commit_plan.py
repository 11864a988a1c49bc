"""One commit (group commit), planned before a byte is written.

The writer hands every operation that is waiting to a `CommitPlan`. The plan
decides each against the state that the ones before it leave behind, gives
messages their offsets and frames their places in the log, and says what to
answer. It touches no file: if the write then fails, nothing has happened.

Small batches for one queue become one frame, so that many small senders do not
make a log of small frames. Order within a queue is the order of arrival; across
queues it is free, except around a change of state, which is a barrier.

Delayed messages (`timer_table`) become DELAYED frames, in the same way; they get no queue offset yet. What of
them is due is delivered by a change and frames of messages, which are one append.

Batches that are held (`machine`) get a frame each and at once, and no queue offset; the copies of held
frames that are due get theirs behind everything else of the commit.

A numbered append that was stored before is answered with its first places. The numbers of the others follow
their frames as one change, in the same append (`slot_table`).

What one append holds may need several frames. Each of them but the last is marked *unfinished*, so that
recovery keeps all of them or none. A frame may hold batches of several appends; then all
frames of all these appends are kept or dropped together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rocketq.errors import QueueNotFound, RocketqError, TopicNotFound
from rocketq.model import NO_OFFSET, Appended
from rocketq.protocol.documents.sinks import Staged
from rocketq.protocol.frame import FrameKind, encode, frame_size
from rocketq.protocol.hashing import hash_column
from rocketq.protocol.rules.delivery_time import NO_TIME, Times, stored_times
from rocketq.protocol.sizes import BATCH_MESSAGES_MAX
from rocketq_broker.epoch_lineage import EpochLineage
from rocketq_broker.store.commit.delayed_batches import merge_delayed
from rocketq_broker.store.commit.held_copies import HeldCopy, LostFrame
from rocketq_broker.store.commit.repeated_sends import is_repetition
from rocketq_broker.store.commit.small_batches import (
    Addressed,
    DelayedBatch,
    DelayedMessage,
    Merged,
    QueueBatch,
    QueueMessage,
    may_have_keys,
    merge,
    merged_batch,
)
from rocketq_broker.store.commit.waiting_operations import (
    AppendBatches,
    ChangeState,
    Hold,
    Operation,
    Receipt,
)
from rocketq_broker.store.log.commit_log import Extent, LogCursor
from rocketq_broker.store.log.consume_queue import OpenBlock
from rocketq_broker.store.log.consume_queues import QueueKey, Queues
from rocketq_broker.store.machines.machine import CopySkipped, HeldFrame
from rocketq_broker.store.machines.slot_table import NumberedSend, SendsNumbered
from rocketq_broker.store.machines.timer_table import TimerPlace
from rocketq_broker.store.machines.topic_table import TopicEntry
from rocketq_broker.store.state import state as states
from rocketq_broker.store.state.state import Change, Picture, State
from rocketq_broker.store.timers.due_frames import Delivery
from rocketq_broker.store.timers.entries import Entries, frame_entries, messages_by_window
from rocketq_broker.store.timers.window_files import WindowMarks

#: A merged frame grows no larger than this.
MERGED_BYTES_MAX: Final = 1 << 20


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
class _Waiting:
    """A batch that has its queue but not yet its frame."""

    receipt: Receipt
    index: int
    batch: Addressed


@dataclass(slots=True)
class CommitPlan:
    """What one commit will write, and what it will answer once it is confirmed."""

    broker: str
    state: State
    queues: Queues
    cursor: LogCursor
    stored_at_us: int
    durable_end: int
    epoch: int
    merge_bytes: int
    #: Which epochs wrote the log, this commit included.
    lineage: EpochLineage = field(default_factory=EpochLineage)
    extents: list[Extent] = field(default_factory=list)
    frames: list[FrameUnits] = field(default_factory=list)
    #: The entries of this commit's DELAYED frames for the timer index, and its marks once they are written.
    delayed: list[Entries] = field(default_factory=list)
    timer_marks: WindowMarks = field(default_factory=dict)
    #: How many messages this commit puts into the timer, and how many it delivers.
    scheduled: int = 0
    delivered: int = 0
    #: Appends to answer once they are safe, and everything else with its answer or refusal.
    receipts: list[Receipt] = field(default_factory=list)
    answers: list[tuple[Callable[[Any], None], Any]] = field(default_factory=list)
    #: Numbers of topics that were deleted; their queues go once this is written.
    deleted: list[int] = field(default_factory=list)
    #: Operations that are answered when held frames have been copied, by this commit or a later one.
    awaiting: list[ChangeState] = field(default_factory=list)
    ends: dict[QueueKey, int] = field(default_factory=dict)
    #: Each queue's open block behind this commit's units, once they are written.
    open_blocks: dict[QueueKey, OpenBlock] = field(default_factory=dict)
    #: How many numbered appends were stored before, and are only answered.
    repeated: int = 0
    #: Of each slot, its last numbered append that waits.
    _numbered: dict[int, Receipt] = field(default_factory=dict)
    #: By queue, topic, and whether they are delayed.
    _waiting: dict[tuple[QueueKey, str, bool], list[_Waiting]] = field(default_factory=dict)
    #: Whether an append that waits has several batches, which may come to lie in several frames.
    _may_span: bool = False
    #: Whether the append of the frame that was placed last goes on in the next one.
    _unfinished: bool = False

    def add(self, operation: Operation) -> None:
        """Plan one operation; a refused one is answered with its error."""
        try:
            match operation:
                case AppendBatches(hold=Hold() as hold):
                    self._add_held(operation, hold)
                case AppendBatches():
                    self._add_append(operation)
                case ChangeState():
                    self.place_waiting()
                    self._add_change(operation)
        except RocketqError as error:
            self.answers.append((operation.done, error))

    def _target(self, operation: AppendBatches) -> TopicEntry:
        """Return the topic that an append goes to; raise TopicNotFound or QueueNotFound."""
        entry = self.state.topics.get(operation.topic)
        if entry is None:
            raise TopicNotFound(operation.topic, self.broker)
        for each in operation.batches:
            if not 0 <= each.queue < entry.config.write_queues:
                raise QueueNotFound(operation.topic, each.queue, entry.config.write_queues)
        return entry

    def _add_append(self, operation: AppendBatches) -> None:
        if operation.number is not None and (known := self._stored_before(operation)) is not None:
            self.receipts.append(known)
            self.repeated += 1
            return
        entry = self._target(operation)
        operation.check(self.state)
        if operation.decide is not None:
            self.place_waiting()
            change = operation.decide(self.state, self.stored_at_us // 1000)
            if change is None:
                self.receipts.append(Receipt(operation, []))
                return
            self._place_change(change, unfinished=bool(operation.batches))
        receipt = Receipt(operation, [None] * len(operation.batches), pieces=operation.pieces)
        if operation.number is not None:
            self._numbered[operation.number.slot] = receipt
        for index, each in enumerate(operation.batches):
            is_delayed = isinstance(each, DelayedBatch | DelayedMessage)
            key = ((entry.number, each.queue), operation.topic, is_delayed)
            self._waiting.setdefault(key, []).append(_Waiting(receipt, index, each))
        self._may_span |= len(operation.batches) > 1
        self.receipts.append(receipt)
        if operation.decide is not None:
            # The frames follow the change at once: together they are one append.
            self.place_waiting()

    def _stored_before(self, operation: AppendBatches) -> Receipt | None:
        """Return the receipt of an append that is stored under this number; None if it is a new one.

        Raises SendOutdated, SendNumberReused.
        """
        number = operation.number
        assert number is not None
        waiting = self._numbered.get(number.slot)
        if waiting is not None and (first := waiting.operation).number is not None:
            if not is_repetition(number, operation.messages, first.number.sequence, first.messages):
                return None
            # Both have the places that the first one gets.
            return Receipt(operation, waiting.appended, timers=waiting.timers, pieces=waiting.pieces)
        known = self.state.slots.find(number.slot)
        if known is None or not is_repetition(number, operation.messages, known.sequence, known.messages):
            return None
        timers = {at: place for at, place in enumerate(known.timers) if place is not None}
        return Receipt(operation, list(known.appended), timers=timers, pieces=known.pieces)

    def _add_held(self, operation: AppendBatches, hold: Hold) -> None:
        entry = self._target(operation)
        at_ms = self.stored_at_us // 1000
        opened = hold.open(self.state, at_ms)
        receipt = Receipt(operation, [])
        if hold.holds(self.state):
            self.receipts.append(receipt)
            return
        if opened is not None:
            self._place_change(opened, unfinished=True)
        number = hold.number(self.state)
        last = len(operation.batches) - 1
        for index, each in enumerate(operation.batches):
            assert isinstance(each, QueueBatch | QueueMessage)
            count = each.rows
            at, size = self._place(
                hold.kind, operation.topic.encode(), each.encapsulated, queue=each.queue,
                queue_offset=number, count=count, unfinished=index < last,
            )  # fmt: skip
            frame = HeldFrame(at, size, count, each.queue, entry.number)
            self.state = self.state.held(hold.kind, number, frame, at_ms)
            receipt.staged.append(Staged(each.queue, at, count))
        self.receipts.append(receipt)

    def place_copies(self, copies: Sequence[HeldCopy | LostFrame]) -> None:
        """Place copies of held frames that are due, in their order; call it last."""
        at_ms = self.stored_at_us // 1000
        for each in copies:
            if next(self.state.due(at_ms), None) != each.frame:
                # The frame was dropped by a change in this commit (its topic or sink was deleted).
                continue
            if isinstance(each, LostFrame):
                self._place_change(CopySkipped(each.frame.log_offset, each.why))
            else:
                self._place_copy(each)
                self.state = self.state.copied(at_ms)

    def _place_copy(self, copy: HeldCopy) -> None:
        key = (copy.frame.topic_number, copy.frame.queue)
        times = stored_times(copy.batch)
        if (times != NO_TIME).any():
            # What was staged is delayed: the timer holds the copy until its messages are due.
            self._place_timed(key, copy.topic, copy.body, times, published=True)
            return
        first = self._next_offset(key)
        log_offset, size = self._place(
            FrameKind.MESSAGES, copy.topic.encode(), copy.body, queue=key[1], queue_offset=first,
            count=copy.frame.messages, has_keys=may_have_keys(copy.batch), published=True,
        )  # fmt: skip
        tag_hashes = hash_column(copy.batch.column("tag"))
        self.frames.append(FrameUnits(key, copy.topic, first, log_offset, size, tag_hashes))
        self.ends[key] = first + copy.frame.messages

    def place_delivery(self, delivery: Delivery) -> None:
        """Place delayed messages that are due, with the change that says so; call it last."""
        last = len(delivery.batches) - 1
        self._place_change(delivery.change, unfinished=last >= 0)
        for number, each in enumerate(delivery.batches):
            self._place_batch(each.key, each.topic, merged_batch(each.batch), unfinished=number < last)
            self.delivered += each.batch.num_rows

    def _next_offset(self, key: QueueKey) -> int:
        planned = self.ends.get(key)
        return self.queues.written_end(key) if planned is None else planned

    def _place_change(self, change: Change, unfinished: bool = False) -> None:
        # A state frame that this change may be placed behind is still without it.
        self._place(FrameKind.CHANGE, b"", states.encode(change), unfinished=unfinished)
        before, self.state = self.state, self.state.apply(change)
        self.deleted += before.dropped(self.state)

    def _add_change(self, operation: ChangeState) -> None:
        change = operation.decide(self.state)
        if change is not None:
            self._place_change(change)
        if operation.awaits is not None:
            self.awaiting.append(operation)
        else:
            self.answers.append((operation.done, operation.answer(self.state)))

    def place_waiting(self) -> None:
        """Give every batch that waits its frame; call it once more after the last operation."""
        waiting, self._waiting = self._waiting, {}
        may_span, self._may_span = self._may_span, False
        runs = [(where, run) for where, entries in waiting.items() for run in self._runs(entries)]
        numbered, self._numbered = self._numbered, {}
        if numbered:
            # All these frames are one append, which the numbers end.
            unfinished = [True] * len(runs)
        else:
            unfinished = _unfinished([run for _, run in runs]) if may_span else [False] * len(runs)
        for ((key, topic, is_delayed), run), goes_on in zip(runs, unfinished, strict=True):
            place = self._place_delayed if is_delayed else self._place_messages
            place(key, topic, run, goes_on)
        if numbered:
            self._place_numbers(numbered)

    def _place_numbers(self, numbered: dict[int, Receipt]) -> None:
        sends = tuple(
            NumberedSend(slot, each.operation.number.sequence, places, each.pieces, timers)
            for slot, each in numbered.items()
            if each.operation.number is not None
            for places, timers in [each.places()]
        )
        change = SendsNumbered(self.stored_at_us // 1000, sends)
        self._place(FrameKind.CHANGE, b"", states.encode(change))
        self.state = self.state.numbered(change)

    def _runs(self, entries: list[_Waiting]) -> list[list[_Waiting]]:
        """Cut what waits for one queue into the runs that become a frame each."""
        runs: list[list[_Waiting]] = []
        run_bytes = run_messages = 0
        is_open = False
        for each in entries:
            size, messages = each.batch.merged_bytes, each.batch.rows
            run_bytes, run_messages = run_bytes + size, run_messages + messages
            full = run_bytes > MERGED_BYTES_MAX or run_messages > BATCH_MESSAGES_MAX
            if is_open and not full and size <= self.merge_bytes:
                runs[-1].append(each)
            else:
                runs.append([each])
                run_bytes, run_messages = size, messages
                is_open = size <= self.merge_bytes
        return runs

    def _place_messages(self, key: QueueKey, topic: str, run: list[_Waiting], unfinished: bool) -> None:
        merged = merge([each.batch for each in run if not isinstance(each.batch, DelayedMessage)])
        first = self._place_batch(key, topic, merged, unfinished)
        for each in run:
            count = each.batch.rows
            each.receipt.appended[each.index] = Appended(key[1], first, count)
            first += count

    def _place_batch(self, key: QueueKey, topic: str, merged: Merged, unfinished: bool) -> int:
        """Place a frame of messages for a queue; return the offset of its first message."""
        body, count, tag_hashes, has_keys = merged
        first = self._next_offset(key)
        log_offset, size = self._place(
            FrameKind.MESSAGES, topic.encode(), body, queue=key[1], queue_offset=first, count=count,
            has_keys=has_keys, unfinished=unfinished,
        )  # fmt: skip
        self.frames.append(FrameUnits(key, topic, first, log_offset, size, tag_hashes))
        self.ends[key] = first + count
        return first

    def _place_delayed(self, key: QueueKey, topic: str, run: list[_Waiting], unfinished: bool) -> None:
        """Place a frame of delayed messages; its queue offset is the number of their topic."""
        batches = [each.batch for each in run]
        body, times, rows = merge_delayed(
            [each for each in batches if isinstance(each, DelayedBatch | DelayedMessage)]
        )
        log_offset = self._place_timed(key, topic, body, times, unfinished=unfinished)
        first = 0
        for each in run:
            count = each.batch.rows
            each.receipt.appended[each.index] = Appended(key[1], NO_OFFSET, count)
            if count == 1:
                each.receipt.timers[each.index] = TimerPlace(log_offset, int(rows[first]))
            first += count

    def _place_timed(self, key: QueueKey, topic: str, body: pa.Buffer, times: Times, **flags: bool) -> int:
        """Place a frame of delayed messages; return its log offset."""
        log_offset, size = self._place(
            FrameKind.DELAYED, topic.encode(), body, queue=key[1], queue_offset=key[0], count=times.size,
            **flags,
        )  # fmt: skip
        entries = frame_entries(times, self.stored_at_us // 1000, log_offset, size, key[1], key[0])
        self.state = self.state.scheduled(log_offset, messages_by_window(entries))
        self.delayed.append(entries)
        self.scheduled += int(times.size)
        return log_offset

    def _place(
        self, kind: FrameKind, topic: bytes, body: bytes | pa.Buffer, queue: int = 0, queue_offset: int = 0,
        count: int = 0, has_keys: bool = False, published: bool = False, unfinished: bool = False,
    ) -> tuple[int, int]:  # fmt: skip
        """Add one frame to the plan, behind a state frame if it begins a segment; return place and size."""
        size = frame_size(topic, len(body))
        if kind != FrameKind.STATE:
            if self.cursor.is_full_for(size):
                self.cursor.roll()
            if self.cursor.is_at_head:
                picture = Picture.of(
                    self.state,
                    self.queues.written_ranges(self.state.topics, self.ends),
                    self.stored_at_us,
                    self.epoch,
                    self.lineage,
                )
                # In the midst of an append it must not be where the log ends, either.
                self._place(FrameKind.STATE, b"", states.encode(picture), unfinished=self._unfinished)
        self._unfinished = unfinished
        at = self.cursor.place(size)
        parts = encode(
            kind=kind, topic=topic, body=body, queue=queue, queue_offset=queue_offset, count=count,
            log_offset=at, stored_at_us=self.stored_at_us, durable_end=self.durable_end, epoch=self.epoch,
            has_keys=has_keys, published=published, unfinished=unfinished,
        )  # fmt: skip
        self._extend(at, size, parts)
        return at, size

    def _extend(self, at: int, size: int, parts: list[bytes | pa.Buffer]) -> None:
        if not self.extents or self.extents[-1].segment != self.cursor.start:
            self.extents.append(Extent(self.cursor.start, at))
        self.extents[-1].add(size, parts)


def _unfinished(runs: Sequence[Sequence[_Waiting]]) -> list[bool]:
    """Return for each run whether an append goes on behind it that is in this run or in one before it."""
    last = {id(each.receipt): at for at, run in enumerate(runs) for each in run}
    reached = accumulate((max(last[id(each.receipt)] for each in run) for run in runs), max)
    return [end > at for at, end in enumerate(reached)]
