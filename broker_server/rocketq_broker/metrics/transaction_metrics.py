"""The metrics of transactional messages, with the names and labels of RocketMQ (BrokerMetricsConstant)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rocketq_broker.metrics.broker_metrics import LABELS, Measurements, kind_labels
from rocketq_broker.store.machines.transaction_table import TransactionTable


class TransactionCollector(Collector):
    """Presents the transactions of one broker to a prometheus-client registry."""

    def __init__(
        self,
        cluster: str,
        broker: str,
        table: Callable[[], TransactionTable],
        counted: Measurements,
        waiting: Callable[[], int],
    ) -> None:
        self._node = (cluster, "broker", broker)
        self._table = table
        self._counted = counted
        self._waiting = waiting

    def collect(self) -> Iterator[Metric]:
        table = self._table()
        half = GaugeMetricFamily(
            "rocketmq_half_messages", "Messages of undecided transactions.", labels=LABELS[:3]
        )
        half.add_metric(self._node, table.half_messages)
        yield half
        for name, text, counted in (
            ("rocketmq_commit_messages", "Half messages that were committed.", self._counted.committed),
            ("rocketmq_rollback_messages", "Half messages that were rolled back.", self._counted.rolled_back),
        ):
            family = CounterMetricFamily(name, text, labels=LABELS)
            for topic, messages in list(counted.items()):
                family.add_metric((*self._node, topic, *kind_labels(topic)), messages)
            yield family
        for name, text, value in (
            ("rocketq_open_transactions", "Transactions that are undecided.", len(table.open)),
            ("rocketq_parked_transactions", "Undecided ones that wait for an operator.", len(table.parked)),
            ("rocketq_check_calls", "Calls of producers that wait for a check.", self._waiting()),
        ):
            yield GaugeMetricFamily(name, text, value)
