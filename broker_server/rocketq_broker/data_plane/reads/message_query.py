"""Message query: the messages of a topic that have a key, newest first, as JSON, or those of an interval.

    ?key=K or ?key_base64=…    with &begin=T_us &end=T_us (when stored) &limit=N &page=…
    without a key              `time_query`

The index is built behind the log writer; `lag_bytes` says how much of the log it had
not yet seen, so "not found" can be told from "not yet". `uncovered` are the parts of the log that
cannot be read and may hold messages of the topic with this key, so "not found" can be told from "not known".

An answer has at most `limit` messages and `FOUND_BYTES_MAX` bytes of them, unless its first message alone is
larger. If one of the two ended the search, `next_page` names the last message as `log offset-row`. The next
page goes on before it.

Both searches inflate frames, so each claims room for them before it begins (`decoding_memory`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec

from rocketq.errors import InvalidRequest, NoPermission
from rocketq.model import KEY_BYTES_MAX, TAG_BYTES_MAX, MessageQueue, Perm, TopicConfig
from rocketq_broker.config import BrokerConfig
from rocketq_broker.data_plane.data_call import Answer, DataRequest, json_answer
from rocketq_broker.data_plane.decoding_memory import DecodingRoom, found_bytes
from rocketq_broker.data_plane.query_parameters import NUMBER_MAX, key_of, number, parse, whole_number
from rocketq_broker.data_plane.reads import pull_formats as forms
from rocketq_broker.data_plane.reads.time_query import (
    DEFAULT_FOUND,
    FOUND_MAX,
    FRAMES_HELD,
    PARAMETERS,
    time_page,
    time_query,
)
from rocketq_broker.data_plane.sends.message_limits import PROPERTIES_BYTES_MAX
from rocketq_broker.store.index.key_query import FOUND_BYTES_MAX, PlaceInLog
from rocketq_broker.store.log.time_query import TimeQuery
from rocketq_broker.store.store import KeyQuery, MessageStore

_KEYS: Final = frozenset({"key", "key_base64"})
_PARAMETERS: Final = _KEYS | PARAMETERS
#: What a message may have besides its body.
_BESIDES_BODY_BYTES: Final = PROPERTIES_BYTES_MAX + KEY_BYTES_MAX + TAG_BYTES_MAX


class MessageQueryProcessor:
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
        given = parse(request.query_string, _PARAMETERS)
        topic = self._readable(request.name)
        search: Callable[[], bytes]
        if given.keys() & _KEYS:
            by_key = _key_query(topic.name, given)
            search, limit, frames = partial(self._with_key, by_key), by_key.limit, 1
        else:
            in_time = time_query(topic.name, given)
            search, limit, frames = partial(self._in_time, in_time), in_time.limit, FRAMES_HELD
        largest = (topic.message_bytes_max or self._config.message_bytes_max) + _BESIDES_BODY_BYTES
        claim = await self._decoding.claim(found_bytes(max(FOUND_BYTES_MAX, largest), limit, frames))
        try:
            document = await self._loop.run_in_executor(self._executor, search)
        except BaseException:
            claim.release()
            raise
        claim.shrink(len(document))
        return replace(json_answer(document), taken=claim.release)

    def _readable(self, topic: str) -> TopicConfig:
        """Return a topic that exists and may be read."""
        config = self._store.topic(topic)
        if not config.perm & Perm.READ:
            raise NoPermission("Reading", f"topic {topic}")
        return config

    def _in_time(self, query: TimeQuery) -> bytes:
        return time_page(self._store.query_by_time(query), query.topic, self._config.name)

    def _with_key(self, query: KeyQuery) -> bytes:
        found = self._store.query_by_key(query)
        messages: list[dict[str, Any]] = []
        for piece in found.slices:
            place = MessageQueue(query.topic, self._config.name, piece.header.queue)
            messages += forms.messages(forms.Decoded((piece,), piece.next_offset), place)
        next_page = None if found.last is None else f"{found.last.log_offset}-{found.last.row}"
        return msgspec.json.encode(
            {
                "messages": messages,
                "lag_bytes": found.lag_bytes,
                "uncovered": found.uncovered,
                "next_page": next_page,
            }
        )


def _key_query(topic: str, given: Mapping[str, str]) -> KeyQuery:
    """Read the parameters of a search by key; raise InvalidRequest."""
    return KeyQuery(
        topic,
        _checked(key_of(given)),
        whole_number(given, "begin", -NUMBER_MAX, NUMBER_MAX, 0),
        whole_number(given, "end", -NUMBER_MAX, NUMBER_MAX, NUMBER_MAX),
        whole_number(given, "limit", 1, FOUND_MAX, DEFAULT_FOUND),
        FOUND_BYTES_MAX,
        _place(given["page"]) if "page" in given else None,
    )


def _checked(key: bytes | None) -> bytes:
    """Return the key to look for; raise InvalidRequest if there is none, or one that no message can have."""
    if key is None:
        raise InvalidRequest("the query", "needs either key or key_base64")
    if not 0 < len(key) <= KEY_BYTES_MAX:
        raise InvalidRequest("parameter key", f"has {len(key)} bytes, not 1 to {KEY_BYTES_MAX}")
    return key


def _place(page: str) -> PlaceInLog:
    parts = page.split("-")
    if len(parts) != 2:
        raise InvalidRequest("parameter page", "is not the next_page of an answer to a search by key")
    return PlaceInLog(
        number(parts[0], "the log offset of parameter page", 0, NUMBER_MAX),
        number(parts[1], "the row of parameter page", 0, NUMBER_MAX),
    )
