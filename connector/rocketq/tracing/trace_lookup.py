"""Finding the way of a message: its trace records by key, and the message itself where it still is."""

from __future__ import annotations

from rocketq.errors import BrokerUnreachable, NotFound, RouteNotFound
from rocketq.errors.client_errors import TraceNotFound
from rocketq.message_lookup import LIMIT_MAX, FoundByKey, Query
from rocketq.model import StoredMessage, TimerId
from rocketq.protocol.rules.reserved_names import TRACE_TOPIC
from rocketq.tracing.message_trace import MessageTrace, message_trace
from rocketq.tracing.records import TraceRecord, read_record


def find_trace(query: Query, wanted: str, *, allow_missing: bool = False) -> MessageTrace:
    """Return the way of the message with this id: its own, or that of its place.

    Raises TraceNotFound if there is no record of it; BrokerUnreachable for a broker that may have some and
    does not answer or has left the route, unless `allow_missing`.
    """
    try:
        found = query.by_key(TRACE_TOPIC, wanted, limit=LIMIT_MAX, allow_missing=allow_missing)
    except RouteNotFound as error:
        raise TraceNotFound(wanted, 0) from error
    complete = _is_complete(found)
    records = _records(found, wanted)
    own = next((each.unique_id for each in records if each.unique_id not in (None, wanted)), None)
    if own is not None:
        # The place was given: failed attempts, and copies at other places, are known by the message's own id.
        further = query.by_key(TRACE_TOPIC, own, limit=LIMIT_MAX, allow_missing=allow_missing)
        records += _records(further, own)
        complete = complete and _is_complete(further)
    if not records:
        raise TraceNotFound(wanted, sum(found.lag_bytes.values()))
    stored, all_asked = _stored(query, records)
    return message_trace(records, stored, complete and all_asked)


def _records(found: FoundByKey, wanted: str) -> list[TraceRecord]:
    read = [read_record(message.body) for message in found.messages]
    return [each for each in read if each is not None and wanted in (each.unique_id, each.message_id)]


def _is_complete(found: FoundByKey) -> bool:
    return found.complete and len(found.messages) < LIMIT_MAX


def _stored(query: Query, records: list[TraceRecord]) -> tuple[list[StoredMessage], bool]:
    """Return the message from each of its places that still has it, and whether all could be asked."""
    places = {each.message_id for each in records if each.message_id is not None}
    found: list[StoredMessage] = []
    all_asked = True
    for place in sorted(places):
        if TimerId.parse(place) is not None:
            # It is delayed: its place is not known before it is delivered.
            continue
        try:
            found.append(query.by_id(place))
        except (NotFound, RouteNotFound):
            # Its retention is over, or its topic was deleted: the records are what is left of it.
            continue
        except BrokerUnreachable:
            all_asked = False
    return found, all_asked
