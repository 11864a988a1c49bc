"""The endpoints an operator and an orchestrator need: alive, ready, metrics, version."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from rocketq.protocol.calls import BrokerVersion
from rocketq.service.routes import Permission, Resource, declare

#: Returns what keeps the service from being ready, by name; empty when it is.
Readiness = Callable[[], dict[str, str]]


def add_operations(app: FastAPI, service: str, ready: Readiness, registry: CollectorRegistry) -> None:
    """Add /livez, /readyz, /metrics and /version to an app."""

    @app.get("/livez", tags=["operations"])
    @declare(Permission.METRICS, Resource.CLUSTER)
    async def livez() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/readyz", tags=["operations"])
    @declare(Permission.METRICS, Resource.CLUSTER)
    async def readyz() -> JSONResponse:
        missing = ready()
        document: dict[str, Any] = {"status": "not ready" if missing else "ready", "missing": missing}
        return JSONResponse(document, 503 if missing else 200)

    @app.get("/metrics", tags=["operations"])
    @declare(Permission.METRICS, Resource.CLUSTER)
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/version", tags=["operations"])
    @declare(Permission.METRICS, Resource.CLUSTER)
    async def service_version() -> BrokerVersion:
        return BrokerVersion(service, version("rocketq"))
