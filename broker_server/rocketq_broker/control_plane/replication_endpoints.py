"""The routes about a broker as one of several replicas, for operators."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response

from rocketq.errors import NotFound
from rocketq.http_server.body_types import gives, takes
from rocketq.http_server.health import json_response
from rocketq.http_server.permissions import Permission, Resource, declare
from rocketq.protocol.documents.replication import (
    HandOverRequest,
    OfficeAnswer,
    PromoteRequest,
    ReplicationStatus,
)
from rocketq_broker.broker import Broker
from rocketq_broker.control_plane.topic_endpoints import json_body
from rocketq_broker.replication_service.service import ReplicationService


def install_replication(app: FastAPI, broker: Broker) -> None:
    """Add the routes to `app`; a broker that replicates nothing answers 404."""

    def replica() -> ReplicationService:
        if broker.replica is None:
            raise NotFound("replica", f"{broker.config.name} replicates nothing: its broker id is 0")
        return broker.replica

    async def epoch_of(command: Callable[[Callable[[Any], None]], None]) -> Response:
        return json_response(OfficeAnswer(await broker.completions.outcome(command)))

    @app.get("/v1/replication")
    @gives(ReplicationStatus)
    @declare(Permission.METRICS, Resource.CLUSTER, Permission.ADMIN)
    async def replication_status() -> Response:
        """The group as this broker sees it; only the master knows how far the others are."""
        replica()
        return json_response(broker.replication())

    @app.post("/v1/replication/promotion")
    @gives(OfficeAnswer)
    @takes(PromoteRequest)
    @declare(Permission.ADMIN, Resource.CLUSTER)
    async def promote(request: Request) -> Response:
        """Make this replica master; `unclean` although it may lack what is confirmed."""
        wanted = await json_body(request, PromoteRequest)
        return await epoch_of(partial(replica().promote, wanted.unclean))

    @app.post("/v1/replication/handover")
    @gives(OfficeAnswer)
    @takes(HandOverRequest)
    @declare(Permission.ADMIN, Resource.CLUSTER)
    async def hand_over(request: Request) -> Response:
        """Have this master give its office to an in-sync replica, without a lost message."""
        wanted = await json_body(request, HandOverRequest)
        return await epoch_of(partial(replica().hand_over, wanted.successor))
