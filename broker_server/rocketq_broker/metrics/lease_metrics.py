"""The metrics of messages that are leased one by one, under the names that RocketMQ has for those of POP.

A group is shown in the topics that it has received from. What a consumer that pulls holds is known to it
alone, so a group that only pulls has no sample here: unknown is not 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rocketq_broker.metrics.broker_metrics import GROUPS_MAX, LABELS, kind_labels, queue_offsets
from rocketq_broker.store.machines.lease_table import LeaseTable
from rocketq_broker.store.store import MessageStore


class TopicLeases(NamedTuple):
    """The messages of a topic that a group holds leased, and those that it may lease for the first time."""

    group: str
    topic: str
    in_flight: int
    ready: int


def topic_leases(store: MessageStore) -> Iterator[TopicLeases]:
    """Yield the leases of every group in every topic it received from; the first GROUPS_MAX groups."""
    table = store.leases.table
    for group, filters in islice(table.filters.items(), GROUPS_MAX):
        committed = {(each.topic, each.queue): each.offset for each in store.group_offsets(group).offsets}
        for topic in filters:
            in_flight = ready = 0
            for queue, ends in enumerate(queue_offsets(store, topic)):
                leases = table.of_queue(group, (topic, queue))
                # Where a group begins in a queue that it neither leased from nor committed is not known.
                first = committed.get((topic, queue), ends.max) if leases is None else leases.next
                in_flight += 0 if leases is None else leases.count
                ready += max(0, ends.max - max(first, ends.min))
            yield TopicLeases(group, topic, in_flight, ready)


class LeaseCollector(Collector):
    """Presents the leases of one broker to a prometheus-client registry."""

    def __init__(
        self,
        cluster: str,
        broker: str,
        table: Callable[[], LeaseTable],
        topics: Callable[[], Iterable[TopicLeases]],
    ) -> None:
        self._node = (cluster, "broker", broker)
        self._table = table
        self._topics = topics

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "rocketq_leased_messages",
            "Messages that are leased one by one and not acknowledged.",
            labels=(*LABELS[:3], "consumer_group"),
        )
        for group, queues in self._table().groups.items():
            family.add_metric((*self._node, group), sum(each.count for each in queues.values()))
        yield family
        in_flight = GaugeMetricFamily(
            "rocketmq_consumer_inflight_messages",
            "Messages of a topic that a group holds leased.",
            labels=(*LABELS, "consumer_group"),
        )
        ready = GaugeMetricFamily(
            "rocketmq_consumer_ready_messages",
            "Messages of a topic that a group which leases has yet to lease for the first time.",
            labels=(*LABELS, "consumer_group"),
        )
        for each in self._topics():
            labels = (*self._node, each.topic, *kind_labels(each.topic), each.group)
            in_flight.add_metric(labels, each.in_flight)
            ready.add_metric(labels, each.ready)
        yield in_flight
        yield ready
