"""What Prometheus is told of exactly-once sinks, read from the table when somebody scrapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rocketq_broker.store.sinks import SinkTable


class SinkCollector(Collector):
    """Presents the sinks of one broker to a prometheus-client registry."""

    def __init__(self, table: Callable[[], SinkTable], calls: Callable[[], int]) -> None:
        self._table = table
        self._calls = calls

    def collect(self) -> Iterator[Metric]:
        table = self._table()
        stages = table.stages.values()
        waiting = [frame for each in table.publishing for frame in each.rest]
        for name, text, value in (
            ("rocketq_sinks", "Sinks that this broker knows.", len(table.sinks)),
            (
                "rocketq_sink_pending_decisions",
                "Decided batches that a participant has yet to publish.",
                sum(len(entry.pending) for entry in table.sinks.values()),
            ),
            ("rocketq_sink_stages", "Batches that are staged here and undecided.", len(stages)),
            (
                "rocketq_sink_staged_bytes",
                "Bytes of log that are staged and undecided.",
                sum(stage.bytes for stage in stages),
            ),
            (
                "rocketq_sink_publishing_bytes",
                "Bytes of log that are decided and not yet copied to their queues.",
                sum(frame.size for frame in waiting),
            ),
            ("rocketq_sink_calls", "Calls about decisions and stages under way.", self._calls()),
        ):
            yield GaugeMetricFamily(name, text, value)
