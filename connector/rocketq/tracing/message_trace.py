"""The way of one message, put together from its trace records; pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rocketq.model import StoredMessage
from rocketq.tracing.records import TraceRecord, TraceType


@dataclass(frozen=True, slots=True)
class Handling:
    """One time that a consumer handed the message out.

    `outcome` is ACKNOWLEDGED or FAILED. It is None if the consumer is still at it, lost the queue, or ended.
    """

    group: str
    client_id: str
    message_id: str
    attempt: int
    received_at_us: int
    elapsed_ms: int | None
    outcome: str | None


@dataclass(frozen=True, slots=True)
class MessageTrace:
    """Who sent a message, where it is stored, and who received it with which outcome.

    Times are µs since 1970, lists in the order of time. `unique_id` is None for a message without an id of
    its own. `stored` are the copies that the brokers still have: more than one if a send was repeated after
    its answer was lost. `complete` is whether no record or copy that is stored can be missing here; records
    that a client dropped, or has not sent yet, it cannot know of.
    """

    topic: str
    unique_id: str | None
    attempts: tuple[TraceRecord, ...]
    handlings: tuple[Handling, ...]
    #: The answers to what became of the message's transaction: of the producer, and of checks.
    decisions: tuple[TraceRecord, ...]
    stored: tuple[StoredMessage, ...]
    #: All records, in the order of time.
    records: tuple[TraceRecord, ...]
    complete: bool

    @property
    def message_ids(self) -> tuple[str, ...]:
        """The ids of the message's places."""
        return tuple(sorted({each.message_id for each in self.records if each.message_id is not None}))


def message_trace(
    records: Iterable[TraceRecord], stored: Iterable[StoredMessage], complete: bool
) -> MessageTrace:
    """Put the records of one message together, at least one. A record that was stored twice is one."""
    ordered = sorted(dict.fromkeys(records), key=_order)
    unique_id = next((each.unique_id for each in ordered if each.unique_id is not None), None)
    return MessageTrace(
        topic=ordered[0].topic,
        unique_id=unique_id,
        attempts=tuple(each for each in ordered if each.type is TraceType.PUB),
        handlings=_handlings(ordered),
        decisions=tuple(each for each in ordered if each.type is TraceType.END_TRANSACTION),
        stored=tuple(sorted(stored, key=lambda each: (each.stored_at_us, each.message_id))),
        records=tuple(ordered),
        complete=complete,
    )


def _order(record: TraceRecord) -> tuple[int, int, int]:
    return record.at_us, list(TraceType).index(record.type), record.attempt


def _handlings(ordered: list[TraceRecord]) -> tuple[Handling, ...]:
    """Pair what was handed out with its outcome."""
    found: dict[tuple[str | None, str, str | None, int], Handling] = {}
    for each in ordered:
        if each.type in (TraceType.PUB, TraceType.END_TRANSACTION):
            continue
        name = (each.group, each.client_id, each.message_id, each.attempt)
        known = found.get(name)
        begun_us = each.at_us - 1_000 * (each.elapsed_ms or 0)
        found[name] = Handling(
            group=each.group or "",
            client_id=each.client_id,
            message_id=each.message_id or "",
            attempt=each.attempt,
            received_at_us=begun_us if known is None else min(known.received_at_us, begun_us),
            elapsed_ms=each.elapsed_ms if known is None or each.elapsed_ms is not None else known.elapsed_ms,
            outcome=each.outcome or (None if known is None else known.outcome),
        )
    return tuple(sorted(found.values(), key=lambda one: (one.received_at_us, one.attempt)))
