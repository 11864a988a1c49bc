"""The metrics of consumer groups, under RocketMQ's names (BrokerMetricsConstant).

Their lag in messages is in `broker_metrics`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_NODE: Final = ("cluster", "node_type", "node_id")


class Connected(NamedTuple):
    """What tells kinds of clients apart: their group, language and version."""

    group: str
    language: str
    version: str


class TopicAge(NamedTuple):
    """The age of the oldest message of a topic that a group has yet to commit (ms); 0 if there is none."""

    group: str
    topic: str
    lag_ms: int


class GroupCollector(Collector):
    """Presents the groups of one broker to a prometheus-client registry."""

    def __init__(
        self,
        cluster: str,
        broker: str,
        consumers: Callable[[], Mapping[Connected, int]],
        producers: Callable[[], Mapping[Connected, int]],
        ages: Callable[[], Iterable[TopicAge]],
        held_watches: Callable[[], int],
        dead_letters: Callable[[], Mapping[str, int]],
    ) -> None:
        self._node = (cluster, "broker", broker)
        self._connections = (
            ("rocketmq_consumer_connections", "Members of consumer groups.", "consumer_group", consumers),
            ("rocketmq_producer_connections", "Members of producer groups.", "producer_group", producers),
        )
        self._ages = ages
        self._held_watches = held_watches
        self._dead_letters = dead_letters

    def collect(self) -> Iterator[Metric]:
        for name, text, label, connected in self._connections:
            family = GaugeMetricFamily(name, text, labels=(*_NODE, label, "language", "version"))
            for kind, count in connected().items():
                family.add_metric((*self._node, *kind), count)
            yield family
        ages = GaugeMetricFamily(
            "rocketmq_consumer_lag_latency",
            "Age of the oldest message that a group has yet to commit, in milliseconds.",
            labels=(*_NODE, "topic", "consumer_group"),
        )
        for each in self._ages():
            ages.add_metric((*self._node, each.topic, each.group), each.lag_ms)
        yield ages
        letters = CounterMetricFamily(
            "rocketmq_send_to_dlq_messages",
            "Messages that became dead letters after their last attempt.",
            labels=(*_NODE, "consumer_group"),
        )
        for group, messages in self._dead_letters().items():
            letters.add_metric((*self._node, group), messages)
        yield letters
        yield GaugeMetricFamily("rocketq_held_watches", "Watches of members that wait.", self._held_watches())
