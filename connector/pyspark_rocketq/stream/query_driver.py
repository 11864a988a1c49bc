"""The driver's side of one running query: what it looks at, waits for and decides with.

Every call may be repeated: only the checkpoint counts. Besides, this remembers only what makes the next
answer quicker (routes, watches, sizes) and where an AvailableNow run ends.

A broker that is away does not stop the others; if all are away for `brokerWaitMs`, the query fails. A run
with an end (AvailableNow, once) needs every broker, and waits `brokerWaitMs` for each.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark_rocketq.connections import Connection, TopicOnBroker
from pyspark_rocketq.errors import DataLost, by_topic
from pyspark_rocketq.options.options import BatchLimits, SourceOptions
from pyspark_rocketq.options.position_syntax import Edge
from pyspark_rocketq.read.batch_reader import located, size_not_needed
from pyspark_rocketq.read.partitions import QueueRange, Ranges, plan_partitions
from pyspark_rocketq.stream.batch_limits import BatchDelay, Limit, admit
from pyspark_rocketq.stream.group_reporter import GroupReporter
from pyspark_rocketq.stream.offset import StreamOffset, batch_ranges
from pyspark_rocketq.stream.offset_comparison import Comparison, compare, end_offset, lifted
from pyspark_rocketq.survey.broker_survey import (
    FullSurvey,
    losses_by_record,
    require_found,
    survey_all,
    warn_of_unrecorded,
)
from pyspark_rocketq.survey.message_size import BytesPerMessage, MessageSizes
from pyspark_rocketq.survey.offset_watch import OffsetWatch
from pyspark_rocketq.survey.outages import Outages
from pyspark_rocketq.survey.position_lookup import look_up, resolve
from pyspark_rocketq.survey.subscription import Survey, Topology, find_topology, require_assigned
from rocketq.errors import RocketqError
from rocketq.model import MessageQueue, QueueOffsets
from rocketq.net.broker_api import BrokerApi, master_of

log = logging.getLogger("pyspark_rocketq")

#: The greatest age of the topology; when it is older, brokers and topics are looked up again.
PLACES_MS: Final = 2_000
#: How long the end of a run waits for its offsets to reach the group.
REPORT_WAIT_MS: Final = 1_000
#: After a wake-up without news for this query, wait this long.
FALSE_ALARM_PAUSE_MS: Final = 20


@dataclass(frozen=True, slots=True)
class Target:
    """Where a run with an end ends: no queue is read further, no later queue joins.

    `known`: the (topic, broker) pairs that were asked.
    """

    ends: Mapping[MessageQueue, int]
    known: frozenset[TopicOnBroker]

    def clip(self, survey: Survey) -> Survey:
        ranges = {
            queue: QueueOffsets(held.min, max(held.min, min(held.max, self.ends[queue])))
            for queue, held in survey.ranges.items()
            if queue in self.ends
        }
        return replace(survey, ranges=ranges)

    def reached(self, comparison: Comparison) -> bool:
        """Whether every queue that cannot be read now has reached its end."""
        return not any(comparison.backlogs[queue][0] < self.ends.get(queue, 0) for queue in comparison.still)


class QueryDriver:
    """The driver's side of one running query."""

    def __init__(self, options: SourceOptions, connection: Connection) -> None:
        self._options = options
        self._connection = connection
        self._topology = Topology()
        #: What a checkpoint named when the topology was looked up, and when that was.
        self._named: frozenset[TopicOnBroker] = frozenset()
        self._topology_at = float("-inf")
        self._watch = OffsetWatch()
        self._delay = BatchDelay(options.limits)
        self._message_sizes = MessageSizes()
        self._target: Target | None = None
        self._outages = Outages(options.broker_wait_ms)
        #: Warnings already given; a query polls twice a second.
        self._warned: set[str] = set()
        self._reporter: GroupReporter | None = None
        if options.group is not None and options.commit_group_offsets:
            self._reporter = GroupReporter(options.group, self._broker_of)
        self._latest_seen: StreamOffset | None = None

    def initial_offset(self) -> StreamOffset:
        """Resolve `startingOffsets`.

        Every broker must answer within `brokerWaitMs`: its queues would later be taken for new ones, and read
        from their first message. For `earliest`, one broker is enough.
        """
        options = self._options
        earliest = options.starting is Edge.EARLIEST
        full = self._survey(any_is_enough=earliest)
        full = full.require_any() if earliest else full.require_all()
        require_found(self._connection, options.subscription, full)
        require_assigned(options.subscription, full.topology)
        for loss in losses_by_record(full.survey):
            # Only a warning: this query has read nothing yet.
            log.warning("%s %s", loss.message, loss.hint)
        positions = resolve(
            options.starting,
            "startingOffsets",
            full.survey,
            look_up(options.starting, full.topology.places, full.survey, options),
            fail_on_data_loss=options.fail_on_data_loss,
        )
        return StreamOffset(positions, positions, full.survey.incarnations)

    def fix_target(self) -> None:
        """Remember what there is now as all that this run reads; every broker must answer."""
        full = self._survey().require_all()
        for loss in losses_by_record(full.survey):
            self._raise_or_log(loss)
        known = {*full.survey.incarnations, *full.survey.gone}
        self._target = Target(
            {queue: held.max for queue, held in full.survey.ranges.items()}, frozenset(known)
        )

    def latest_offset(self, start: StreamOffset, unlimited: bool) -> StreamOffset | None:
        """Return the end of the next batch, or None after waiting a while in vain.

        `unlimited`: one batch with all that there is; such a run has an end.
        """
        if self._reporter is not None:
            self._reporter.report(start.positions)
        if unlimited and self._target is None:
            self.fix_target()
        self._extend_target(start)
        give_up_at = time.monotonic() + self._options.long_poll_ms / 1000
        comparison, wakes = self._compare(start), 0
        while not self._is_due(comparison, unlimited):
            left_ms = int((give_up_at - time.monotonic()) * 1000)
            if self._target is not None and not self._target.reached(comparison):
                # The rest is on a broker that is away; `endure` raises if it stays away.
                left_ms = max(left_ms, FALSE_ALARM_PAUSE_MS)
                needed = {(queue.topic, queue.broker) for queue in comparison.still}
                self._outages.endure(needed, time.monotonic())
            elif left_ms <= 0 or self._target is not None:
                # A run with a target is over when there is nothing more.
                if self._reporter is not None:
                    self._reporter.flush(REPORT_WAIT_MS)
                return None
            if wakes:
                # What woke us was not for this query, or not enough of it.
                time.sleep(min(FALSE_ALARM_PAUSE_MS, left_ms) / 1000)
            self._await_news(left_ms, comparison.waiting)
            comparison, wakes = self._compare(start), wakes + 1
        return self._end_of_batch(start, comparison, unlimited)

    def partitions(self, start: StreamOffset, end: StreamOffset) -> list[Ranges]:
        """Return the partitions of a batch, cut as asked."""
        places = self._find_topology(PLACES_MS, _named_by(end)).places
        whole = [
            located(QueueRange(queue, begin, last), places, end.incarnations)
            for queue, (begin, last) in batch_ranges(start, end).items()
        ]
        bytes_per_message: BytesPerMessage = size_not_needed
        if self._options.splitting.max_bytes is not None:
            bytes_per_message = self._message_sizes.measure({one.queue: one.begin for one in whole}, places)
        return plan_partitions(whole, self._options.splitting, bytes_per_message)

    def seen(self) -> dict[str, Any] | None:
        """Return the newest offsets seen, as JSON, with the brokers that are away; None at first."""
        if self._latest_seen is None:
            return None
        away = {topic: list(brokers) for topic, brokers in by_topic(self._outages.away).items()}
        return self._latest_seen.to_json() | ({"away": away} if away else {})

    def close(self) -> None:
        if self._reporter is not None:
            self._reporter.flush(REPORT_WAIT_MS)
        self._watch.close()

    # --- inside ------------------------------------------------------------------

    def _survey(self, named: Collection[TopicOnBroker] = (), any_is_enough: bool = False) -> FullSurvey:
        options = self._options
        full = survey_all(
            self._connection,
            options.subscription,
            options.broker_wait_ms,
            named=named,
            any_is_enough=any_is_enough,
        )
        self._warn_of_unrecorded(full.topology)
        return full

    def _extend_target(self, start: StreamOffset) -> None:
        """Add brokers to the target that only the checkpoint names; they must answer too."""
        if self._target is None:
            return
        unknown = _named_by(start) - self._target.known
        if unknown:
            full = self._survey(named=_named_by(start)).require_all()
            ends = {
                queue: held.max
                for queue, held in full.survey.ranges.items()
                if (queue.topic, queue.broker) in unknown
            }
            self._target = Target({**self._target.ends, **ends}, self._target.known | unknown)

    def _compare(self, start: StreamOffset) -> Comparison:
        """Learn what there is now and compare; raise DataLost as `failOnDataLoss` says."""
        topology = self._find_topology(PLACES_MS, _named_by(start))
        self._watch.refresh(topology.places)
        found = self._watch.survey()
        survey = lifted(replace(found, gone={**topology.gone, **found.gone}), topology.places, start)
        self._outages.see({**topology.away, **self._watch.failures()}, survey, time.monotonic())
        for topic in {topic for topic, _ in survey.gone} - {topic for topic, _ in survey.incarnations}:
            self._connection.routes.forget(topic)
        if self._target is not None:
            survey = self._target.clip(survey)
        comparison = compare(start, survey)
        for loss in comparison.losses:
            self._raise_or_log(loss)
        self._warn_of_unsubscribed(comparison, topology)
        self._latest_seen = StreamOffset({queue: last for queue, (_, last) in comparison.backlogs.items()})
        return comparison

    def _raise_or_log(self, loss: DataLost) -> None:
        """Raise a loss, or log it once, as `failOnDataLoss` says."""
        if self._options.fail_on_data_loss:
            raise loss
        if loss.message not in self._warned:
            self._warned.add(loss.message)
            log.warning("Going on after a loss (failOnDataLoss=false): %s", loss.message)

    def _is_due(self, comparison: Comparison, unlimited: bool) -> bool:
        now_ms = time.monotonic_ns() // 1_000_000
        if self._target is None:
            return self._delay.is_due(comparison.waiting, now_ms)
        # A single batch needs every broker; with several, a later one can read it.
        return comparison.waiting > 0 and (not unlimited or self._target.reached(comparison))

    def _await_news(self, left_ms: int, waiting: int) -> None:
        """Wait for a broker's word, or for small batches to become due."""
        seen = self._watch.version
        self._watch.hold()
        due_ms = self._delay.due_in_ms(time.monotonic_ns() // 1_000_000) if waiting else None
        self._watch.wait(seen, left_ms if due_ms is None else min(left_ms, due_ms))

    def _end_of_batch(self, start: StreamOffset, comparison: Comparison, unlimited: bool) -> StreamOffset:
        limits = BatchLimits() if unlimited else self._options.limits
        limit = Limit(limits.max_rows, limits.max_bytes)
        bytes_per_message: BytesPerMessage = size_not_needed
        if limit.bytes is not None:
            lagging = {q: first for q, (first, last) in comparison.backlogs.items() if first < last}
            bytes_per_message = self._message_sizes.measure(lagging, self._topology.places)
        ends = admit(comparison.backlogs, limit, bytes_per_message)
        return end_offset(start, comparison, ends)

    def _find_topology(self, max_age_ms: int, named: frozenset[TopicOnBroker]) -> Topology:
        """Return where the queues are.

        Look again if that is older than `max_age_ms`; keep the old answer if the look fails.
        """
        now = time.monotonic()
        usable = bool(self._topology.places or self._topology.away)
        if usable and named <= self._named and (now - self._topology_at) * 1000 < max_age_ms:
            return self._topology
        try:
            self._topology = find_topology(self._connection, self._options.subscription, named)
            self._named = named
        except RocketqError as error:
            if not usable:
                raise
            log.warning("Topics and brokers are not looked up for now: %s", error.message)
        self._topology_at = now
        self._warn_of_unrecorded(self._topology)
        return self._topology

    def _warn_of_unrecorded(self, topology: Topology) -> None:
        new = {topic for topic in topology.unrecorded if f"unrecorded {topic}" not in self._warned}
        self._warned |= {f"unrecorded {topic}" for topic in new}
        warn_of_unrecorded(new)

    def _warn_of_unsubscribed(self, comparison: Comparison, topology: Topology) -> None:
        """Say once which queues of the checkpoint stand still although no broker is away."""
        known = {*topology.places, *topology.away, *topology.gone}
        for topic, broker in sorted({(queue.topic, queue.broker) for queue in comparison.still} - known):
            if (warning := f"unsubscribed {topic}/{broker}") not in self._warned:
                self._warned.add(warning)
                log.warning(
                    "Queues of topic %s on broker %s stand still: the checkpoint names them, and the query "
                    "does not subscribe to them or the topic's perm does not let it read.",
                    topic,
                    broker,
                )

    def _broker_of(self, queue: MessageQueue) -> BrokerApi:
        route = self._connection.routes.route(queue.topic)
        return master_of(route, queue.broker, self._connection.transport)


def _named_by(offset: StreamOffset) -> frozenset[TopicOnBroker]:
    """Return the topics on brokers that an offset names."""
    return frozenset((queue.topic, queue.broker) for queue in offset.positions)
