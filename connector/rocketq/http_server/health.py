"""The endpoints an operator and an orchestrator need.

    /livez     200 while the process can answer at all: restart it if not
    /readyz    200 when it can do its work, else 503 and what is missing: send it no calls until then.
               "degraded" is ready with troubles, which it names and an operator looks at
    /metrics   Prometheus text, or OpenMetrics if the scraper asks for that
    /version   which software, and which version of the protocol

Every service has a registry of its own, never the global one, so that several in one
process (tests) do not mix their numbers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from importlib.metadata import version
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

from rocketq.http_server.body_types import gives
from rocketq.http_server.connection.limits import ConnectionCounts
from rocketq.http_server.permissions import Permission, Resource, declare
from rocketq.protocol.documents.broker import BrokerVersion

#: Returns what keeps the service from being ready, by name; empty when it is.
Readiness = Callable[[], Awaitable[dict[str, str]]]


async def no_troubles() -> dict[str, str]:
    """Return the troubles of a service that knows none."""
    return {}


def add_operations(
    app: FastAPI,
    service: str,
    ready: Readiness,
    registry: CollectorRegistry,
    connections: ConnectionCounts | None = None,
    troubles: Readiness = no_troubles,
) -> None:
    """Add /, /livez, /readyz, /metrics and /version to an app.

    `troubles` are what a service that is ready does not do as it should, by name.
    `connections` are shown among the metrics; the runner counts into those that it finds
    as `connection_counts` of the app that it serves.
    """
    ProcessCollector(registry=registry)
    if connections is not None:
        registry.register(_Connections(connections))

    @app.get("/", tags=["operations"])
    @declare(Permission.METRICS, Resource.CLUSTER)
    async def root() -> dict[str, str]:
        """What this is, and where to go on."""
        return {
            "service": f"rocketq {service}",
            "version": version("rocketq"),
            "docs": "/docs",
            "openapi": "/openapi.json",
            "ready": "/readyz",
            "metrics": "/metrics",
        }

    @app.get("/livez", tags=["operations"])
    @declare(Permission.METRICS, Resource.CLUSTER)
    async def livez() -> dict[str, str]:
        """Whether the process can answer."""
        return {"status": "alive"}

    @app.get("/readyz", tags=["operations"])
    @declare(Permission.METRICS, Resource.CLUSTER)
    async def readyz() -> Response:
        """Whether it can do its work; 503 says what is missing."""
        missing, troubled = await ready(), await troubles()
        status = "not ready" if missing else "degraded" if troubled else "ready"
        document: dict[str, Any] = {"status": status, "missing": missing, "troubles": troubled}
        return json_response(document, 503 if missing else 200)

    @app.get("/metrics", tags=["operations"])
    @declare(Permission.METRICS, Resource.CLUSTER)
    async def metrics(request: Request) -> Response:
        """All metrics of this process."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"content-type": content_type})

    @app.get("/version", tags=["operations"])
    @gives(BrokerVersion)
    @declare(Permission.METRICS, Resource.CLUSTER)
    async def service_version() -> Response:
        """Which software this is, and which version of the protocol it speaks."""
        return json_response(BrokerVersion(service, version("rocketq")))


def json_response(value: object, status: int = 200) -> Response:
    """Return a protocol value as JSON: msgspec writes it many times faster than FastAPI would."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


class _Connections(Collector):
    """The counts of a server's connections as metrics, made when somebody scrapes."""

    def __init__(self, counts: ConnectionCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("rocketq_connections", "Open connections.", value=self._counts.open)
        cut = CounterMetricFamily(
            "rocketq_connections_cut", "Connections that this server ended, by reason.", labels=["reason"]
        )
        for reason, count in self._counts.cut.items():
            cut.add_metric([reason.value], count)
        yield cut
