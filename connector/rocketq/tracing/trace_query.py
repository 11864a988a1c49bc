"""Finding the way of a message: its trace records by key, and the message itself where it still is."""

from __future__ import annotations

import threading
from typing import Final

from rocketq.clock import Clock
from rocketq.errors import BrokerUnreachable, InvalidConfiguration, NotFound, RouteNotFound
from rocketq.errors.client_errors import TraceNotFound
from rocketq.message_query import LIMIT_MAX, FoundByKey, Query
from rocketq.model import StoredMessage, TimerId
from rocketq.protocol.rules.reserved_names import TRACE_TOPIC
from rocketq.tracing.message_trace import MessageTrace, message_trace
from rocketq.tracing.records import TraceRecord, TraceType, read_record

#: How often the index is asked again.
_AGAIN_S: Final = 0.05


def find_trace(
    query: Query, wanted: str, clock: Clock, *, allow_missing: bool = False, timeout_ms: int = 0
) -> MessageTrace:
    """Return the way of a message, as `_found` does; wait so long for records that are not indexed yet."""
    until_ms = clock.monotonic_ms() + timeout_ms
    again = threading.Event()
    while True:
        try:
            return _found(query, wanted, allow_missing)
        except TraceNotFound as error:
            if not error.facts["lag_bytes"] or clock.monotonic_ms() >= until_ms:
                raise
        again.wait(_AGAIN_S)


def _found(query: Query, wanted: str, allow_missing: bool) -> MessageTrace:
    """Return the way of the message with this id: its own, or that of its place, or of its transaction.

    Of a transaction it is the way of the first message that has records. Raises TraceNotFound if there is no
    record of it; BrokerUnreachable for a broker that may have some and does not answer or has left the route,
    unless `allow_missing`.
    """
    try:
        found = _Records(query, wanted, allow_missing)
    except RouteNotFound as error:
        raise TraceNotFound(wanted, 0) from error
    records = [each for each in found.records if each.type is not TraceType.END_TRANSACTION]
    own = next((each.unique_id for each in sorted(records, key=_begun) if each.unique_id is not None), None)
    if not records:
        # The place of a message of a transaction is in no record before a consumer makes one.
        own = _own_id(query, wanted, allow_missing)
    if own not in (None, wanted):
        # Failed attempts, and copies at other places, are known by the message's own id.
        records = [each for each in records if each.unique_id == own] + found.of(str(own))
    if not records:
        raise TraceNotFound(wanted, found.lag_bytes)
    for transaction in sorted({each.transaction for each in records if each.transaction is not None}):
        answers = found.of(transaction)
        records += [each for each in answers if each.type is TraceType.END_TRANSACTION]
    stored, all_asked = _stored(query, records, allow_missing)
    return message_trace(records, stored, found.complete and all_asked)


class _Records:
    """The records that were found, by one id after the other, and whether there may be more of them."""

    def __init__(self, query: Query, wanted: str, allow_missing: bool) -> None:
        """Look for the first id; raise RouteNotFound if there is no topic of records."""
        self._query, self._allow_missing = query, allow_missing
        self.complete, self.lag_bytes = True, 0
        self.records = self.of(wanted)

    def of(self, wanted: str) -> list[TraceRecord]:
        found = self._query.by_key(TRACE_TOPIC, wanted, limit=LIMIT_MAX, allow_missing=self._allow_missing)
        self.complete = self.complete and _is_complete(found)
        self.lag_bytes = max(self.lag_bytes, sum(found.lag_bytes.values()))
        read = [read_record(message.body) for message in found.messages]
        return [each for each in read if each is not None and wanted in each.ids]


def _begun(record: TraceRecord) -> int:
    return record.at_us


def _own_id(query: Query, place: str, allow_missing: bool) -> str | None:
    """Return the own id of the message at a place; None if this is no place, or nothing is there."""
    try:
        return query.by_id(place).unique_id
    except (InvalidConfiguration, NotFound, RouteNotFound):
        return None
    except BrokerUnreachable:
        if not allow_missing:
            raise
        return None


def _is_complete(found: FoundByKey) -> bool:
    return found.complete and len(found.messages) < LIMIT_MAX


def _stored(
    query: Query, records: list[TraceRecord], allow_missing: bool
) -> tuple[list[StoredMessage], bool]:
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
    own = records[0].unique_id
    if own is None or all(each.transaction is None for each in records):
        return found, all_asked
    # Its broker gave it a place when the transaction was committed, which no producer was told.
    try:
        copies = query.by_unique_id(records[0].topic, own, limit=LIMIT_MAX, allow_missing=allow_missing)
    except RouteNotFound:
        return found, all_asked
    known = {each.message_id for each in found}
    found += [each for each in copies.messages if each.message_id not in known]
    return found, all_asked and _is_complete(copies)
