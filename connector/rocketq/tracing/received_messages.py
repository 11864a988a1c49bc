"""What a consumer's messages become in the trace: SubBefore when they are handed out, SubAfter afterwards.

It records the messages that their producer marked, and with a rate of 1 all that are not marked otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from rocketq.clock import Clock
from rocketq.config import TraceConfig
from rocketq.consuming.receive_hooks import Receipt
from rocketq.model import UNIQUE_ID_PROPERTY, message_id
from rocketq.producing.added_properties import rows_with
from rocketq.protocol.column_values import numbers
from rocketq.protocol.message_schema import MESSAGE_SCHEMA
from rocketq.protocol.rules.reserved_names import is_reserved_topic
from rocketq.protocol.rules.system_properties import TRACE_ON
from rocketq.tracing.records import ACKNOWLEDGED, FAILED, TraceRecord, TraceType
from rocketq.tracing.trace_sender import TraceSender

_PROPERTIES = MESSAGE_SCHEMA.get_field_index("properties")


class ReceivedMessages:
    """Records what the consumers of a client receive (`ReceiveHook`). Thread-safe."""

    def __init__(self, config: TraceConfig, sender: TraceSender, clock: Clock) -> None:
        self._takes_all = config.rate >= 1
        self._topics = None if config.topics is None else frozenset(config.topics)
        self._sender, self._clock = sender, clock

    def after_receipt(self, receipt: Receipt) -> Collection[int]:
        rows = self._traced(receipt)
        if len(rows):
            self._add(receipt, rows, TraceType.SUB_BEFORE, None, None)
        found: list[int] = rows.tolist()
        return frozenset(found)

    def after_handling(
        self, receipt: Receipt, rows: Sequence[int], elapsed_ms: int, is_acknowledged: bool
    ) -> None:
        outcome = ACKNOWLEDGED if is_acknowledged else FAILED
        self._add(receipt, np.asarray(rows, np.int64), TraceType.SUB_AFTER, elapsed_ms, outcome)

    def _traced(self, receipt: Receipt) -> Any:
        """Return the rows whose way is recorded."""
        column = receipt.delivery.piece.batch.column(_PROPERTIES)
        if not self._takes_all:
            return rows_with(column, TRACE_ON, "true")
        topic = receipt.queue.topic
        covered = topic in self._topics if self._topics is not None else not is_reserved_topic(topic)
        if not covered:
            return rows_with(column, TRACE_ON, "true")
        return np.setdiff1d(np.arange(receipt.delivery.rows), rows_with(column, TRACE_ON, "false"))

    def _add(
        self, receipt: Receipt, rows: Any, kind: TraceType, elapsed_ms: int | None, outcome: str | None
    ) -> None:
        now_us, room = self._clock.now_us(), self._sender.room
        if len(rows) > room:
            self._sender.drop(len(rows) - room)
            rows = rows[:room]
        delivery = receipt.delivery
        batch, stored_at_us = delivery.piece.batch, delivery.piece.header.stored_at_us
        places = numbers(rows)
        offsets = delivery.piece.offsets()[rows].tolist()
        columns = [batch.column(name).take(places) for name in ("key", "tag", "properties")]

        def making() -> Iterable[TraceRecord]:
            values = zip(rows, offsets, *(column.to_pylist() for column in columns), strict=True)
            for row, offset, key, tag, properties in values:
                yield TraceRecord(
                    type=kind,
                    at_us=now_us,
                    topic=receipt.queue.topic,
                    broker=receipt.queue.broker,
                    client_id=receipt.client_id,
                    group=receipt.group,
                    attempt=receipt.attempt_of(row),
                    unique_id=dict(properties or ()).get(UNIQUE_ID_PROPERTY),
                    message_id=message_id(receipt.queue, offset),
                    elapsed_ms=elapsed_ms,
                    outcome=outcome,
                    key=None if key is None else key.decode(errors="replace"),
                    tag=tag,
                    stored_at_us=stored_at_us,
                )

        if len(rows):
            self._sender.add(len(rows), making)
