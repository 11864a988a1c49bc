"""Building damaged ConsumeQueue units again from the log, which is the truth.

A block of units that does not match its checksum (`consume_queue`) is built again when
a reader meets it. In this order:

1. Each unit of the block, as it is in the file, is a hint: if it leads to a sound frame of this
   topic and queue that holds this queue offset, the frame gives the units of all of its messages.
2. A gap that the hints leave is filled by following the log from the frame before the gap to the frame
   behind it. If the block has no frame before the gap, the last sound unit before the block leads to
   it; if there is none, the log is followed from its begin. Then a deletion of the topic starts the gap
   again, because the frames before are of an earlier topic of the same name.
3. What the log does not have, salvage found lost: a LOST frame lies there, and the unit says so.

The block and its checksum are then written in place, counted and logged. If the log cannot give the
units, because it is damaged as well, the reader gets that error and never fewer messages.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

import numpy as np
import structlog

from rocketq.errors import CorruptFrame
from rocketq.protocol.frame import HEADER_BYTES, FrameHeader, FrameKind
from rocketq.protocol.frame_slices import open_batch
from rocketq.protocol.hashing import hash_column
from rocketq_broker.store.errors import CorruptQueue, SegmentGone
from rocketq_broker.store.log.commit_log import CommitLog
from rocketq_broker.store.log.consume_queue import ConsumeQueue, OpenBlock, Units, units
from rocketq_broker.store.log.consume_queues import Queues
from rocketq_broker.store.machines.topic_table import TopicDeleted
from rocketq_broker.store.state.state import State, decode_change

T = TypeVar("T")

log: Final = structlog.get_logger("rocketq.broker")


class QueueRepair:
    """Reads that rebuild the units they find damaged; safe to use from any thread.

    `state` gives the topics of now; `writing` is the lock under which the log writer changes queues.
    """

    def __init__(
        self, log: CommitLog, queues: Queues, state: Callable[[], State], writing: threading.Lock
    ) -> None:
        self._log = log
        self._queues = queues
        self._state = state
        self._writing = writing
        # One rebuild at a time: whoever meets the same damage finds it mended.
        self._lock = threading.Lock()

    def read(self, look: Callable[[], T]) -> T:
        """Return what `look` returns; where units are damaged, rebuild them from the log and look again.

        A rebuild follows the log and blocks for as long. Raises what `look` raises, CorruptQueue or
        CorruptFrame if the log cannot give the units, and FileNotFoundError if the queue or its beginning
        was removed meanwhile.
        """
        met: set[tuple[str, int]] = set()
        while True:
            try:
                return look()
            except CorruptQueue as damage:
                place = damage.directory, damage.offset
                if place in met:
                    raise
                met.add(place)
                self._rebuild(damage)

    def _rebuild(self, damage: CorruptQueue) -> None:
        number, queue_id = map(int, damage.directory.split("/")[1:])
        with self._lock:
            queue = self._queues.get((number, queue_id))
            entries = self._state().topics.values()
            topic = next((each.config.name for each in entries if each.number == number), None)
            if queue is None or topic is None or not queue.min <= damage.offset < queue.end:
                raise FileNotFoundError(f"{damage.directory} was deleted, or retention removed its beginning")
            first, found, open_block = queue.damaged(damage.offset)
            block = _Block(self._log, queue, topic, first, found, open_block)
            block.rebuild()
            made = block.made
            if np.array_equal(made, found) and queue.matches(first, made, open_block):
                # Another reader's rebuild came first, or the units are right and do not lead to the message.
                return
            with self._writing:
                if self._queues.get((number, queue_id)) is not queue:
                    raise FileNotFoundError(f"{damage.directory} was deleted")
                try:
                    queue.restore(first, made, open_block)
                except OSError as error:
                    why = f"its block was rebuilt but could not be written: {error}"
                    raise queue.corrupt(damage.offset, why) from error
            self._queues.rebuilt_blocks += 1
        log.warning(
            "consume_queue_rebuilt", topic=topic, queue=queue_id, first=first, end=first + made.size,
            damaged_units=int(np.count_nonzero(made != found)), why=damage.message,
        )  # fmt: skip


class _Block:
    """A block of units being built again: `made` begins as what the file holds from `first` on."""

    def __init__(
        self, log: CommitLog, queue: ConsumeQueue, topic: str, first: int, found: Units, open_block: OpenBlock
    ) -> None:
        self._log = log
        self._queue = queue
        self._topic = topic
        self._first = first
        self._open_block = open_block
        self.made = found.copy()
        # What retention let go of, nobody reads; it stays as it is, for the checksum.
        self._gone = max(0, queue.min - first)
        self._known = np.arange(found.size) < self._gone

    def rebuild(self) -> None:
        """Make every unit what the log says; raise CorruptQueue or CorruptFrame if it cannot tell."""
        for hint in np.unique(self.made["log_offset"][self._gone :]).tolist():
            if hint + HEADER_BYTES <= self._log.end:
                with suppress(CorruptFrame, SegmentGone):
                    self._take(self._log.header(hint), hint)
        while not self._known.all():
            low = int(np.argmin(self._known))
            behind = np.flatnonzero(self._known[low:])
            self._fill(low, low + int(behind[0]) if behind.size else self.made.size)

    def _take(self, header: FrameHeader, at: int) -> None:
        """Take the units of the frame at `at`, if it is one of this queue; raise CorruptFrame."""
        rows = range(header.queue_offset - self._first, header.next_queue_offset - self._first)
        low, high = max(rows.start, self._gone), min(rows.stop, self.made.size)
        if (header.kind, header.queue) != (FrameKind.MESSAGES, self._queue.id) or low >= high:
            return
        frame = self._log.frame(at, header.size)
        if frame.topic != self._topic or header.log_offset != at:
            return
        made = units(at, header.size, hash_column(open_batch(frame, at).column("tag")))
        unknown = low + np.flatnonzero(~self._known[low:high])
        self.made[unknown] = made[unknown - rows.start]
        self._known[unknown] = True

    def _fill(self, low: int, high: int) -> None:
        """Find the frames of the units [low, high) by following the log from the frame before them."""
        anchor = int(self.made["log_offset"][low - 1]) if low > self._gone else self._anchor()
        begin = at = self._log.begin if anchor is None else anchor
        stop = int(self.made["log_offset"][high]) if high < self.made.size else self._log.end
        lost_at: int | None = None
        while at < stop:
            header = self._log.header(at)
            if header.log_offset != at:
                raise CorruptFrame(at, f"it belongs to log offset {header.log_offset}")
            if header.kind == FrameKind.LOST:
                lost_at = at
            elif header.kind == FrameKind.CHANGE and anchor is None and self._deletes_topic(header):
                self._known[low:high] = False
            else:
                self._take(header, at)
            if self._known[low:high].all() and (anchor is not None or self._fits()):
                return
            at += header.size
        self._mark_lost(low, high, lost_at)
        if not self._fits():
            # What was passed over was told by headers alone, one of which may be damaged: read all of it.
            for _ in self._log.frames(begin, stop):
                pass

    def _mark_lost(self, low: int, high: int, lost_at: int | None) -> None:
        """Give the units that the log does not have to a lost frame; raise CorruptQueue without one."""
        missing = low + np.flatnonzero(~self._known[low:high])
        if missing.size and lost_at is None:
            why = "the log has no frame for it"
            raise self._queue.corrupt(self._first + int(missing[0]), why)
        self.made[missing] = units(lost_at or 0, 0, np.zeros(missing.size, dtype=np.uint64))
        self._known[missing] = True

    def _deletes_topic(self, header: FrameHeader) -> bool:
        frame = self._log.frame(header.log_offset, header.size)
        change = decode_change(frame.body.to_pybytes())
        return isinstance(change, TopicDeleted) and change.name == self._topic

    def _anchor(self) -> int | None:
        """Return the log offset of the last sound unit before the block; None if there is none."""
        before = self._first - 1
        while before >= self._queue.min:
            try:
                return int(self._queue.read(before, 1)["log_offset"][0])
            except CorruptQueue as damage:
                before = damage.block_first - 1
        return None

    def _fits(self) -> bool:
        return self._queue.matches(self._first, self.made, self._open_block)
