"""Descriptions of sinks for callers, made from the sink table."""

from __future__ import annotations

from rocketq.protocol.documents.sinks import (
    PendingBatch,
    PublicationDescription,
    SinkDescription,
    StageDescription,
)
from rocketq_broker.store.sinks.table import Decision, SinkTable


def describe(table: SinkTable, sink: str, broker: str) -> SinkDescription:
    """Return a sink that the table has."""
    entry = table.sinks[sink]
    decides = entry.coordinator == broker
    stages = tuple(
        StageDescription(each.batch, each.run, len(each.frames), each.messages, each.bytes, each.opened_at_ms)
        for each in (table.stages[number] for number in sorted(table.stages))
        if each.sink == sink
    )
    publishing = tuple(
        PublicationDescription(
            each.batch, each.run, len(each.rest), sum(frame.messages for frame in each.rest),
            sum(frame.size for frame in each.rest),
        )
        for each in table.publishing
        if each.sink == sink
    )  # fmt: skip
    return SinkDescription(
        sink,
        broker,
        entry.coordinator,
        entry.query if decides else None,
        entry.run if decides else None,
        entry.decided,
        tuple(_pending(each) for each in entry.pending),
        stages,
        publishing,
    )


def _pending(decision: Decision) -> PendingBatch:
    return PendingBatch(decision.batch, decision.unsettled)
