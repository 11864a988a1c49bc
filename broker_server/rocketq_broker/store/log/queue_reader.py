"""A topic's queues as a search by time reads them: offsets by time, the headers of frames, and single frames.

Each step reads the files anew and may find that retention has moved the queue's begin meanwhile; it
then goes on at what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from rocketq.model import TimeBoundary
from rocketq_broker.store.disk.files import Data
from rocketq_broker.store.log import frame_lookup as reader
from rocketq_broker.store.log.commit_log import CommitLog
from rocketq_broker.store.log.consume_queues import Queues
from rocketq_broker.store.log.time_query import Head
from rocketq_broker.store.machines.topic_table import TopicEntry

T = TypeVar("T")


class Steady(Protocol):
    """Reads from the files of a queue, and once more if they went meanwhile."""

    def __call__(self, topic: str, queue: int, read: Callable[[], T], /) -> T: ...


class StoreQueueReader:
    """Reads the queues of one store."""

    def __init__(
        self,
        log: CommitLog,
        queues: Queues,
        entry: Callable[[str], TopicEntry],
        steady: Steady,
        frame: Callable[[str, int, int], Sequence[Data]],
    ) -> None:
        self._log = log
        self._queues = queues
        self._entry = entry
        self._steady = steady
        self.frame = frame

    def read_queues(self, topic: str) -> int:
        return self._entry(topic).config.read_queues

    def offset_at(self, topic: str, queue: int, at_us: int) -> int:
        def read() -> int:
            found = self._queues.get((self._entry(topic).number, queue))
            if found is None:
                return 0
            return reader.offset_at(self._log, found, found.min, found.end, at_us, TimeBoundary.LOWER)

        return self._steady(topic, queue, read)

    def head(self, topic: str, queue: int, offset: int) -> Head | None:
        def read() -> Head | None:
            found = self._queues.get((self._entry(topic).number, queue))
            if found is None:
                return None
            at, end = max(offset, found.min), found.end
            while at < end:
                places, next_offset = reader.locate(self._log, found, at, end, 1, 1)
                if places:
                    stored_at_us = self._log.header(places[0].log_offset).stored_at_us
                    return Head(stored_at_us, queue, places[0].offset, next_offset)
                # Salvage found nothing there.
                at = next_offset
            return None

        return self._steady(topic, queue, read)
