"""The routes of exactly-once sinks.

The log writer decides what a call changes (`store.sinks.decisions`). A route passes the request to it, and
holds a commit for a bounded time until the participants have published (`sinks.publication_wait`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Annotated, Any, Final

import structlog
from fastapi import FastAPI, Path, Request, Response
from msgspec.structs import replace

from rocketq.http_server.body_types import gives, takes
from rocketq.http_server.health import json_response
from rocketq.http_server.permissions import Permission, Resource, declare
from rocketq.protocol.documents.sinks import (
    AbortBatchAnswer,
    AbortBatchRequest,
    BeginRunRequest,
    CheckBatchAnswer,
    CheckBatchRequest,
    CommitBatchAnswer,
    CommitBatchRequest,
    CommitOutcome,
    PublishBatchAnswer,
    PublishBatchRequest,
    RegisterSinkRequest,
    RunAnswer,
    SinkDescription,
    SinkListing,
)
from rocketq_broker.broker import Broker
from rocketq_broker.config import MIB
from rocketq_broker.control_plane.topic_endpoints import json_body
from rocketq_broker.data_plane.query_parameters import NUMBER_MAX
from rocketq_broker.store.sinks import decisions as sink_decisions

#: A commit names each of its frames in some twenty bytes.
BATCH_BODY_BYTES_MAX: Final = 16 * MIB

log = structlog.get_logger("rocketq.broker.sinks")

Batch = Annotated[int, Path(ge=0, le=NUMBER_MAX)]


def install_sinks(app: FastAPI, broker: Broker) -> None:
    """Add the routes that writers and operators call to `app`."""
    store = broker.store

    @app.get("/v1/sinks")
    @gives(SinkListing)
    @declare(Permission.METRICS, Resource.CLUSTER, Permission.ADMIN)
    async def list_sinks() -> Response:
        """All sinks this broker knows."""
        found = tuple(_explained(broker, each) for each in store.sinks.descriptions())
        return json_response(SinkListing(broker.config.name, found))

    @app.get("/v1/sinks/{sink}")
    @gives(SinkDescription)
    @declare(Permission.PRODUCE, Resource.SINK, Permission.METRICS, Permission.ADMIN)
    async def describe_sink(sink: str) -> Response:
        """One sink as this broker knows it."""
        return json_response(_explained(broker, store.sinks.description(sink)))

    @app.put("/v1/sinks/{sink}")
    @gives(SinkDescription)
    @takes(RegisterSinkRequest)
    @declare(Permission.PRODUCE, Resource.SINK)
    async def register_sink(sink: str, request: Request) -> Response:
        """Make it known who coordinates; a known sink is answered as it is."""
        wanted = await json_body(request, RegisterSinkRequest)
        return json_response(
            await broker.completions.outcome(partial(store.sinks.register, sink, wanted.coordinator))
        )

    @app.post("/v1/sinks/{sink}/runs")
    @gives(RunAnswer)
    @takes(BeginRunRequest)
    @declare(Permission.PRODUCE, Resource.SINK)
    async def begin_run(sink: str, request: Request) -> Response:
        """Make a run the current one; the one before can decide nothing any more."""
        wanted = await json_body(request, BeginRunRequest)
        entry = store.sinks.table.sinks.get(sink)
        if entry is not None and entry.run != wanted.run:
            await _in_pool(broker.executor, broker.publisher.learn_brokers)
        write = partial(store.sinks.begin_run, sink, wanted.run, wanted.query)
        return json_response(await broker.completions.outcome(write))

    @app.post("/v1/sinks/{sink}/reset")
    @gives(SinkDescription)
    @declare(Permission.ADMIN, Resource.SINK)
    async def reset_sink(sink: str) -> Response:
        """Forget what was decided, for a query with a new checkpoint."""
        return json_response(await broker.completions.outcome(partial(store.sinks.reset, sink)))

    @app.delete("/v1/sinks/{sink}")
    @declare(Permission.ADMIN, Resource.SINK)
    async def delete_sink(sink: str, force: bool = False) -> Response:
        """Drop the stages of a sink and forget it; `force` gives up what is decided and unpublished."""
        await broker.completions.outcome(partial(store.sinks.delete, sink, force))
        return json_response({})


def install_batches(app: FastAPI, broker: Broker) -> None:
    """Add the routes of a sink's batches to `app`."""
    store = broker.store

    @app.post("/v1/sinks/{sink}/batches/{batch}/commit")
    @gives(CommitBatchAnswer)
    @takes(CommitBatchRequest)
    @declare(Permission.PRODUCE, Resource.SINK)
    async def commit_batch(sink: str, batch: Batch, request: Request) -> Response:
        """Decide a batch, and have it published; a batch that is decided stays as it is."""
        wanted = await json_body(request, CommitBatchRequest, BATCH_BODY_BYTES_MAX)
        sink_decisions.check_commit(wanted)
        answer = await _decide(broker, sink, batch, wanted)
        return json_response(replace(answer, unsettled=await broker.wait_until_published(sink, batch)))

    @app.post("/v1/sinks/{sink}/batches/{batch}/abort")
    @gives(AbortBatchAnswer)
    @takes(AbortBatchRequest)
    @declare(Permission.PRODUCE, Resource.SINK)
    async def abort_batch(sink: str, batch: Batch, request: Request) -> Response:
        """Give an undecided batch up: its run can decide nothing any more."""
        wanted = await json_body(request, AbortBatchRequest)
        write = partial(store.sinks.abort_batch, sink, batch, wanted.run)
        return json_response(await broker.completions.outcome(write))

    @app.post("/v1/sinks/{sink}/batches/{batch}/check")
    @gives(CheckBatchAnswer)
    @takes(CheckBatchRequest)
    @declare(Permission.REPLICATE, Resource.CLUSTER)
    async def check_batch(sink: str, batch: Batch, request: Request) -> Response:
        """Tell a participant what is to become of its stage."""
        wanted = await json_body(request, CheckBatchRequest)
        write = partial(store.sinks.check_batch, sink, batch, wanted)
        return json_response(await broker.completions.outcome(write))

    @app.post("/v1/sinks/{sink}/publications")
    @gives(PublishBatchAnswer)
    @takes(PublishBatchRequest)
    @declare(Permission.REPLICATE, Resource.CLUSTER)
    async def publish_batch(sink: str, request: Request) -> Response:
        """Publish exactly these frames of a stage if the sink's coordinator has decided them.

        Answered when they are in their queues.
        """
        wanted = await json_body(request, PublishBatchRequest, BATCH_BODY_BYTES_MAX)
        if wanted.only_check:
            store.sinks.check_publication(sink, wanted)
        else:
            await _in_pool(broker.publisher.confirmations, broker.publisher.confirm_publication, sink, wanted)
            await broker.completions.outcome(partial(store.sinks.publish, sink, wanted))
        return json_response(PublishBatchAnswer(sink, wanted.batch, broker.config.name))


async def _decide(broker: Broker, sink: str, batch: int, wanted: CommitBatchRequest) -> CommitBatchAnswer:
    """Decide a batch once its participants were asked, unless it is decided or may not be."""
    table, name = broker.store.sinks.table, broker.config.name
    made = sink_decisions.decide_batch(table, sink, batch, wanted, name)
    if not isinstance(made, CommitOutcome) and any(each.broker != name for each in wanted.participants):
        ask = broker.publisher.ask_participants
        await _in_pool(broker.executor, ask, sink, batch, wanted.run, wanted.participants)
    write = partial(broker.store.sinks.decide_batch, sink, batch, wanted)
    answer: CommitBatchAnswer = await broker.completions.outcome(write)
    if answer.outcome is CommitOutcome.SKIPPED:
        broker.measurements.batch_skipped(wanted.total)
        log.warning("batch_skipped", sink=sink, batch=batch, decided=answer.decided, rows=wanted.total)
    broker.publisher.wake()
    return answer


async def _in_pool(pool: Executor, call: Callable[..., None], *arguments: Any) -> None:
    """Make a call that waits for other servers, on a thread of `pool`."""
    await asyncio.get_running_loop().run_in_executor(pool, call, *arguments)


def _explained(broker: Broker, found: SinkDescription) -> SinkDescription:
    """Return a description with what the publisher knows of its pending batches."""
    pending = tuple(
        replace(each, problem=broker.publisher.problem(found.sink, each.brokers)) for each in found.pending
    )
    return replace(found, pending=pending)
