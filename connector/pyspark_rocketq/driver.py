"""The driver's side of one running query: what it looks at, waits for and decides with.

Everything here may be asked again: nothing is remembered that the checkpoint does not hold, except
what makes the next answer quicker (routes, watches, sizes) and where an AvailableNow run ends.

A broker that is away does not stop the others; if all are away for PERSIST_MS, the query fails.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark_rocketq.admission import Limit, Patience, admit
from pyspark_rocketq.connections import Connection
from pyspark_rocketq.density import Densities, Weigh
from pyspark_rocketq.offset import StreamOffset, batch_ranges
from pyspark_rocketq.options import Admission, SourceOptions
from pyspark_rocketq.planning import QueueRange, split
from pyspark_rocketq.progress import Standing, advanced, stand
from pyspark_rocketq.reader import located, unasked
from pyspark_rocketq.reporting import GroupReporter
from pyspark_rocketq.resolution import look_up, resolve
from pyspark_rocketq.topology import (
    Place,
    Survey,
    find_places,
    require_assigned,
    require_found,
    survey_all,
)
from pyspark_rocketq.watch import OffsetWatch
from rocketq.broker_api import BrokerApi, master_of
from rocketq.errors import RocketqError
from rocketq.patience import PERSIST_MS
from rocketq.protocol.model import MessageQueue, QueueOffsets

log = logging.getLogger("pyspark_rocketq")

#: How old the routes may be that say which brokers and topics there are.
PLACES_MS: Final = 2_000
#: How long the end of a run waits for its offsets to reach the group.
REPORT_WAIT_MS: Final = 1_000
#: A wake-up that brought nothing for this query is not followed by another before this.
FALSE_ALARM_PAUSE_MS: Final = 20


@dataclass(frozen=True, slots=True)
class Target:
    """Where an AvailableNow run ends: no queue is read further, no later queue joins."""

    ends: Mapping[MessageQueue, int]

    def clip(self, survey: Survey) -> Survey:
        ranges = {
            queue: QueueOffsets(held.min, max(held.min, min(held.max, self.ends[queue])))
            for queue, held in survey.ranges.items()
            if queue in self.ends
        }
        return Survey(ranges, survey.incarnations, survey.gone)

    def reached(self, standing: Standing) -> bool:
        """Whether no queue stands still short of its end."""
        return not any(standing.backlogs[queue][0] < self.ends.get(queue, 0) for queue in standing.still)


class QueryDriver:
    """The driver's side of one running query."""

    def __init__(self, options: SourceOptions, connection: Connection) -> None:
        self._options = options
        self._connection = connection
        self._places: dict[tuple[str, str], Place] = {}
        self._places_at = float("-inf")
        self._watch = OffsetWatch()
        self._patience = Patience(options.admission)
        self._densities = Densities()
        self._target: Target | None = None
        self._silent_since: float | None = None
        self._absent_since: float | None = None
        #: Warnings already given; a query polls twice a second.
        self._told: set[str] = set()
        self._reporter: GroupReporter | None = None
        if options.group is not None and options.commit_group_offsets:
            self._reporter = GroupReporter(options.group, self._broker_of)
        self.latest_seen: StreamOffset | None = None

    def initial_offset(self) -> StreamOffset:
        """Resolve `startingOffsets`; every broker must answer, or its queues would be taken for new ones."""
        options = self._options
        places = self._find_places(max_age_ms=0)
        require_found(self._connection, options.subscription, places)
        survey = survey_all(places)
        require_assigned(options.subscription, places)
        positions = resolve(
            options.starting,
            "startingOffsets",
            survey,
            look_up(options.starting, places, survey, options.group),
            fail_on_data_loss=options.fail_on_data_loss,
        )
        return StreamOffset(positions, positions, survey.incarnations)

    def fix_target(self) -> None:
        """Remember what there is now as all that this run reads; every broker must answer."""
        places = self._find_places(max_age_ms=0)
        ends = {queue: held.max for queue, held in survey_all(places).ranges.items()}
        self._target = Target(ends)

    def latest_offset(self, start: StreamOffset, unlimited: bool) -> StreamOffset | None:
        """Return the end of the next batch, or None after waiting a while in vain."""
        if self._reporter is not None:
            self._reporter.report(start.positions)
        self._warn_of_unrouted(start)
        give_up_at = time.monotonic() + self._options.long_poll_ms / 1000
        standing, wakes = self._look(start), 0
        while not self._ripe(standing, unlimited):
            left_ms = int((give_up_at - time.monotonic()) * 1000)
            if self._target is not None and not self._target.reached(standing):
                # The rest is on a broker that is away; silence too long raises.
                left_ms = max(left_ms, FALSE_ALARM_PAUSE_MS)
                self._endure_absence()
            elif left_ms <= 0 or self._target is not None or unlimited:
                # A run with a target, or of one batch, is over when there is nothing more.
                if self._reporter is not None:
                    self._reporter.flush(REPORT_WAIT_MS)
                return None
            if wakes:
                # What woke us was not for this query, or not enough of it.
                time.sleep(min(FALSE_ALARM_PAUSE_MS, left_ms) / 1000)
            self._await_news(left_ms, standing.waiting)
            standing, wakes = self._look(start), wakes + 1
        self._absent_since = None
        return self._end_of_batch(start, standing, unlimited)

    def partitions(self, start: StreamOffset, end: StreamOffset) -> list[QueueRange]:
        """Return the ranges a batch is made of, cut as asked."""
        places = self._find_places(max_age_ms=PLACES_MS)
        whole = [
            located(QueueRange(queue, begin, last), places, end.incarnations)
            for queue, (begin, last) in batch_ranges(start, end).items()
        ]
        weigh: Weigh = unasked
        if self._options.splitting.max_bytes is not None:
            weigh = self._densities.measure({one.queue: one.begin for one in whole}, places)
        return split(whole, self._options.splitting, weigh)

    def close(self) -> None:
        if self._reporter is not None:
            self._reporter.flush(REPORT_WAIT_MS)
        self._watch.close()

    # --- inside ------------------------------------------------------------------

    def _look(self, start: StreamOffset) -> Standing:
        """Learn what there is now and compare; raise DataLost as `failOnDataLoss` says."""
        self._watch.refresh(self._find_places(max_age_ms=PLACES_MS))
        self._endure_silence()
        survey = self._watch.survey()
        for topic in {topic for topic, _ in survey.gone}:
            self._connection.routes.forget(topic)
        if self._target is not None:
            survey = self._target.clip(survey)
        standing = stand(start, survey)
        for loss in standing.losses:
            if self._options.fail_on_data_loss:
                raise loss
            if loss.message not in self._told:
                self._told.add(loss.message)
                log.warning("Going on after a loss (failOnDataLoss=false): %s", loss.message)
        self.latest_seen = StreamOffset({queue: last for queue, (_, last) in standing.backlogs.items()})
        return standing

    def _ripe(self, standing: Standing, unlimited: bool) -> bool:
        now_ms = time.monotonic_ns() // 1_000_000
        if unlimited or self._target is not None:
            return standing.waiting > 0
        return self._patience.ripe(standing.waiting, now_ms)

    def _await_news(self, left_ms: int, waiting: int) -> None:
        """Wait for a broker's word, or for small batches to become due."""
        seen = self._watch.version
        self._watch.hold()
        due_ms = self._patience.due_in_ms(time.monotonic_ns() // 1_000_000) if waiting else None
        self._watch.wait(seen, left_ms if due_ms is None else min(left_ms, due_ms))

    def _end_of_batch(self, start: StreamOffset, standing: Standing, unlimited: bool) -> StreamOffset:
        admission = Admission() if unlimited else self._options.admission
        limit = Limit(admission.max_rows, admission.max_bytes)
        weigh: Weigh = unasked
        if limit.bytes is not None:
            lagging = {q: first for q, (first, last) in standing.backlogs.items() if first < last}
            weigh = self._densities.measure(lagging, self._places)
        ends = admit(standing.backlogs, limit, weigh)
        return advanced(start, standing, ends)

    def _find_places(self, max_age_ms: int) -> dict[tuple[str, str], Place]:
        """Return the places, looked up again when they are older than that; old ones serve in need."""
        now = time.monotonic()
        if (now - self._places_at) * 1000 >= max_age_ms or not self._places:
            try:
                self._places = find_places(self._connection, self._options.subscription)
            except RocketqError as error:
                if not self._places:
                    raise
                log.warning("Topics and brokers are not looked up for now: %s", error.message)
            self._places_at = now
        return self._places

    def _endure_silence(self) -> None:
        """Raise when no broker has answered for PERSIST_MS; one that answers is enough to go on."""
        error = self._watch.silent()
        if error is None:
            self._silent_since = None
            return
        self._silent_since = self._silent_since or time.monotonic()
        if (time.monotonic() - self._silent_since) * 1000 >= PERSIST_MS:
            raise error

    def _endure_absence(self) -> None:
        """Raise when a broker that an AvailableNow run still needs has been away for PERSIST_MS."""
        error = self._watch.failure()
        self._absent_since = self._absent_since or time.monotonic()
        if error is not None and (time.monotonic() - self._absent_since) * 1000 >= PERSIST_MS:
            raise error

    def _warn_of_unrouted(self, start: StreamOffset) -> None:
        """Say once which topics have no route: their queues stand still, and that should not be a riddle."""
        routed = {topic for topic, _ in self._places}
        for topic in sorted({queue.topic for queue in start.positions} - routed):
            if self._places_at > float("-inf") and topic not in self._told:
                self._told.add(topic)
                log.warning("Topic %s has no route at present; its queues stand still.", topic)

    def _broker_of(self, queue: MessageQueue) -> BrokerApi:
        route = self._connection.routes.route(queue.topic)
        return master_of(route, queue.broker, self._connection.transport)
