"""Looking messages up: one by its id, by key, or by the time they were stored.

    mq.query.by_id("broker-a:orders:3:17")
    mq.query.by_key("orders", "o-1").messages                       newest first
    mq.query.by_unique_id("orders", sent.unique_id).messages        its copies, newest first
    for message in mq.query.by_time("orders", begin, end): ...      oldest first

A message lies on one broker, so a search asks every broker of the topic. If one of them does not answer, the
search raises an error, because a result without its messages would look complete. A broker that left the
route (its lease ended) is known from the topic's record (`TopicRoute.holders`) and is an error too;
`allow_missing=True` searches without such brokers.

A search has no group and changes no reader's progress (RocketMQ: queryMsgById, queryMsgByKey, and the
dashboard's search by time).
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Final

from rocketq.errors import BrokerUnreachable, InvalidConfiguration
from rocketq.model import StoredMessage
from rocketq.net.broker_api import BrokerApi, replica_of
from rocketq.net.route_cache import RouteCache
from rocketq.net.transport import Transport
from rocketq.protocol.documents.broker import UncoveredRange
from rocketq.protocol.documents.nameserver import TopicRoute

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
    """The messages with a key, newest first, and what may be missing; each dictionary is by broker.

    `lag_bytes` is how much of each broker's log its index had not read yet: while one is above 0, messages
    that were stored just now may be missing. `uncovered` are the parts of a broker's log that cannot be read
    and may hold messages with this key; a broker whose log is sound is absent. `missing` are the brokers of
    the topic that were not searched because they left the route.
    """

    messages: tuple[StoredMessage, ...] = field(hash=False)
    lag_bytes: dict[str, int] = field(hash=False)
    uncovered: dict[str, tuple[UncoveredRange, ...]] = field(hash=False)
    missing: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether no message stored before the search can be missing, other than by `limit`."""
        return not (any(self.lag_bytes.values()) or self.uncovered or self.missing)


class Query:
    """Looks messages of one cluster up. Thread-safe; lives as long as its client.

    >>> with client.producer() as producer:
    ...     sent = producer.send("orders", "o-7", key="o-7")
    >>> client.query.by_id(sent.message_id).body
    b'o-7'
    """

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
            raise InvalidConfiguration(
                "message_id",
                message_id[:200],
                "is not broker:topic:queue:offset",
                hint="If it is the id that a producer gave the message, look in its topic: "
                "query.by_unique_id(topic, id), or rocketq query id ID --topic TOPIC.",
            )
        broker, topic = matched[1], matched[2]
        route = self._routes.route(topic)
        document = replica_of(route, broker, self._transport, self._routes.invalidate).message(message_id)
        return document.message(topic, broker)

    def by_key(
        self,
        topic: str,
        key: str | bytes,
        *,
        begin: Time | None = None,
        end: Time | None = None,
        limit: int = DEFAULT_LIMIT,
        allow_missing: bool = False,
    ) -> FoundByKey:
        """Return the newest `limit` messages with this key, or with it in their property KEYS or UNIQ_KEY.

        `begin` and `end` bound when they were stored, both included. Raises RouteNotFound, NoPermission, and
        BrokerUnreachable also for a broker of the topic that left the route, unless `allow_missing`.
        """
        if not 1 <= limit <= LIMIT_MAX:
            raise InvalidConfiguration("limit", limit, f"must be from 1 to {LIMIT_MAX}")
        wanted = key.encode("utf-8") if isinstance(key, str) else key
        begin_us, end_us = _optional_us("begin", begin), _optional_us("end", end)
        found: list[StoredMessage] = []
        lags: dict[str, int] = {}
        uncovered: dict[str, tuple[UncoveredRange, ...]] = {}
        brokers, missing = self._brokers(topic, allow_missing)
        for broker in brokers:
            ask = partial(broker.query_by_key, topic, wanted, begin_us=begin_us, end_us=end_us)
            answer = ask(limit=limit)
            # What the index lacks is newer than what it has, so the first page tells all of it.
            lags[broker.broker] = answer.lag_bytes
            documents, unread = list(answer.messages), {each.log_begin: each for each in answer.uncovered}
            while answer.next_page is not None and len(documents) < limit:
                answer = ask(limit=limit - len(documents), page=answer.next_page)
                documents += answer.messages
                unread |= {each.log_begin: each for each in answer.uncovered}
            found += [each.message(topic, broker.broker) for each in documents]
            if unread:
                uncovered[broker.broker] = tuple(unread.values())
        found.sort(key=_place, reverse=True)
        return FoundByKey(tuple(found[:limit]), lags, uncovered, missing)

    def by_unique_id(
        self,
        topic: str,
        unique_id: str,
        *,
        begin: Time | None = None,
        end: Time | None = None,
        limit: int = DEFAULT_LIMIT,
        allow_missing: bool = False,
    ) -> FoundByKey:
        """Return the newest `limit` copies of the message with this id (`SendResult.unique_id`).

        More than one is there if a send was repeated after its answer was lost. Bounds, errors and what may
        be missing are as in `by_key`.
        """
        found = self.by_key(topic, unique_id, begin=begin, end=end, limit=limit, allow_missing=allow_missing)
        return replace(found, messages=tuple(each for each in found.messages if each.unique_id == unique_id))

    def by_time(
        self,
        topic: str,
        begin: Time,
        end: Time | None = None,
        *,
        page_messages: int = PAGE_MESSAGES,
        allow_missing: bool = False,
    ) -> Iterator[StoredMessage]:
        """Yield the messages stored from `begin` to `end`, both included, oldest first over all brokers.

        They are fetched while they are taken, a page from each broker at a time, so an interval of any size
        may be given. Without `end` it goes on to the newest message, and does not wait for more.

        Raises at once RouteNotFound, and BrokerUnreachable for a broker of the topic that left the route,
        unless `allow_missing`; NoPermission and BrokerUnreachable while messages are taken.
        """
        if not 1 <= page_messages <= LIMIT_MAX:
            raise InvalidConfiguration("page_messages", page_messages, f"must be from 1 to {LIMIT_MAX}")
        begin_us, end_us = microseconds("begin", begin), _optional_us("end", end)
        brokers, _ = self._brokers(topic, allow_missing)
        return heapq.merge(
            *(_pages(broker, topic, begin_us, end_us, page_messages) for broker in brokers), key=_place
        )

    def _brokers(self, topic: str, allow_missing: bool) -> tuple[list[BrokerApi], tuple[str, ...]]:
        """Return the brokers of the topic's route, and the names of those on its record that left the route.

        Raises BrokerUnreachable for one that left, unless `allow_missing`.
        """
        route = self._routes.route(topic)
        if _missing(route):
            # One of them may be back since the route was last renewed.
            self._routes.invalidate(topic)
            route = self._routes.route(topic)
        missing = _missing(route)
        if missing and not allow_missing:
            raise BrokerUnreachable(
                ", ".join(missing),
                "no known address",
                f"the record of topic {topic!r} names it, and its lease has ended. Start it again, search "
                "without it (allow_missing=True, --allow-missing), or take a broker that is gone for good "
                f"off the topic (rocketq topic alter {topic} --remove-broker NAME)",
                sent=False,
            )
        lost = self._routes.invalidate
        return [replica_of(route, data.broker, self._transport, lost) for data in route.brokers], missing


def _missing(route: TopicRoute) -> tuple[str, ...]:
    """Return the brokers on the topic's record that are not in the route."""
    listed = {data.broker for data in route.brokers}
    return tuple(broker for broker in route.holders if broker not in listed)


def _pages(
    broker: BrokerApi, topic: str, begin_us: int, end_us: int | None, limit: int
) -> Iterator[StoredMessage]:
    page: str | None = None
    while True:
        answer = broker.query_by_time(topic, begin_us=begin_us, end_us=end_us, limit=limit, page=page)
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
