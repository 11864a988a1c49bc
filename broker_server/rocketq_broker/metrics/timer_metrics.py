"""The metrics of delayed messages, under RocketMQ's names (TimerMessageStore, BrokerMetricsConstant)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from rocketq_broker.store.timer_operations import TimerStatistics


class TimerCollector(Collector):
    """Presents the timer's statistics to a prometheus-client registry."""

    def __init__(self, cluster: str, broker: str, statistics: Callable[[], TimerStatistics]) -> None:
        self._node = (cluster, "broker", broker)
        self._statistics = statistics

    def collect(self) -> Iterator[Metric]:
        timer = self._statistics()
        labels = ("cluster", "node_type", "node_id")
        for name, text, value in (
            (
                "rocketmq_timing_messages",
                "Delayed messages that are still to be delivered.",
                timer.outstanding,
            ),
            (
                "rocketmq_timer_dequeue_latency",
                "Milliseconds since the next delayed message was due; up to 100 is no delay.",
                timer.behind_ms,
            ),
        ):
            gauge = GaugeMetricFamily(name, text, labels=labels)
            gauge.add_metric(self._node, value)
            yield gauge
        for name, text, value in (
            (
                "rocketmq_timer_enqueue",
                "Delayed messages that were stored, since the start.",
                timer.scheduled,
            ),
            (
                "rocketmq_timer_dequeue",
                "Delayed messages that were delivered, since the start.",
                timer.delivered,
            ),
        ):
            counter = CounterMetricFamily(name, text, labels=labels)
            counter.add_metric(self._node, value)
            yield counter
