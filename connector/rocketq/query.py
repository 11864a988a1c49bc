"""Looking messages up: one by its id, by key, or by the time they were stored.

    mq.query.by_id("broker-a:orders:3:17")
    mq.query.by_key("orders", "o-1").messages                       newest first
    for message in mq.query.by_time("orders", begin, end): ...      oldest first

A message lies on one broker, so every broker of the topic's route is asked, and one that does not answer is
an error: an answer that leaves out what it holds would look complete. A broker that has left the route, since
its lease ended, is not asked.

To look up is to read without a group and without an effect on any reader's progress (RocketMQ: queryMsgById,
queryMsgByKey, and the dashboard's search by time).
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Final

from rocketq.errors import InvalidConfiguration
from rocketq.model import StoredMessage
from rocketq.net.broker_api import BrokerApi, replica_of
from rocketq.net.route_cache import RouteCache
from rocketq.net.transport import Transport

#: As RocketMQ (maxMsgsNumBatch).
DEFAULT_LIMIT: Final = 64
LIMIT_MAX: Final = 1_000
#: Messages in one page of one broker.
PAGE_MESSAGES: Final = 200

_MESSAGE_ID: Final = re.compile(r"([^:]+):([^:]+):(\d{1,5}):(\d{1,19})\Z")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

#: Microseconds since 1970 in UTC, or a datetime with a time zone.
Time = datetime | int


@dataclass(frozen=True, slots=True)
class FoundByKey:
    """The messages with a key, newest first.

    `lag_bytes` is how much of each broker's log its index had not seen yet: while one is above 0, messages
    that were stored just now may be missing.
    """

    messages: tuple[StoredMessage, ...] = field(hash=False)
    lag_bytes: dict[str, int] = field(hash=False)


class Query:
    """Looks messages of one cluster up. Thread-safe; lives as long as its client."""

    def __init__(self, transport: Transport, routes: RouteCache) -> None:
        self._transport = transport
        self._routes = routes

    def by_id(self, message_id: str) -> StoredMessage:
        """Return the message with this id, `broker:topic:queue:offset`; results and messages have it.

        Raises InvalidConfiguration for what is no id, NotFound if its broker does not have the message (any
        more), BrokerUnreachable if the route does not name that broker or it does not answer, RouteNotFound.
        """
        matched = _MESSAGE_ID.match(message_id)
        if matched is None:
            raise InvalidConfiguration("message_id", message_id[:200], "is not broker:topic:queue:offset")
        broker, topic = matched[1], matched[2]
        route = self._routes.route(topic)
        document = replica_of(route, broker, self._transport).message(message_id)
        return document.message(topic, broker)

    def by_key(
        self,
        topic: str,
        key: str | bytes,
        *,
        begin: Time | None = None,
        end: Time | None = None,
        limit: int = DEFAULT_LIMIT,
    ) -> FoundByKey:
        """Return the newest `limit` messages with this key, or with it among their property KEYS.

        `begin` and `end` bound when they were stored, both included. Raises RouteNotFound, NoPermission,
        BrokerUnreachable.
        """
        if not 1 <= limit <= LIMIT_MAX:
            raise InvalidConfiguration("limit", limit, f"must be from 1 to {LIMIT_MAX}")
        wanted = key.encode("utf-8") if isinstance(key, str) else key
        begin_us, end_us = _optional_us("begin", begin), _optional_us("end", end)
        found: list[StoredMessage] = []
        lags: dict[str, int] = {}
        for broker in self._brokers(topic):
            ask = partial(broker.find_by_key, topic, wanted, begin_us=begin_us, end_us=end_us)
            answer = ask(limit=limit)
            # What the index lacks is newer than what it has, so the first page tells all of it.
            lags[broker.broker] = answer.lag_bytes
            documents = list(answer.messages)
            while answer.next_page is not None and len(documents) < limit:
                answer = ask(limit=limit - len(documents), page=answer.next_page)
                documents += answer.messages
            found += [each.message(topic, broker.broker) for each in documents]
        found.sort(key=_place, reverse=True)
        return FoundByKey(tuple(found[:limit]), lags)

    def by_time(
        self, topic: str, begin: Time, end: Time | None = None, *, page_messages: int = PAGE_MESSAGES
    ) -> Iterator[StoredMessage]:
        """Yield the messages stored from `begin` to `end`, both included, oldest first over all brokers.

        They are fetched while they are taken, a page from each broker at a time, so an interval of any size
        may be given. Without `end` it goes on to the newest message, and does not wait for more.

        Raises RouteNotFound at once; NoPermission and BrokerUnreachable while messages are taken.
        """
        if not 1 <= page_messages <= LIMIT_MAX:
            raise InvalidConfiguration("page_messages", page_messages, f"must be from 1 to {LIMIT_MAX}")
        begin_us, end_us = microseconds("begin", begin), _optional_us("end", end)
        brokers = self._brokers(topic)
        return heapq.merge(
            *(_pages(broker, topic, begin_us, end_us, page_messages) for broker in brokers), key=_place
        )

    def _brokers(self, topic: str) -> list[BrokerApi]:
        route = self._routes.route(topic)
        return [replica_of(route, data.broker, self._transport) for data in route.brokers]


def _pages(
    broker: BrokerApi, topic: str, begin_us: int, end_us: int | None, limit: int
) -> Iterator[StoredMessage]:
    page: str | None = None
    while True:
        answer = broker.find_by_time(topic, begin_us=begin_us, end_us=end_us, limit=limit, page=page)
        for document in answer.messages:
            yield document.message(topic, broker.broker)
        page = answer.next_page
        if page is None:
            return


def _place(message: StoredMessage) -> tuple[int, str, int, int]:
    return message.stored_at_us, message.queue.broker, message.queue.queue, message.offset


def _optional_us(name: str, time: Time | None) -> int | None:
    return None if time is None else microseconds(name, time)


def microseconds(name: str, time: Time) -> int:
    """Return a time as µs since 1970 in UTC; raise InvalidConfiguration without a time zone."""
    if not isinstance(time, datetime):
        return time
    if time.tzinfo is None:
        raise InvalidConfiguration(
            name, time, "a datetime without a time zone names no moment", "Pass tzinfo=datetime.UTC, say."
        )
    since = time - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
