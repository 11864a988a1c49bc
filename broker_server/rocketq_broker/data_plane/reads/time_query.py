"""Time query: the messages of a topic that were stored within an interval, oldest first, as JSON pages.

    ?begin=T_us [&end=T_us] [&limit=N] [&page=…]    both times included; `page` is an answer's next_page

A page token names the last message of the page before, as `store time-queue-offset`, so pages need no state
here, and what arrives meanwhile comes on a later page.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from rocketq.errors import InvalidRequest
from rocketq.model import QUEUE_COUNT_MAX, MessageQueue
from rocketq_broker.data_plane.query_parameters import NUMBER_MAX, number, whole_number
from rocketq_broker.data_plane.reads import pull_formats as forms
from rocketq_broker.store.index.key_query import FOUND_BYTES_MAX
from rocketq_broker.store.log.time_query import FoundInTime, PlaceInTime, TimeQuery

PARAMETERS: Final = frozenset({"begin", "end", "limit", "page"})
#: RocketMQ returns at most 64 (maxMsgsNumBatch).
DEFAULT_FOUND: Final = 64
FOUND_MAX: Final = 1_000
#: A page may begin within one frame and end within another, and the search holds both inflated.
FRAMES_HELD: Final = 2


def time_query(topic: str, given: Mapping[str, str]) -> TimeQuery:
    """Read the parameters; raise InvalidRequest."""
    if "begin" not in given:
        raise InvalidRequest(
            "the query", "needs key, key_base64 or begin",
            hint="Give the key to look for, or the time in µs since 1970 from which on to list messages.",
        )  # fmt: skip
    return TimeQuery(
        topic,
        whole_number(given, "begin", -NUMBER_MAX, NUMBER_MAX),
        whole_number(given, "end", -NUMBER_MAX, NUMBER_MAX, NUMBER_MAX),
        whole_number(given, "limit", 1, FOUND_MAX, DEFAULT_FOUND),
        FOUND_BYTES_MAX,
        _place(given["page"]) if "page" in given else None,
    )


def time_page(found: FoundInTime, topic: str, broker: str) -> bytes:
    """Return the JSON document of one page."""
    messages: list[dict[str, Any]] = []
    for piece in found.slices:
        place = MessageQueue(topic, broker, piece.header.queue)
        messages += forms.messages(forms.Decoded((piece,), piece.next_offset), place)
    next_page = None if found.last is None else "-".join(map(str, found.last))
    return msgspec.json.encode({"messages": messages, "next_page": next_page})


def _place(page: str) -> PlaceInTime:
    parts = page.split("-")
    if len(parts) != 3:
        raise InvalidRequest("parameter page", "is not the next_page of an answer")
    return PlaceInTime(
        number(parts[0], "the time of parameter page", 0, NUMBER_MAX - 1),
        number(parts[1], "the queue of parameter page", 0, QUEUE_COUNT_MAX),
        number(parts[2], "the offset of parameter page", 0, NUMBER_MAX - 1),
    )
