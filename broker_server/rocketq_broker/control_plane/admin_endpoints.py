"""The routes for operators: draining, the clock, and statistics."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool

from rocketq.http_server.body_types import gives, takes
from rocketq.http_server.health import json_response
from rocketq.http_server.permissions import Permission, Resource, declare
from rocketq.protocol.documents.broker import BrokerStatistics, ClockRequest, DrainRequest, TopicStatistics
from rocketq_broker.broker import Broker
from rocketq_broker.control_plane.topic_endpoints import json_body


def install_administration(app: FastAPI, broker: Broker) -> None:
    """Add the routes to `app`."""

    @app.put("/v1/drain")
    @gives(BrokerStatistics)
    @takes(DrainRequest)
    @declare(Permission.ADMIN, Resource.CLUSTER)
    async def drain(request: Request) -> Response:
        """Take writes away, or give them back, without stopping: producers go elsewhere, readers stay."""
        wanted = await json_body(request, DrainRequest)
        broker.drain(wanted.draining)
        return json_response(await _statistics(broker))

    @app.put("/v1/clock")
    @gives(BrokerStatistics)
    @takes(ClockRequest)
    @declare(Permission.ADMIN, Resource.CLUSTER)
    async def agree_clock(request: Request) -> Response:
        """Agree to the broker's wall clock after it stepped, so that messages are deleted by age again.

        The time given must be within an hour of the broker's clock, else 409 CONFLICT.
        """
        wanted = await json_body(request, ClockRequest)
        await run_in_threadpool(broker.store.clock_watch.agree, wanted.at_us)
        return json_response(await _statistics(broker))

    @app.get("/v1/statistics")
    @gives(BrokerStatistics)
    @declare(Permission.METRICS, Resource.CLUSTER)
    async def broker_statistics() -> Response:
        """The broker at run time: its log, what waits, what it holds."""
        return json_response(await _statistics(broker))

    @app.get("/v1/topics/{topic}/statistics")
    @gives(TopicStatistics)
    @declare(Permission.METRICS, Resource.TOPIC)
    async def topic_statistics(topic: str) -> Response:
        """A topic at run time: each queue's range and times, and how far each group is behind."""
        broker.store.topic(topic)
        return json_response(await run_in_threadpool(broker.store.topic_statistics, topic))


async def _statistics(broker: Broker) -> BrokerStatistics:
    # The file system may take its time to answer, for instance one that lies on another machine.
    disk = await run_in_threadpool(broker.store.disk)
    store = broker.store.statistics()
    return BrokerStatistics(
        broker=broker.config.name,
        draining=broker.draining,
        log_begin=store.log_begin,
        log_end=store.log_end,
        durable_end=store.durable_end,
        snapshot_position=store.snapshot_position,
        index_position=store.index_position,
        queued_bytes=store.queued_bytes,
        group_commits=store.commits,
        held_calls=len(broker.held),
        topics=store.topics,
        queues=store.queues,
        open_files=store.open_files,
        disk_total_bytes=disk.total,
        disk_free_bytes=disk.free,
        index_holes=store.index_holes,
        index_hole_bytes=store.index_hole_bytes,
        clock_doubt=store.clock.doubt.value,
        clock_ahead_us=store.clock.ahead_us,
        believe_at_us=store.clock.believe_at_us or None,
    )
