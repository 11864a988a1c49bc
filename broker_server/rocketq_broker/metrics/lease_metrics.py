"""The metrics of messages that are leased one by one. RocketMQ counts the messages of POP in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rocketq_broker.metrics.broker_metrics import LABELS
from rocketq_broker.store.machines.lease_table import LeaseTable


class LeaseCollector(Collector):
    """Presents the leases of one broker to a prometheus-client registry."""

    def __init__(self, cluster: str, broker: str, table: Callable[[], LeaseTable]) -> None:
        self._node = (cluster, "broker", broker)
        self._table = table

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "rocketq_leased_messages",
            "Messages that are leased one by one and not acknowledged.",
            labels=(*LABELS[:3], "consumer_group"),
        )
        for group, queues in self._table().groups.items():
            family.add_metric((*self._node, group), sum(each.count for each in queues.values()))
        yield family
