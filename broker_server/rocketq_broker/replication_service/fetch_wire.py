"""A fetch and its answer as they cross the wire: query, header and body, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rocketq.errors import InvalidRequest, RemoteError
from rocketq.protocol.documents.replication import FetchHead
from rocketq_broker.replication.fetching import (
    BeginsLater,
    Diverged,
    Fetch,
    FetchAnswer,
    FetchPlace,
    Shipment,
)
from rocketq_broker.replication.group_record import ReplicaId
from rocketq_broker.store.replica.raw_frames import RawFrames

#: Names of the query, in the order of what a fetch has.
_NUMBERS: Final = ("number", "epoch", "end", "last_epoch", "held")
PARAMETERS: Final = frozenset(
    {*_NUMBERS, "group", "incarnation", "confirmed", "max_bytes", "wait_ms", "damaged", "leaving"}
)
RANGE_PARAMETERS: Final = frozenset({"group", "begin", "max_bytes"})
_NUMBER_MAX: Final = 2**63 - 1


def query_of(fetch: Fetch) -> dict[str, str | int | None]:
    """Return the query of a fetch; the caller adds what it knows to be confirmed, and its limits."""
    place = fetch.place
    return {
        "group": fetch.group, "number": fetch.replica.number, "incarnation": fetch.replica.incarnation,
        "epoch": place.epoch, "end": place.end, "last_epoch": place.last_epoch, "held": fetch.held,
    }  # fmt: skip


def fetch_of(given: Mapping[str, str]) -> Fetch:
    """Return the fetch of a query; raise InvalidRequest."""
    number, epoch, end, last_epoch, held = (number_of(given, name) for name in _NUMBERS)
    replica = ReplicaId(number, given.get("incarnation", ""))
    return Fetch(given.get("group", ""), replica, FetchPlace(epoch, end, last_epoch), held)


def number_of(given: Mapping[str, str], name: str) -> int:
    """Return a number of the query; raise InvalidRequest."""
    text = given.get(name, "")
    if not (text.isascii() and text.isdigit()) or int(text) > _NUMBER_MAX:
        raise InvalidRequest(f"parameter {name}", f"{text[:40]!r} is not a number from 0 to {_NUMBER_MAX}")
    return int(text)


def head_of(answer: FetchAnswer, segments: tuple[int, ...] = ()) -> FetchHead:
    """Return what the header of an answer says."""
    place = answer.place
    where = (place.epoch, place.end, place.last_epoch)
    match answer:
        case Shipment(_, end, confirmed):
            return FetchHead("shipment", *where, end=end, confirmed=confirmed, segments=segments)
        case Diverged(_, keep, keep_epoch, begin, before):
            return FetchHead("diverged", *where, keep=keep, keep_epoch=keep_epoch, begin=begin, before=before)
        case BeginsLater(_, begin, before):
            return FetchHead("begins-later", *where, begin=begin, before=before)


def answer_of(head: FetchHead, body: bytes | memoryview) -> tuple[FetchAnswer, RawFrames | None]:
    """Return the answer, and its frames if it has any; raise RemoteError for a kind that is not known."""
    place = FetchPlace(head.epoch, head.at, head.last_epoch)
    match head.kind:
        case "shipment":
            frames = RawFrames(head.at, (memoryview(body),), head.segments) if len(body) else None
            return Shipment(place, head.end, head.confirmed), frames
        case "diverged":
            return Diverged(place, head.keep, head.keep_epoch, head.begin, head.before), None
        case "begins-later":
            return BeginsLater(place, head.begin, head.before), None
    raise RemoteError(
        f"The master answered a fetch with {head.kind!r}, which this version does not know.",
        hint="Let all brokers of a group run the same version; upgrade the slaves first.",
    )
