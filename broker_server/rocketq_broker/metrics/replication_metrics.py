"""The metrics of a broker that is one of several replicas. There are none for a group of one broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from rocketq.protocol.documents.replication import ReplicationStatus

LABELS: Final = ("cluster", "node_type", "node_id", "replica")


class ReplicationCollector(Collector):
    """Presents what `GET /v1/replication` says."""

    def __init__(
        self,
        cluster: str,
        broker: str,
        status: Callable[[], ReplicationStatus | None],
        slave_read_bytes: Callable[[], int],
    ) -> None:
        self._node = (cluster, "broker", broker)
        self._status = status
        self._slave_read_bytes = slave_read_bytes

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        if status is None:
            return
        in_sync = sum(each.is_in_sync for each in status.replicas)
        me, is_master = str(status.number), status.role == "master"
        for name, text, value in (
            ("rocketq_replica_is_master", "1 if this broker is the master of its group.", is_master),
            ("rocketq_replica_epoch", "The epoch of the group, as this broker knows it.", status.epoch),
            ("rocketq_replica_in_sync", "Replicas in sync, the master included.", in_sync),
            ("rocketq_replica_min_in_sync", "How many must be, to confirm anything.", status.min_in_sync),
            (
                "rocketq_replica_unconfirmed_bytes",
                "Bytes of this broker's log that are not confirmed.",
                max(0, status.end - status.confirmed),
            ),
            (
                "rocketq_replica_damaged_parts",
                "Parts of this broker's log that are damaged and not healed.",
                status.damaged,
            ),
        ):  # fmt: skip
            gauge = GaugeMetricFamily(name, text, labels=LABELS)
            gauge.add_metric((*self._node, me), value)
            yield gauge
        yield from self._counters(status)
        if not is_master:
            return
        lag = GaugeMetricFamily(
            "rocketq_replica_lag_bytes",
            "Bytes of the log that a slave does not hold.",
            labels=LABELS,
        )
        behind = GaugeMetricFamily(
            "rocketq_replica_behind_seconds",
            "How long a slave has not caught up.",
            labels=LABELS,
        )
        for each in status.replicas:
            if each.number != status.number:
                node = (*self._node, str(each.number))
                # What is not known has no value: a 0 would say that the slave has caught up.
                if each.held >= 0:
                    lag.add_metric(node, max(0, status.end - each.held))
                if each.behind_ms is not None:
                    behind.add_metric(node, each.behind_ms / 1000)
        yield lag
        yield behind

    def _counters(self, status: ReplicationStatus) -> Iterator[Metric]:
        for name, text, value in (
            ("rocketq_replica_healed_parts", "Damaged parts healed from other replicas.", status.healed),
            ("rocketq_replica_healed_bytes", "Bytes of these parts.", status.healed_bytes),
            ("rocketq_replica_scrubbed_bytes", "Bytes read to look for damage.", status.scrubbed_bytes),
            (
                "rocketq_replica_fetched_bytes",
                "Bytes of the log that this broker has fetched as a slave.",
                status.fetched_bytes,
            ),
            (
                "rocketq_replica_slave_read_bytes",
                "Bytes of frames handed to consumers while this broker was a slave.",
                self._slave_read_bytes(),
            ),
        ):
            counter = CounterMetricFamily(name, text, labels=LABELS)
            counter.add_metric((*self._node, str(status.number)), value)
            yield counter
