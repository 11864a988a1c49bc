"""The metrics of a NameServer, read from its state at each scrape."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rocketq_nameserver.nameserver import NameServer


class NameServerCollector(Collector):
    """The metric families of one NameServer."""

    def __init__(self, nameserver: NameServer) -> None:
        self._nameserver = nameserver

    def collect(self) -> Iterator[Metric]:
        server, tallies = self._nameserver, self._nameserver.tallies
        for name, help_text, value in (
            ("brokers", "Broker processes that are alive.", server.table.broker_count),
            ("topics", "Topics that at least one broker serves.", server.table.topic_count),
            ("held_watches", "Calls that wait for a change.", len(server.waiting)),
        ):
            yield GaugeMetricFamily(f"rocketq_nameserver_{name}", help_text, value=value)
        for name, help_text, value in (
            ("registrations", "Full registrations taken.", tallies.registrations),
            (
                "refusals",
                "Registrations refused because another live process has the name.",
                tallies.refusals,
            ),
            ("heartbeats", "Heartbeats answered.", tallies.heartbeats),
            ("unregistrations", "Brokers that left in good order.", tallies.unregistrations),
            ("expiries", "Brokers whose lease ended.", tallies.expiries),
        ):
            yield CounterMetricFamily(f"rocketq_nameserver_{name}", help_text, value=value)
