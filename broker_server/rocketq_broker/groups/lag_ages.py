"""How old the messages are that groups have yet to commit, for the metrics.

To know it takes a read of the disk for each queue in which a group is behind. A scrape runs on the event loop
and may not wait for the disk. So a scrape is given what the scrape before had a thread read.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, Future
from typing import Final

import structlog

from rocketq.clock import Clock
from rocketq_broker.groups.progress import group_queues
from rocketq_broker.metrics.broker_metrics import GROUPS_MAX
from rocketq_broker.metrics.group_metrics import TopicAge
from rocketq_broker.store.store import MessageStore

log: Final = structlog.get_logger("rocketq.broker.groups")


class LagAges:
    """The ages as of the last scrape but one; used on the event loop's thread."""

    def __init__(self, store: MessageStore, clock: Clock, readers: Executor) -> None:
        self._store = store
        self._clock = clock
        self._readers = readers
        self._reading: Future[tuple[TopicAge, ...]] | None = None
        self._found: tuple[TopicAge, ...] = ()

    def latest(self) -> tuple[TopicAge, ...]:
        """Return what was read last, and have it read anew."""
        if self._reading is not None and self._reading.done():
            error = self._reading.exception()
            if error is None:
                self._found = self._reading.result()
            else:
                log.error("lag_not_read", exc_info=error)
            self._reading = None
        if self._reading is None:
            self._reading = self._readers.submit(lambda: tuple(topic_ages(self._store, self._clock.now_us())))
        return self._found


def topic_ages(store: MessageStore, now_us: int) -> Iterator[TopicAge]:
    """Yield the age for each group and topic; a topic of which a queue's age is not known is left out."""
    for group in store.groups()[:GROUPS_MAX]:
        ages: dict[str, list[int | None]] = {}
        for each in group_queues(store, group, now_us):
            if each.committed is not None:
                ages.setdefault(each.topic, []).append(each.lag_ms)
        for topic, found in ages.items():
            known = [age for age in found if age is not None]
            if len(known) == len(found):
                yield TopicAge(group, topic, max(known))
