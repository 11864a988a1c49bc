"""Looking into a queue: messages by their offsets, without a group and without changing anybody's progress.

Searches by id, key and time are in `rocketq.message_query`. What is read here is bounded in messages and in
bytes, because a person looks at it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rocketq.errors import OffsetOutOfRange
from rocketq.model import MessageQueue, PullStatus, QueueOffsets, StoredMessage
from rocketq.net.broker_api import BrokerApi
from rocketq.protocol.frame_slices import iter_frames
from rocketq.protocol.stored_rows import stored_messages

#: One pull: the frame that reaches this limit is the last one of the answer.
PULL_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Newer:
    """What came to the queues of a topic on one broker after the offsets that a reader knows.

    `messages` are the newest ones, oldest first; `skipped` counts those before them that were not read.
    `ends` are the offsets to go on from, one for each queue.
    """

    messages: tuple[StoredMessage, ...] = field(hash=False)
    skipped: int
    ends: tuple[int, ...]


def read(master: BrokerApi, topic: str, queue: int, begin: int, count: int) -> list[StoredMessage]:
    """Return at most `count` messages of a queue from the offset `begin` on; fewer at its end.

    Raises OffsetOutOfRange, TopicNotFound, QueueNotFound, NoPermission, CorruptFrame, BrokerUnreachable.
    """
    found: list[StoredMessage] = []
    place = MessageQueue(topic, master.broker, queue)
    at, end = begin, begin + count
    while at < end:
        pulled = master.pull(topic, queue, at, max_bytes=PULL_BYTES, max_messages=end - at, end=end)
        if pulled.status is not PullStatus.FOUND:
            break
        for piece in iter_frames(pulled.body, at, end):
            found += stored_messages(place, piece)
        if pulled.next_offset <= at:
            break
        at = pulled.next_offset
    return found


def newest(
    master: BrokerApi, topic: str, queues: Mapping[int, QueueOffsets], count: int
) -> list[StoredMessage]:
    """Return the newest `count` messages of a broker's queues, newest first, by their store time."""
    found: list[StoredMessage] = []
    for queue, extent in queues.items():
        first = max(extent.min, extent.max - count)
        if first < extent.max:
            found += read(master, topic, queue, first, extent.max - first)
    return sorted(found, key=_newest_first)[:count]


def newer(master: BrokerApi, topic: str, known: Sequence[int] | None, count: int) -> Newer:
    """Return what came after the offsets `known`, at most `count` messages of each queue.

    With None nothing is read: the answer says where the queues end now. A queue that `known` does not list is
    new, and is read from its first message on. Raises as `read`.
    """
    extents = master.offsets(topic).queues
    ends = tuple(each.max for each in extents)
    if known is None:
        return Newer((), 0, ends)
    found: list[StoredMessage] = []
    skipped = 0
    for queue, extent in enumerate(extents):
        after = min(known[queue], extent.max) if queue < len(known) else 0
        first = max(after, extent.min, extent.max - count)
        skipped += max(0, first - after)
        if first < extent.max:
            try:
                found += read(master, topic, queue, first, extent.max - first)
            except OffsetOutOfRange:
                # Retention has removed them since the offsets were asked.
                skipped += extent.max - first
    return Newer(tuple(sorted(found, key=lambda each: (each.stored_at_us, each.queue.queue, each.offset))),
                 skipped, ends)  # fmt: skip


def _newest_first(message: StoredMessage) -> tuple[int, str, int, int]:
    return -message.stored_at_us, message.queue.broker, message.queue.queue, -message.offset
