"""What can be read of a store: topics, offsets, groups' progress, messages by offset, key and time.

Reads come from memory and the page cache and may be called from any thread. Nothing at or behind the
confirmed end (`ends`) is seen. A read that meets damaged ConsumeQueue units has them rebuilt from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from rocketq.errors import (
    CorruptFrame,
    NoPermission,
    OffsetOutOfRange,
    QueueNotFound,
    TopicNotFound,
)
from rocketq.model import Perm, PullStatus, QueueOffsets, TimeBoundary, TopicConfig
from rocketq.protocol.documents.broker import (
    GroupLag,
    GroupOffset,
    GroupOffsets,
    QueueStatistics,
    TimeOffsets,
    TopicOffsets,
    TopicStatistics,
)
from rocketq.protocol.documents.nameserver import DataVersion
from rocketq.protocol.rules.reserved_names import check_name
from rocketq_broker.store.commit.store_parts import StoreParts
from rocketq_broker.store.disk.cached_reads import cached_only
from rocketq_broker.store.disk.files import Data, NotCached
from rocketq_broker.store.errors import CorruptQueue, SegmentGone
from rocketq_broker.store.filtered_pull.scan import MessageFilter, select
from rocketq_broker.store.index.key_index import KeyIndex
from rocketq_broker.store.index.key_query import KeyQuery
from rocketq_broker.store.log import frame_lookup as reader
from rocketq_broker.store.log.queue_reader import StoreQueueReader
from rocketq_broker.store.log.sound_frames import located
from rocketq_broker.store.log.time_query import FoundInTime, TimeQuery, query_by_time
from rocketq_broker.store.machines.letter_table import LetterTable
from rocketq_broker.store.machines.slot_table import SlotTable
from rocketq_broker.store.machines.topic_table import TopicEntry
from rocketq_broker.store.recovery.queue_repair import QueueRepair
from rocketq_broker.store.results import FoundMessages, uncovered_range
from rocketq_broker.store.state.state import State

T = TypeVar("T")

#: What one `pull_cached` reads at most: somewhat more than a pull without `max_bytes` asks for.
CACHED_PULL_BYTES_MAX: Final = 5 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PullResult:
    """Whole frames that hold the asked messages, and where the queue stands.

    `behind` is how many bytes of the log lie between what was looked at and the confirmed end; 0 at the end
    of the queue, and where salvage left nothing to tell it by.
    """

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    incarnation: str
    chunks: Sequence[Data]
    behind: int = 0


class StoreReads:
    """The reading side of a `MessageStore`."""

    def __init__(self, parts: StoreParts, index: KeyIndex, repair: QueueRepair) -> None:
        self._config = parts.config
        self._log = parts.log
        self._queues = parts.queues
        self._ends = parts.ends
        self._index = index
        self._repair = repair

    @property
    def broker(self) -> str:
        return self._config.broker

    @property
    def _state(self) -> State:
        return self._ends.state

    @property
    def slots(self) -> SlotTable:
        """The numbered sends that are remembered now; a value that never changes."""
        return self._state.slots

    @property
    def data_version(self) -> DataVersion:
        return self._state.topics.data_version

    def topics(self) -> tuple[TopicConfig, ...]:
        return tuple(entry.config for entry in self._state.topics.in_order())

    @property
    def letters(self) -> LetterTable:
        """Which dead letters were sent again."""
        return self._state.letters

    def has_topic(self, name: str) -> bool:
        return name in self._state.topics

    def topic(self, name: str) -> TopicConfig:
        """Return a topic's configuration; raise TopicNotFound, or InvalidName for a name no topic can have.

        All reads of a topic tell the two apart so.
        """
        return self._entry(name).config

    def _entry(self, name: str) -> TopicEntry:
        if self._ends.unreadable is not None:
            raise self._ends.unreadable
        entry = self._state.topics.get(name)
        if entry is None:
            check_name("topic", name)
            raise TopicNotFound(name, self.broker)
        return entry

    def offsets(self, topic: str) -> TopicOffsets:
        """Return [min, max) of every queue a topic ever had; raise TopicNotFound.

        Those beyond its present counts too: what they hold is still stored, and `total` never shrinks.
        """
        entry = self._entry(topic)
        ranges = [self._queues.range((entry.number, queue)) for queue in range(entry.queues)]
        return TopicOffsets(
            topic,
            self.broker,
            entry.config.incarnation,
            sum(each.end for each in ranges),
            tuple(QueueOffsets(each.min, each.end) for each in ranges),
        )

    def offsets_at(self, topic: str, at_us: int, boundary: TimeBoundary) -> TimeOffsets:
        """Return the offset that a time names in every queue of a topic; reads the disk."""
        config = self._entry(topic).config

        def offset_at(queue_id: int) -> int:
            queue = self._queues.get((self._entry(topic).number, queue_id))
            if queue is None:
                return 0
            return reader.offset_at(self._log, queue, queue.min, queue.end, at_us, boundary)

        offsets = [
            self._steady(topic, queue, partial(self._repair.read, partial(offset_at, queue)))
            for queue in range(config.queues)
        ]
        return TimeOffsets(topic, self.broker, config.incarnation, at_us, tuple(offsets))

    def group_offsets(self, group: str, topic: str | None = None) -> GroupOffsets:
        """Return a group's progress on this broker; queues without a commit are absent."""
        table = self._state.groups.offsets(group)
        return GroupOffsets(
            self.broker,
            group,
            tuple(
                GroupOffset(name, queue, offset)
                for (name, queue), offset in sorted(table.items())
                if topic is None or name == topic
            ),
        )

    def groups(self) -> tuple[str, ...]:
        """Return the names of all groups of this broker."""
        return tuple(sorted(self._state.groups))

    def stored_at(self, topic: str, queue: int, offset: int) -> int | None:
        """Return when the message at an offset was stored (µs); None if it is not stored. Reads one header.

        Raises TopicNotFound, and CorruptFrame or CorruptQueue if the message is damaged.
        """

        def look() -> int | None:
            found = self._queues.get((self._entry(topic).number, queue))
            if found is None or not found.min <= offset < found.end:
                return None
            unit = found.read(offset, 1)[0]
            return self._log.header(int(unit["log_offset"])).stored_at_us

        return self._steady(topic, queue, partial(self._repair.read, look))

    def pull(
        self,
        topic: str,
        queue: int,
        offset: int,
        *,
        max_bytes: int,
        max_messages: int | None = None,
        chosen: MessageFilter | None = None,
        end: int | None = None,
    ) -> PullResult:
        """Return the frames that hold messages from `offset` on, at least one frame if there is any.

        With a filter, filtered frames of the messages it chooses, after a bounded scan that also stops
        before `end`: NO_MATCHED_MSG if there was none, with the offset to go on at. Raises TopicNotFound,
        QueueNotFound, NoPermission, or OffsetOutOfRange outside [min, max] (RocketMQ: PullMessageProcessor).

        ConsumeQueue units that are damaged are rebuilt from the log first, which can take long.
        """
        look = partial(self._pull, topic, queue, offset, max_bytes, max_messages, chosen, end)
        return self._steady(topic, queue, partial(self._repair.read, look))

    def pull_cached(
        self, topic: str, queue: int, offset: int, *, max_bytes: int, max_messages: int | None = None
    ) -> PullResult | None:
        """Return what `pull` does if that takes no waiting for the disk, else None.

        None as well if more than CACHED_PULL_BYTES_MAX would be read, or something is damaged or gone:
        `pull` then answers, or says what is wrong.
        """
        try:
            with cached_only(CACHED_PULL_BYTES_MAX):
                return self._pull(topic, queue, offset, max_bytes, max_messages, None, None)
        except (NotCached, CorruptFrame, CorruptQueue, SegmentGone, FileNotFoundError):
            return None

    def _steady(self, topic: str, queue: int, read: Callable[[], T]) -> T:
        """Read from the files; if they went meanwhile with a topic or by retention, look again."""
        while True:
            entry = self._entry(topic)
            found = self._queues.get((entry.number, queue))
            low = None if found is None else found.min
            try:
                return read()
            except CorruptFrame as damage:
                raise self.located(topic, damage) from damage
            except (SegmentGone, FileNotFoundError) as error:
                if found is not None and self._entry(topic).number == entry.number and found.min == low:
                    # Nothing has moved, so the file should be there.
                    raise found.corrupt(found.min, str(error)) from error

    def _pull(
        self, topic: str, queue: int, offset: int, max_bytes: int, max_messages: int | None,
        chosen: MessageFilter | None, until: int | None,
    ) -> PullResult:  # fmt: skip
        entry = self._entry(topic)
        config = entry.config
        if not config.perm & Perm.READ:
            raise NoPermission("Reading", f"topic {topic}")
        if not 0 <= queue < config.read_queues:
            raise QueueNotFound(topic, queue, config.read_queues)
        found = self._queues.get((entry.number, queue))
        low, end = (0, 0) if found is None else (found.min, found.end)
        if not low <= offset <= end:
            raise OffsetOutOfRange(topic, self.broker, queue, offset, low, end)
        if found is None or offset == end:
            return PullResult(PullStatus.NO_NEW_MSG, offset, low, end, config.incarnation, [])
        if chosen is not None:
            stop = end if until is None else max(offset, min(end, until))
            selected = select(self._log, found, topic, offset, stop, chosen, max_bytes, max_messages)
            status = PullStatus.FOUND if selected.chunks else PullStatus.NO_MATCHED_MSG
            unit = found.read(selected.next_offset - 1, 1)[0]
            behind = self._behind(int(unit["log_offset"]) + int(unit["size"]))
            return PullResult(
                status, selected.next_offset, low, end, config.incarnation, selected.chunks, behind
            )
        whole = reader.whole_frames(self._log, found, topic, offset, end, max_bytes, max_messages)
        status = PullStatus.FOUND if whole.chunks else PullStatus.NO_MATCHED_MSG
        return PullResult(
            status, whole.next_offset, low, end, config.incarnation, whole.chunks, self._behind(whole.log_end)
        )

    def _behind(self, log_end: int) -> int:
        """Return how far a log offset lies before the confirmed end; 0 for one that is not known."""
        return max(0, self._ends.confirmed - log_end) if log_end else 0

    def query_by_key(self, query: KeyQuery) -> FoundMessages:
        """Return the messages with a key, newest first; raise TopicNotFound."""
        self._entry(query.topic)
        # Measured before the search, so that no lag means that nothing of then was missed.
        lag = max(0, self._ends.confirmed - self._index.position)
        found = self._repair.read(partial(self._index.find, query))
        queues = self._queues.of_topic(self._entry(query.topic).number)
        uncovered = tuple(uncovered_range(hole, queues) for hole in found.holes)
        return FoundMessages(found.slices, lag, uncovered, found.last)

    def located(self, topic: str, damage: CorruptFrame) -> CorruptFrame:
        """Return the error of the frame at log offset `damage.offset`, which a reader of `topic` met."""
        queues = self._queues.of_topic(self._entry(topic).number)
        try:
            return self._repair.read(partial(located, self._log, self.broker, topic, queues, damage))
        except (CorruptFrame, CorruptQueue):
            # The units that lead to the frame are damaged as well.
            return located(self._log, self.broker, topic, (), damage)

    def query_by_time(self, query: TimeQuery) -> FoundInTime:
        """Return the messages stored within an interval, oldest first; raise TopicNotFound."""

        def frame(topic: str, queue: int, offset: int) -> Sequence[Data]:
            return self.pull(topic, queue, offset, max_bytes=1, max_messages=1).chunks

        return query_by_time(
            StoreQueueReader(self._log, self._queues, self._entry, self._steady, frame), query
        )

    def topic_statistics(self, topic: str) -> TopicStatistics:
        """Return a topic at run time, with the lag of every group; reads two headers a queue."""
        entry = self._entry(topic)
        queues = [self._queue_statistics(entry.number, queue) for queue in range(entry.config.queues)]
        lags = tuple(
            GroupLag(group, queue, offset, max(0, queues[queue].max - offset))
            for group in sorted(self._state.groups)
            for (name, queue), offset in sorted(self._state.groups.offsets(group).items())
            if name == topic and queue < len(queues)
        )
        return TopicStatistics(self.broker, topic, tuple(queues), lags)

    def _queue_statistics(self, number: int, queue_id: int) -> QueueStatistics:
        queue = self._queues.get((number, queue_id))
        if queue is None:
            return QueueStatistics(queue_id, 0, 0, None, None)
        low, end = queue.min, queue.end
        if low == end:
            return QueueStatistics(queue_id, low, end, None, None)
        try:
            found = [self._repair.read(partial(queue.read, offset, 1)) for offset in (low, end - 1)]
            first, last = (self._log.header(int(unit["log_offset"][0])).stored_at_us for unit in found)
        except SegmentGone:
            # Retention has moved the first offset meanwhile.
            return self._queue_statistics(number, queue_id)
        return QueueStatistics(queue_id, low, end, first, last)
