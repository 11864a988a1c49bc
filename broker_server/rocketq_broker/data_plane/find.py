"""Find: the messages of a topic that have a key, newest first, as JSON, or those of an interval.

    ?key=K or ?key_base64=…    with &begin=T_us &end=T_us (when stored) &limit=N
    without a key              `time_search`

The index is built behind the log writer; `lag_bytes` says how much of the log it had
not yet seen, so "not found" can be told from "not yet". `uncovered` are the parts of the log that
cannot be read and may hold messages of the topic with this key, so "not found" can be told from "not known".
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, Final

import msgspec

from rocketq.errors import InvalidName, InvalidRequest, NoPermission, TopicNotFound
from rocketq.model import KEY_BYTES_MAX, MessageQueue, Perm, is_legal_name
from rocketq_broker.config import BrokerConfig
from rocketq_broker.data_plane import pull_formats as forms
from rocketq_broker.data_plane.data_call import Answer, DataRequest, json_answer
from rocketq_broker.data_plane.decoding_room import FIND_BYTES, DecodingRoom
from rocketq_broker.data_plane.find_by_time import PARAMETERS, time_page, time_query
from rocketq_broker.data_plane.query_parameters import NUMBER_MAX, key_of, parse, whole_number
from rocketq_broker.store.log.time_search import TimeQuery
from rocketq_broker.store.store import KeyQuery, MessageStore

#: RocketMQ returns at most 64 (maxMsgsNumBatch).
DEFAULT_FOUND: Final = 64
FOUND_MAX: Final = 1_000

_PARAMETERS: Final = frozenset({"key", "key_base64", "begin", "end", "limit"})


class FindProcessor:
    """Handles `GET /v1/topics/{topic}/messages`, on the loop's thread; the search runs on another."""

    def __init__(
        self, config: BrokerConfig, store: MessageStore, executor: Executor, decoding: DecodingRoom
    ) -> None:
        self._config = config
        self._store = store
        self._executor = executor
        self._decoding = decoding
        self._loop = asyncio.get_running_loop()

    async def handle(self, request: DataRequest) -> Answer:
        given = parse(request.query_string, _PARAMETERS | PARAMETERS)
        topic = self._readable(request.topic)
        if not given.keys() & _PARAMETERS - PARAMETERS:
            interval = time_query(topic, given)
            return json_answer(await self._loop.run_in_executor(self._executor, self._in_time, interval))
        if "page" in given:
            raise InvalidRequest("parameter page", "is of a search without a key")
        query = KeyQuery(
            topic,
            _checked(key_of(given)),
            whole_number(given, "begin", -NUMBER_MAX, NUMBER_MAX, 0),
            whole_number(given, "end", -NUMBER_MAX, NUMBER_MAX, NUMBER_MAX),
            whole_number(given, "limit", 1, FOUND_MAX, DEFAULT_FOUND),
        )
        claim = await self._decoding.claim(FIND_BYTES)
        try:
            document = await self._loop.run_in_executor(self._executor, self._found, query)
        except BaseException:
            claim.release()
            raise
        claim.shrink(len(document))
        return replace(json_answer(document), taken=claim.release)

    def _readable(self, topic: str) -> str:
        """Return the name of a topic that exists and may be read."""
        try:
            config = self._store.topic(topic)
        except TopicNotFound:
            if not is_legal_name(topic):
                raise InvalidName("topic", topic) from None
            raise
        if not config.perm & Perm.READ:
            raise NoPermission("Reading", f"topic {topic}")
        return topic

    def _in_time(self, query: TimeQuery) -> bytes:
        return time_page(self._store.find_in_time(query), query.topic, self._config.name)

    def _found(self, query: KeyQuery) -> bytes:
        found = self._store.find(query)
        messages: list[dict[str, Any]] = []
        for piece in found.slices:
            place = MessageQueue(query.topic, self._config.name, piece.header.queue)
            messages += forms.messages(forms.Decoded((piece,), piece.next_offset), place)
        return msgspec.json.encode(
            {"messages": messages, "lag_bytes": found.lag_bytes, "uncovered": found.uncovered}
        )


def _checked(key: bytes | None) -> bytes:
    """Return the key to look for; raise InvalidRequest if there is none, or one that no message can have."""
    if key is None:
        raise InvalidRequest("the query", "needs either key or key_base64")
    if not 0 < len(key) <= KEY_BYTES_MAX:
        raise InvalidRequest("parameter key", f"has {len(key)} bytes, not 1 to {KEY_BYTES_MAX}")
    return key
