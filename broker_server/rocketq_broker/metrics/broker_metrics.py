"""What the broker counts, and how it tells Prometheus.

Counting happens on every send and pull, so it is adding to plain integers on the
loop's thread; the metric families are only built when somebody scrapes. Names and labels
of traffic are RocketMQ's (BrokerMetricsConstant), so that boards made for it fit;
what is only ours is called `rocketq_…`.

Labels never grow with what strangers send: topics are those that exist, and of
consumer groups, which any caller may name, the first `GROUPS_MAX` are told apart
and the rest are counted together under an empty name.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

import numpy as np
import numpy.typing as npt
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from rocketq.errors import TopicNotFound
from rocketq.model import QueueOffsets, TransactionState
from rocketq.protocol.rules.reserved_names import is_retry_topic, is_system_topic
from rocketq_broker.store.store import MessageStore, Outcome, StoreStatistics
from rocketq_broker.store.upkeep.clock_trust import Doubt


@dataclass(frozen=True, slots=True, eq=False)
class BodySizes:
    """The bodies of one admitted batch: the size of each, and what is mostly enough to know of them."""

    each: npt.NDArray[np.int32]
    count: int
    total: int
    smallest: int
    largest: int


GROUPS_MAX: Final = 10_000

#: RocketMQ's buckets of message_size.
_SIZE_BOUNDS: Final = (1024, 4096, 512 * 1024, 1 << 20, 2 << 20, 4 << 20)
_SECONDS_BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

LABELS: Final = ("cluster", "node_type", "node_id", "topic", "message_type", "is_retry", "is_system")


class Distribution:
    """A histogram of plain integers; `bounds` are inclusive upper ends."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def observe_sizes(self, sizes: BodySizes) -> None:
        """Count a whole batch; mostly all of its bodies fall into one bucket, and no array is touched."""
        first, last = bisect_left(self._bounds, sizes.smallest), bisect_left(self._bounds, sizes.largest)
        if first == last:
            self._counts[first] += sizes.count
        else:
            places = np.searchsorted(self._bounds, sizes.each, side="left")
            for at, count in enumerate(np.bincount(places)):
                self._counts[at] += int(count)
        self._sum += sizes.total

    def buckets(self) -> list[tuple[str, float]]:
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self._counts)), strict=True))

    @property
    def sum(self) -> float:
        return self._sum


@dataclass(slots=True)
class Traffic:
    """Messages and bytes one way."""

    messages: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class TopicLag:
    """How many messages of a topic a group has yet to commit, in the queues it ever committed."""

    group: str
    topic: str
    messages: int


@dataclass(slots=True)
class Gauges:
    """What is read at the moment of a scrape."""

    held_calls: Callable[[], int]
    in_flight_bytes: Callable[[], int]
    outgoing_bytes: Callable[[], int]
    decoded_bytes: Callable[[], int]
    permission: Callable[[], int]
    store: Callable[[], StoreStatistics]
    lags: Callable[[], Iterable[TopicLag]]


@dataclass(slots=True)
class Measurements:
    """All counters of one broker."""

    incoming: dict[str, Traffic] = field(default_factory=dict)
    outgoing: dict[tuple[str, str], Traffic] = field(default_factory=dict)
    message_size: Distribution = field(default_factory=lambda: Distribution(_SIZE_BOUNDS))
    append_seconds: Distribution = field(default_factory=lambda: Distribution(_SECONDS_BOUNDS))
    send_seconds: Distribution = field(default_factory=lambda: Distribution(_SECONDS_BOUNDS))
    refusals: dict[str, int] = field(default_factory=dict)
    #: Batches of sinks that a commit named again and skipped, and their rows.
    skipped_batches: int = 0
    skipped_rows: int = 0
    #: Half messages that were committed and rolled back, by topic.
    committed: dict[str, int] = field(default_factory=dict)
    rolled_back: dict[str, int] = field(default_factory=dict)
    #: Messages that became dead letters, by group.
    dead_letters: dict[str, int] = field(default_factory=dict)
    #: Bytes of frames that were handed out while this broker was a slave.
    slave_read_bytes: int = 0

    def decided(self, outcome: Outcome) -> None:
        """Count the half messages of a transaction that was committed or rolled back."""
        counted = self.committed if outcome.state is TransactionState.COMMIT else self.rolled_back
        for topic, messages in outcome.messages.items():
            counted[topic] = counted.get(topic, 0) + messages

    def dead_letters_stored(self, group: str, messages: int) -> None:
        """Count messages of a group that became dead letters."""
        key = group if group in self.dead_letters or len(self.dead_letters) < GROUPS_MAX else ""
        self.dead_letters[key] = self.dead_letters.get(key, 0) + messages

    def sent(self, topic: str, sizes: list[BodySizes]) -> None:
        """Count the batches of one accepted send."""
        traffic = self.incoming.get(topic)
        if traffic is None:
            traffic = self.incoming[topic] = Traffic()
        for size in sizes:
            traffic.messages += size.count
            traffic.bytes += size.total
            self.message_size.observe_sizes(size)

    def sent_one(self, topic: str, size: int) -> None:
        """Count an accepted send of one message with a body of `size` bytes."""
        traffic = self.incoming.get(topic)
        if traffic is None:
            traffic = self.incoming[topic] = Traffic()
        traffic.messages += 1
        traffic.bytes += size
        self.message_size.observe(size)

    def pulled(self, topic: str, group: str, messages: int, size: int) -> None:
        """Count one answer that carried messages; `size` is that of its frames."""
        key = (topic, group)
        traffic = self.outgoing.get(key)
        if traffic is None:
            if len(self.outgoing) >= GROUPS_MAX:
                key = (topic, "")
            traffic = self.outgoing.setdefault(key, Traffic())
        traffic.messages += messages
        traffic.bytes += size

    def refused(self, code: str) -> None:
        self.refusals[code] = self.refusals.get(code, 0) + 1

    def batch_skipped(self, rows: int) -> None:
        """Count a commit whose batch a sink had decided before, or was past, and which wrote nothing."""
        self.skipped_batches += 1
        self.skipped_rows += rows

    def forget_topic(self, topic: str) -> None:
        """Drop the series of a deleted topic."""
        for counted in (self.incoming, self.committed, self.rolled_back):
            counted.pop(topic, None)
        for key in [key for key in self.outgoing if key[0] == topic]:
            del self.outgoing[key]


class BrokerCollector(Collector):
    """Presents `Measurements` to a prometheus-client registry."""

    def __init__(self, cluster: str, broker: str, counted: Measurements, gauges: Gauges) -> None:
        self._node = (cluster, "broker", broker)
        self._counted = counted
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        yield from self._traffic()
        counted = self._counted
        size = HistogramMetricFamily(
            "rocketmq_message_size", "Size of message bodies, in bytes.", labels=LABELS[:3]
        )
        size.add_metric(self._node, counted.message_size.buckets(), counted.message_size.sum)
        yield size
        for name, text, seconds in (
            (
                "rocketq_append_seconds",
                "From handing to the log writer to its answer.",
                counted.append_seconds,
            ),
            ("rocketq_send_seconds", "From a send's headers to its answer.", counted.send_seconds),
        ):
            family = HistogramMetricFamily(name, text)
            family.add_metric((), seconds.buckets(), seconds.sum)
            yield family
        refusals = CounterMetricFamily(
            "rocketq_refusals", "Calls of the data plane that were refused.", labels=("code",)
        )
        for code, count in list(counted.refusals.items()):
            refusals.add_metric((code,), count)
        yield refusals
        yield from self._read_gauges()

    def _traffic(self) -> Iterator[Metric]:
        words = (
            ("messages_in", "Messages accepted.", "messages"),
            ("throughput_in", "Bytes of bodies accepted.", "bytes"),
        )
        for name, text, what in words:
            family = CounterMetricFamily(f"rocketmq_{name}", text, labels=LABELS)
            for topic, traffic in list(self._counted.incoming.items()):
                family.add_metric((*self._node, topic, *kind_labels(topic)), getattr(traffic, what))
            yield family
        words = (
            ("messages_out", "Messages handed out.", "messages"),
            ("throughput_out", "Bytes of frames handed out.", "bytes"),
        )
        for name, text, what in words:
            family = CounterMetricFamily(f"rocketmq_{name}", text, labels=(*LABELS, "consumer_group"))
            for (topic, group), traffic in list(self._counted.outgoing.items()):
                family.add_metric((*self._node, topic, *kind_labels(topic), group), getattr(traffic, what))
            yield family

    def _read_gauges(self) -> Iterator[Metric]:
        gauges = self._gauges
        permission = GaugeMetricFamily(
            "rocketmq_broker_permission", "6 while the broker reads and writes.", labels=LABELS[:3]
        )
        permission.add_metric(self._node, gauges.permission())
        yield permission
        lag = GaugeMetricFamily(
            "rocketmq_consumer_lag_messages",
            "Messages a group has yet to commit, in the queues it ever committed.",
            labels=(*LABELS, "consumer_group"),
        )
        for each in gauges.lags():
            lag.add_metric((*self._node, each.topic, *kind_labels(each.topic), each.group), each.messages)
        yield lag
        store = gauges.store()
        for name, text, value in (
            ("rocketq_held_calls", "Calls that wait for messages.", gauges.held_calls()),
            (
                "rocketq_in_flight_bytes",
                "Bodies being received, checked or written.",
                gauges.in_flight_bytes(),
            ),
            ("rocketq_outgoing_bytes", "Answers not taken by their clients yet.", gauges.outgoing_bytes()),
            ("rocketq_decoded_bytes", "Claimed for what is inflated.", gauges.decoded_bytes()),
            ("rocketq_writer_queue_bytes", "Bytes that wait for the log writer.", store.queued_bytes),
            ("rocketq_log_bytes", "Bytes of log that are kept.", store.log_end - store.log_begin),
            (
                "rocketq_undurable_bytes",
                "Bytes of log not known to be on disk.",
                store.log_end - store.durable_end,
            ),
            (
                "rocketq_index_lag_bytes",
                "Bytes of log not yet in the key index.",
                max(0, store.log_end - store.index_position),
            ),
            ("rocketq_index_holes", "Parts of the log that the key index cannot read.", store.index_holes),
            ("rocketq_index_hole_bytes", "Bytes of log in these parts.", store.index_hole_bytes),
            (
                "rocketq_clock_doubted",
                "1 while the wall clock is not believed and nothing is deleted by age.",
                int(store.clock.doubt is not Doubt.NONE),
            ),
            (
                "rocketq_clock_ahead_seconds",
                "By how much the wall clock has stepped ahead of the machine's own count of time.",
                store.clock.ahead_us / 1_000_000,
            ),
            ("rocketq_topics", "Topics of this broker.", store.topics),
            ("rocketq_queues", "Queues that ever had a message.", store.queues),
            ("rocketq_open_files", "Open files of the store.", store.open_files),
        ):
            yield GaugeMetricFamily(name, text, value)
        yield from _store_counters(store)


def _store_counters(store: StoreStatistics) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "rocketq_consume_queue_blocks_rebuilt",
        "Blocks of damaged ConsumeQueue units that were built again from the log.",
        store.rebuilt_blocks,
    )
    yield CounterMetricFamily("rocketq_group_commits", "Groups of writes committed.", store.commits)
    yield CounterMetricFamily(
        "rocketq_repeated_sends", "Numbered sends that came again and were stored once.",
        value=store.repeated_sends,
    )  # fmt: skip
    yield GaugeMetricFamily(
        "rocketq_send_slots", "Slots of numbered sends that are remembered, at most.", value=store.slots
    )


def group_lags(store: MessageStore) -> Iterator[TopicLag]:
    """Yield the lag of every group in every topic it has committed; the first GROUPS_MAX groups."""
    for group in store.groups()[:GROUPS_MAX]:
        lags: dict[str, int] = {}
        ends: dict[str, tuple[QueueOffsets, ...]] = {}
        for each in store.group_offsets(group).offsets:
            if each.topic not in ends:
                ends[each.topic] = queue_offsets(store, each.topic)
            if each.queue < len(ends[each.topic]):
                behind = max(0, ends[each.topic][each.queue].max - each.offset)
                lags[each.topic] = lags.get(each.topic, 0) + behind
        for topic, messages in lags.items():
            yield TopicLag(group, topic, messages)


def queue_offsets(store: MessageStore, topic: str) -> tuple[QueueOffsets, ...]:
    """Return where each queue of a topic begins and ends; nothing for a topic that is not there."""
    try:
        return store.offsets(topic).queues
    except TopicNotFound:
        # Deleted between two looks at the store.
        return ()


def kind_labels(topic: str) -> tuple[str, str, str]:
    """Return the labels message_type, is_retry and is_system of a topic."""
    return "normal", str(is_retry_topic(topic)).lower(), str(is_system_topic(topic)).lower()
