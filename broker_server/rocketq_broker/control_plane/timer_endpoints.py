"""The routes of delayed messages: listing those of a topic, looking at one, cancelling one.

A list and a look read files, so they run on a thread. Cancelling looks the message up in the same way, and
the log writer then decides, because the message may be delivered meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Final

from fastapi import FastAPI, Query, Response
from starlette.concurrency import run_in_threadpool

from rocketq.errors import InvalidRequest, NoPermission, NotFound
from rocketq.http_server.body_types import gives
from rocketq.http_server.health import json_response
from rocketq.http_server.permissions import Permission, Resource, declare
from rocketq.model import Perm, TimerId, TimerStatus
from rocketq.protocol.documents.broker import TimerDocument, TimerListing
from rocketq_broker.broker import Broker
from rocketq_broker.data_plane.reads.pull_formats import message_fields
from rocketq_broker.store.timer_operations import HeldMessage, TimerCursor

#: Delayed messages of one page.
PAGE_DEFAULT: Final = 100
PAGE_MAX: Final = 1_000
_NUMBERS: Final = 3


def install_timers(app: FastAPI, broker: Broker) -> None:
    """Add the routes to `app`."""
    timers = broker.store.timers

    @app.get("/v1/topics/{topic}/timers")
    @gives(TimerListing)
    @declare(Permission.CONSUME, Resource.TOPIC, Permission.PRODUCE, Permission.ADMIN)
    async def list_timers(
        topic: str, limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = PAGE_DEFAULT, page: str | None = None
    ) -> Response:
        """The delayed messages of a topic that are still to be delivered, the next first, without bodies."""
        _check_readable(broker, topic)
        behind = TimerCursor() if page is None else _cursor(page)
        found = await run_in_threadpool(timers.page, topic, behind, limit)
        going_on = "-".join(map(str, found[-1].cursor)) if len(found) == limit else None
        documents = tuple(_document(held, with_body=False) for held in found)
        return json_response(TimerListing(broker.config.name, topic, documents, going_on))

    @app.get("/v1/timers/{timer_id}")
    @gives(TimerDocument)
    @declare(Permission.CONSUME, Resource.TOPIC, Permission.PRODUCE, name_of=_topic_of_timer)
    async def show_timer(timer_id: str) -> Response:
        """A delayed message by its id, `broker:topic:queue:@log offset.row`, and what became of it."""
        timer = _timer(timer_id)
        _check_readable(broker, timer.queue.topic)
        return json_response(_document(await run_in_threadpool(timers.find, timer), with_body=True))

    @app.delete("/v1/timers/{timer_id}")
    @gives(TimerDocument)
    @declare(Permission.PRODUCE, Resource.TOPIC, Permission.ADMIN, name_of=_topic_of_timer, is_audited=True)
    async def cancel_timer(timer_id: str) -> Response:
        """Cancel a delayed message: it is not delivered. 409 CONFLICT if its time has passed."""
        held = await run_in_threadpool(timers.find, _timer(timer_id))
        await broker.completions.outcome(partial(timers.cancel, held))
        return json_response(_document(held, with_body=False, status=TimerStatus.CANCELLED))


def _check_readable(broker: Broker, topic: str) -> None:
    if not broker.store.topic(topic).perm & Perm.READ:
        raise NoPermission("Reading", f"topic {topic}")


def _topic_of_timer(path_parameters: Mapping[str, str]) -> str:
    """Return the topic in a timer id; "" if it is not one, which the handler refuses."""
    timer = TimerId.parse(path_parameters["timer_id"])
    return "" if timer is None else timer.queue.topic


def _timer(text: str) -> TimerId:
    timer = TimerId.parse(text)
    if timer is None:
        raise NotFound("delayed message", text)
    return timer


def _cursor(page: str) -> TimerCursor:
    parts = page.split("-")
    if len(parts) != _NUMBERS or not all(part.isascii() and part.isdigit() for part in parts):
        raise InvalidRequest("parameter page", "is not the next_page of an answer to a list of timers")
    due_ms, log_offset, row = (min(int(part), (1 << 62)) for part in parts)
    return TimerCursor(due_ms, log_offset, row)


def _document(held: HeldMessage, *, with_body: bool, status: TimerStatus | None = None) -> TimerDocument:
    fields: dict[str, Any] = message_fields(held.message)
    if not with_body:
        fields = {name: value for name, value in fields.items() if name not in ("body", "body_base64")}
    return TimerDocument(
        str(held.id),
        held.id.queue.queue,
        held.deliver_at_ms,
        status or held.status,
        held.stored_at_us,
        **fields,
    )
