"""The metric of the store's troubles (`MessageStore.troubles`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector


class TroubleCollector(Collector):
    """Presents each task in trouble to a prometheus-client registry."""

    def __init__(self, troubles: Callable[[], Mapping[str, str]]) -> None:
        self._troubles = troubles

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "rocketq_store_troubles",
            "1 for each task of the store that met damaged data, or no room, when it last ran.",
            labels=("task",),
        )
        for task in self._troubles():
            family.add_metric((task,), 1)
        yield family
