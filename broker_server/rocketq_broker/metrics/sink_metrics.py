"""The metrics of exactly-once sinks, read from the sink table at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rocketq_broker.metrics.broker_metrics import Measurements
from rocketq_broker.store.sinks.table import SinkTable


class SinkCollector(Collector):
    """Presents the sinks of one broker to a prometheus-client registry."""

    def __init__(
        self, table: Callable[[], SinkTable], calls: Callable[[], int], counted: Measurements
    ) -> None:
        self._table = table
        self._calls = calls
        self._counted = counted

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
        for name, text, value in (
            (
                "rocketq_sink_batches_skipped",
                "Commits that wrote nothing, because their sink was past their number.",
                self._counted.skipped_batches,
            ),
            ("rocketq_sink_rows_skipped", "Rows of those commits.", self._counted.skipped_rows),
        ):
            yield CounterMetricFamily(name, text, value)
