"""Dead letters of this broker: which were sent again, and sending them to their original topics.

A letter is sent with its mark, as one append (`store.machines.letter_table`). So a call whose answer was lost
can be repeated: it finds the marks. The copies go to the queue that the message came from.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa

from rocketq.errors import Conflict, InvalidRequest, RocketqError, TopicNotFound
from rocketq.model import MessageQueue, Perm
from rocketq.protocol.arrow.stream_writer import encapsulate
from rocketq.protocol.documents.send_backs import (
    RESENT_LETTERS_MAX,
    DeadLetterMarks,
    OffsetRange,
    ResendAnswer,
    ResendOutcome,
    ResendRequest,
    ResentLetter,
)
from rocketq.protocol.property_columns import entries_of
from rocketq.protocol.rules.reserved_names import dead_letter_topic
from rocketq.protocol.rules.retry_properties import ORIGINAL_ID, place_of
from rocketq_broker.config import MIB
from rocketq_broker.retries.copies import letters_to_send
from rocketq_broker.retries.queue_rows import rows_at
from rocketq_broker.runtime.loop_bridge import Completions
from rocketq_broker.store.machines.letter_table import LettersSent
from rocketq_broker.store.state.state import Change, State
from rocketq_broker.store.store import AppendOutcome, MessageStore, QueueBatch

#: Letters that are sent in one append have about so many bytes together.
APPEND_BYTES_MAX: Final = 4 * MIB


@dataclass(frozen=True, slots=True)
class _Letters:
    """Letters for one queue, which were read together: their offsets, and what is sent."""

    queue: MessageQueue
    offsets: Sequence[int]
    batch: pa.RecordBatch


class DeadLetters:
    """The dead letters of every group on this broker; methods run on the loop's thread."""

    def __init__(self, store: MessageStore, completions: Completions, readers: Executor) -> None:
        self._store, self._completions, self._readers = store, completions, readers

    def marks(self, group: str) -> DeadLetterMarks:
        """Return where the dead letters of a group lie, and which were sent again."""
        topic = dead_letter_topic(group)
        try:
            extent = self._store.offsets(topic).queues[0]
        except TopicNotFound:
            return DeadLetterMarks(self._store.broker, group, 0, 0)
        ranges = tuple(OffsetRange(begin, end) for begin, end in self._store.letters.ranges(topic))
        return DeadLetterMarks(self._store.broker, group, extent.min, extent.max, ranges)

    async def resend(self, group: str, request: ResendRequest) -> ResendAnswer:
        """Send letters again; those that were sent already only with `again`.

        Raises InvalidRequest, and what a write raises if no letter was sent.
        """
        offsets = sorted(request.offsets)
        if not 1 <= len(offsets) <= RESENT_LETTERS_MAX or len(set(offsets)) < len(offsets):
            why = f"there are {len(offsets)}; give 1 to {RESENT_LETTERS_MAX}, each once"
            raise InvalidRequest("offsets", why)
        topic = dead_letter_topic(group)
        outcomes = {offset: ResentLetter(offset, ResendOutcome.NOT_FOUND) for offset in offsets}
        wanted = []
        for offset in offsets:
            if not request.again and self._store.letters.is_sent(topic, offset):
                outcomes[offset] = ResentLetter(offset, ResendOutcome.SENT_BEFORE)
            else:
                wanted.append(offset)
        loop = asyncio.get_running_loop()
        failure: RocketqError | None = None
        while wanted:
            parts, rest = await loop.run_in_executor(self._readers, self._read, topic, wanted)
            for part in parts:
                try:
                    told = await self._send(topic, part, request)
                except RocketqError as error:
                    failure = error
                    told = [ResentLetter(at, ResendOutcome.FAILED, part.queue.topic) for at in part.offsets]
                outcomes |= {each.offset: each for each in told}
            wanted = rest
        if failure is not None and not any(e.outcome is ResendOutcome.SENT for e in outcomes.values()):
            raise failure
        why = "" if failure is None else failure.message
        return ResendAnswer(self._store.broker, group, request.dry_run, tuple(outcomes.values()), why)

    # --- reading, on a thread --------------------------------------------------------------

    def _read(self, topic: str, offsets: list[int]) -> tuple[list[_Letters], list[int]]:
        """Read letters up to about APPEND_BYTES_MAX; return them by queue, and the offsets that are left."""
        found: dict[MessageQueue, list[tuple[list[int], pa.RecordBatch]]] = defaultdict(list)
        size, last = 0, -1
        for rows in rows_at(self._store, topic, 0, offsets):
            ids = entries_of(rows.batch).column(ORIGINAL_ID).to_pylist()
            by_queue: dict[MessageQueue, list[int]] = defaultdict(list)
            for row, text in enumerate(ids):
                place = place_of(text or "")
                if place is not None:
                    by_queue[place[0]].append(row)
            sent = letters_to_send(rows.batch)
            for queue, own in by_queue.items():
                places = [offsets[rows.places[row]] for row in own]
                found[queue].append((places, sent.take(pa.array(own, pa.int64()))))
            last = max(last, *(offsets[place] for place in rows.places))
            size += rows.batch.nbytes
            if size > APPEND_BYTES_MAX:
                break
        else:
            last = offsets[-1]
        parts = []
        for queue, pieces in sorted(found.items()):
            places = [offset for each, _ in pieces for offset in each]
            parts.append(_Letters(queue, places, pa.concat_batches([batch for _, batch in pieces])))
        return parts, [offset for offset in offsets if offset > last]

    # --- writing ---------------------------------------------------------------------------

    async def _send(self, topic: str, letters: _Letters, request: ResendRequest) -> list[ResentLetter]:
        target = letters.queue.topic
        try:
            config = self._store.topic(target)
        except TopicNotFound:
            return [ResentLetter(offset, ResendOutcome.NO_TOPIC, target) for offset in letters.offsets]
        if not config.perm & Perm.WRITE:
            return [ResentLetter(offset, ResendOutcome.NO_TOPIC, target) for offset in letters.offsets]
        queue = letters.queue.queue % config.write_queues
        if request.dry_run:
            return [ResentLetter(each, ResendOutcome.SENT, target, queue) for each in letters.offsets]

        def decide(state: State, at_ms: int) -> Change | None:
            if topic not in state.topics:
                raise TopicNotFound(topic, self._store.broker)
            if not request.again and any(state.letters.is_sent(topic, each) for each in letters.offsets):
                raise Conflict("the dead letters", "another call has just sent some of them", "Try again.")
            return LettersSent(topic, tuple(letters.offsets))

        batch = QueueBatch(queue, encapsulate(letters.batch), letters.batch)
        write = partial(self._store.append, target, [batch], decide=decide)
        outcome: AppendOutcome = await self._completions.outcome(write)
        first = outcome.appended[0].offset
        return [
            ResentLetter(offset, ResendOutcome.SENT, target, queue, first + row)
            for row, offset in enumerate(letters.offsets)
        ]
