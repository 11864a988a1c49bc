"""All consume queues of the store, by topic number and queue id.

A queue exists here from its first message on; until then it is [0, 0) and costs
nothing. Directories are numbers, never names, so no topic name can reach a path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rocketq_broker.store.disk.files import Files
from rocketq_broker.store.disk.open_files import Handles
from rocketq_broker.store.log.consume_queue import ConsumeQueue
from rocketq_broker.store.machines.topic_table import TopicTable


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Where a queue begins and ends at one point of the log: it holds [min, end)."""

    min: int
    end: int


DIRECTORY: Final = "consumequeue"

#: A queue's place in the store: its topic's number and its id.
QueueKey = tuple[int, int]

#: The checksum of each queue's open block, by topic number and queue id.
OpenBlockChecksums = dict[int, dict[int, int]]

_EMPTY: Final = QueueRange(0, 0)


#: Each topic's queue ranges, by the topic's number.
QueueRanges = dict[int, tuple[QueueRange, ...]]


class Queues:
    """The table of queues. One thread changes it; any thread looks up."""

    def __init__(self, files: Files, handles: Handles, file_units: int) -> None:
        self._files = files
        self._handles = handles
        self._file_units = file_units
        self._queues: dict[QueueKey, ConsumeQueue] = {}
        #: Blocks of damaged units that were built again from the log (`queue_repair`).
        self.rebuilt_blocks = 0
        #: Files written since the last snapshot synced them.
        self.dirty: set[str] = set()

    def get(self, key: QueueKey) -> ConsumeQueue | None:
        return self._queues.get(key)

    def make(self, key: QueueKey) -> ConsumeQueue:
        """Return the queue, made if it is new."""
        queue = self._queues.get(key)
        if queue is None:
            queue = ConsumeQueue(
                self._files, self._handles, f"{DIRECTORY}/{key[0]}/{key[1]}", self._file_units, self.dirty
            )
            self._queues[key] = queue
        return queue

    def range(self, key: QueueKey) -> QueueRange:
        queue = self._queues.get(key)
        return _EMPTY if queue is None else QueueRange(queue.min, queue.end)

    def written_end(self, key: QueueKey) -> int:
        """Return the next offset that the log writer gives out in a queue."""
        queue = self._queues.get(key)
        return 0 if queue is None else queue.written_block.end

    def ranges(self, topics: TopicTable) -> QueueRanges:
        """Return what readers may see of every topic's queues."""
        return _rows(topics, self.range)

    def written_ranges(
        self, topics: TopicTable, planned: Mapping[QueueKey, int]
    ) -> dict[int, tuple[QueueRange, ...]]:
        """Return every topic's queue ranges as the log writer has them, with the ends it plans."""
        return _rows(
            topics, lambda key: QueueRange(self.range(key).min, planned.get(key, self.written_end(key)))
        )

    def open_block_checksums(self) -> OpenBlockChecksums:
        """Return the checksum of every queue's open block that has units."""
        found: OpenBlockChecksums = {}
        for (number, queue_id), queue in self._queues.items():
            if queue.open_block.end > queue.open_block.first:
                found.setdefault(number, {})[queue_id] = queue.open_block.crc
        return found

    def reset(self, ranges: Mapping[int, Sequence[QueueRange]], checksums: OpenBlockChecksums) -> None:
        """Make the table hold exactly these ranges, and cut or remove the files to fit."""
        self._queues.clear()
        for key, each in keyed(ranges):
            if each.end:
                self.make(key).reset(each.min, each.end, checksums.get(key[0], {}).get(key[1], 0))
        for number in self._files.list(DIRECTORY):
            for queue in self._files.list(f"{DIRECTORY}/{number}"):
                if (int(number), int(queue)) not in self._queues:
                    self.drop((int(number), int(queue)))
            if int(number) not in ranges:
                self._files.remove(f"{DIRECTORY}/{number}")

    def hold_files_for(self, ranges: Mapping[int, Sequence[QueueRange]]) -> bool:
        """Whether the files of every range are there and long enough."""
        self._queues.clear()
        return all(
            self.make(key).holds_files_for(each.min, each.end) for key, each in keyed(ranges) if each.end
        )

    def drop(self, key: QueueKey) -> None:
        """Remove a queue with its files."""
        self.make(key).remove()
        del self._queues[key]
        prefix = f"{DIRECTORY}/{key[0]}/{key[1]}/"
        self.dirty.difference_update([path for path in self.dirty if path.startswith(prefix)])

    def drop_topic(self, number: int) -> None:
        """Remove all queues of a topic with their files."""
        for queue in self._files.list(f"{DIRECTORY}/{number}"):
            self.drop((number, int(queue)))
        self._files.remove(f"{DIRECTORY}/{number}")

    def of_topic(self, number: int) -> list[ConsumeQueue]:
        """Return the queues of a topic that ever had a message."""
        return [queue for key, queue in list(self._queues.items()) if key[0] == number]

    def all(self) -> list[ConsumeQueue]:
        """Return all queues as they are now."""
        return list(self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)


def _rows(
    topics: TopicTable, range_of: Callable[[QueueKey], QueueRange]
) -> dict[int, tuple[QueueRange, ...]]:
    return {
        entry.number: tuple(range_of((entry.number, queue)) for queue in range(entry.queues))
        for entry in topics.values()
    }


def keyed(ranges: Mapping[int, Sequence[QueueRange]]) -> Iterator[tuple[QueueKey, QueueRange]]:
    """Yield each queue's key with its range."""
    for number, row in ranges.items():
        for queue, each in enumerate(row):
            yield (number, queue), each
