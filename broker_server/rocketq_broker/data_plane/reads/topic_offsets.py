"""Offsets: where all queues of a topic stand, in one answer.

    ?after_total=N&wait_ms=…   held until the topic has more than N messages in all
    ?at=T&boundary=…           the offsets that a time names, read from the disk
    ?master_only=true          refused unless this broker is the master: a slave may know of fewer messages

One held call watches a whole topic, so a consumer of many queues needs one
waiting request a broker, not one a queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Final

from rocketq.errors import InvalidRequest
from rocketq.http_server.longpoll.long_poll import LongPoll, Woken
from rocketq.model import TimeBoundary
from rocketq.protocol.documents.broker import WAIT_MS_MAX, TopicOffsets, encode
from rocketq_broker.data_plane.data_call import Answer, DataRequest, json_answer
from rocketq_broker.data_plane.query_parameters import NUMBER_MAX, is_set, parse, whole_number
from rocketq_broker.runtime import wait_keys as arrivals
from rocketq_broker.store.store import MessageStore

_PARAMETERS: Final = frozenset({"after_total", "wait_ms", "at", "boundary", "master_only"})
#: Which parameter means nothing without which.
_NEEDS: Final = {"wait_ms": "after_total", "boundary": "at"}


class OffsetsProcessor:
    """Handles `GET /v1/topics/{topic}/offsets`, on the loop's thread."""

    def __init__(
        self,
        store: MessageStore,
        held: LongPoll[arrivals.Key],
        executor: Executor,
        check_office: Callable[[], None],
    ) -> None:
        """`check_office` raises unless this broker is by itself, or serves as master."""
        self._store = store
        self._check_office = check_office
        self._held = held
        self._executor = executor
        self._loop = asyncio.get_running_loop()

    async def handle(self, request: DataRequest) -> Answer | None:
        given = parse(request.query_string, _PARAMETERS)
        _check_combination(given)
        master_only = is_set(given, "master_only")
        if master_only:
            self._check_office()
        if "at" in given:
            return await self._at_time(request.name, given)
        offsets = await self._after_total(request, given)
        if master_only:
            # The call may have been held for long.
            self._check_office()
        return None if offsets is None else json_answer(encode(offsets))

    async def _after_total(self, request: DataRequest, given: Mapping[str, str]) -> TopicOffsets | None:
        """Return the offsets once their total is above what is known; None if the client left."""
        known = whole_number(given, "after_total", -1, NUMBER_MAX, -1)
        wait_ms = whole_number(given, "wait_ms", 0, WAIT_MS_MAX, 0)
        offsets = self._store.offsets(request.name)
        if offsets.total > known or not wait_ms:
            return offsets
        keys, deadline_ms = arrivals.of_topic(request.name), self._held.deadline_ms(wait_ms)
        incarnation = offsets.incarnation
        # A topic that was made anew meanwhile counts from 0: `known` was of the old one.
        while offsets.total <= known and offsets.incarnation == incarnation:
            woken = await self._held.wait(keys, deadline_ms, request.receive)
            if woken is Woken.GONE:
                return None
            if woken is Woken.TIME_IS_UP:
                break
            offsets = self._store.offsets(request.name)
        return offsets

    async def _at_time(self, topic: str, given: Mapping[str, str]) -> Answer:
        at_us = whole_number(given, "at", -NUMBER_MAX, NUMBER_MAX)
        try:
            boundary = TimeBoundary(given.get("boundary", TimeBoundary.LOWER))
        except ValueError:
            raise InvalidRequest(
                "parameter boundary", f"{given['boundary'][:40]!r} is neither lower nor upper"
            ) from None
        offsets = await self._loop.run_in_executor(
            self._executor, self._store.offsets_at, topic, at_us, boundary
        )
        return json_answer(encode(offsets))


def _check_combination(given: Mapping[str, str]) -> None:
    for name, needed in _NEEDS.items():
        if name in given and needed not in given:
            raise InvalidRequest(f"parameter {name}", f"means nothing without {needed}")
    if "at" in given and "after_total" in given:
        raise InvalidRequest("the query", "at and after_total cannot be combined")
