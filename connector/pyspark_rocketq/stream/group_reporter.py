"""Committing a streaming query's progress to a consumer group, so that its lag can be seen.

Spark says `latestOffset(start)`: everything below `start` has been committed by the sink.
A thread of its own commits these offsets, so that the query does not wait. A commit that fails is
logged and made again with the next one; it never fails the query.
Offsets only advance at the broker, so a query that begins anew behind its group leaves it where it is.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from rocketq.errors import RocketqError
from rocketq.model import GroupKind, MessageQueue
from rocketq.net.broker_api import BrokerApi
from rocketq.protocol.documents.broker import CommitOffsetsRequest, GroupOffset

log = logging.getLogger("pyspark_rocketq")


class GroupReporter:
    """Reports positions for one group. Used by one thread; `find_broker` is called by the reporter's own."""

    def __init__(self, group: str, find_broker: Callable[[MessageQueue], BrokerApi]) -> None:
        self._group = group
        self._find_broker = find_broker
        self._reported: dict[MessageQueue, int] = {}
        self._pending: dict[MessageQueue, int] = {}
        self._changed = threading.Condition()
        self._working = False
        self._failing = False

    def report(self, positions: Mapping[MessageQueue, int]) -> None:
        """Take over positions that are new; returns at once."""
        with self._changed:
            # What the query dropped (a deleted topic) is dropped here too.
            self._pending = {
                queue: offset for queue, offset in positions.items() if self._reported.get(queue) != offset
            }
            if not self._pending or self._working:
                return
            self._working = True
        threading.Thread(target=self._work, name="rocketq-report", daemon=True).start()

    def flush(self, wait_ms: int) -> bool:
        """Wait until all is reported or has failed, at most `wait_ms`; tell whether nothing is left."""
        with self._changed:
            self._changed.wait_for(lambda: not self._working, wait_ms / 1000)
            return not self._pending

    def _work(self) -> None:
        try:
            while self._report_pending():
                pass
        finally:
            with self._changed:
                self._working = False
                self._changed.notify_all()

    def _report_pending(self) -> bool:
        """Report what is pending; return whether more came meanwhile and is worth trying."""
        with self._changed:
            taken, self._pending = self._pending, {}
        if not taken:
            return False
        by_broker: dict[str, dict[MessageQueue, int]] = {}
        for queue, offset in taken.items():
            by_broker.setdefault(queue.broker, {})[queue] = offset
        failed: dict[MessageQueue, int] = {}
        why = ""
        for positions in by_broker.values():
            try:
                self._commit(positions)
            except RocketqError as error:
                failed |= positions
                why = error.message
        with self._changed:
            self._reported |= {queue: offset for queue, offset in taken.items() if queue not in failed}
            self._pending = {**failed, **self._pending}
            if failed and not self._failing:
                log.warning("Progress of group %s is not reported for now: %s", self._group, why)
            self._failing = bool(failed)
            return bool(self._pending) and not failed

    def _commit(self, positions: Mapping[MessageQueue, int]) -> None:
        broker = self._find_broker(next(iter(positions)))
        offsets = tuple(GroupOffset(q.topic, q.queue, offset) for q, offset in sorted(positions.items()))
        broker.commit_offsets(self._group, CommitOffsetsRequest(offsets, kind=GroupKind.SPARK))
