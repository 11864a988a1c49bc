"""Delayed messages that are not delivered yet: listing those of a topic, looking at one, cancelling one.

They are scheduled by a producer (`Producer.send` with `delay` or `deliver_at`). Each lies on one broker,
whose name is in its timer id.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from rocketq.errors import InvalidConfiguration
from rocketq.model import DelayedMessage, TimerId
from rocketq.net.broker_api import BrokerApi, replica_of
from rocketq.net.route_cache import RouteCache
from rocketq.net.transport import Transport

#: Messages that are asked for at once.
PAGE_MESSAGES = 500


class Timers:
    """The delayed messages of one cluster. Thread-safe; lives as long as its client."""

    def __init__(self, transport: Transport, routes: RouteCache) -> None:
        self._transport = transport
        self._routes = routes

    def list(self, topic: str, *, page_messages: int = PAGE_MESSAGES) -> Iterator[DelayedMessage]:
        """Yield the messages of a topic that are still to be delivered, the next first, without their bodies.

        `page_messages` are asked for at once of each broker in the route. Raises RouteNotFound,
        BrokerUnreachable, NoPermission.
        """
        route = self._routes.route(topic)
        brokers = [
            replica_of(route, data.broker, self._transport, self._routes.invalidate) for data in route.brokers
        ]
        pages = (_pages(broker, topic, page_messages) for broker in brokers)
        return heapq.merge(*pages, key=lambda message: (message.deliver_at_ms, message.timer_id))

    def show(self, timer_id: str) -> DelayedMessage:
        """Return a delayed message by the `timer_id` of its SendResult, and what became of it.

        Raises InvalidConfiguration for what is no timer id, NotFound if its broker does not have it (any
        more), BrokerUnreachable, RouteNotFound.
        """
        timer, broker = self._located(timer_id)
        return broker.timer(timer_id).message(timer.queue.topic, broker.broker)

    def cancel(self, timer_id: str) -> DelayedMessage:
        """Keep a delayed message from being delivered, and return it; safe to repeat.

        Raises as `show`, and Conflict if its time has passed.
        """
        timer, broker = self._located(timer_id)
        return broker.cancel_timer(timer_id).message(timer.queue.topic, broker.broker)

    def _located(self, timer_id: str) -> tuple[TimerId, BrokerApi]:
        timer = TimerId.parse(timer_id)
        if timer is None:
            raise InvalidConfiguration(
                "timer_id", timer_id[:200], "it is not broker:topic:queue:@offset.row",
                hint="Give the timer_id of a SendResult, or of a listed message.",
            )  # fmt: skip
        route = self._routes.route(timer.queue.topic)
        return timer, replica_of(route, timer.queue.broker, self._transport, self._routes.invalidate)


def _pages(broker: BrokerApi, topic: str, limit: int) -> Iterator[DelayedMessage]:
    page: str | None = None
    while True:
        answer = broker.timers(topic, limit=limit, page=page)
        for document in answer.timers:
            yield document.message(topic, broker.broker)
        page = answer.next_page
        if page is None:
            return
