"""What a producer's sends become in the trace: choosing messages, and a Pub record for each attempt."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketq.clock import Clock
from rocketq.config import TraceConfig
from rocketq.model import NO_OFFSET, UNIQUE_ID_PROPERTY, Message, MessageQueue, SendResult, message_id
from rocketq.producing.added_properties import lacks, rows_with, with_properties
from rocketq.producing.attempts.parcels import Parcel
from rocketq.producing.attempts.send_trace import TracedAttempt
from rocketq.producing.unique_ids import UNIQUE_IDS
from rocketq.protocol.column_values import numbers, repeated
from rocketq.protocol.message_schema import MESSAGE_SCHEMA
from rocketq.protocol.rules.reserved_names import is_reserved_topic
from rocketq.protocol.rules.system_properties import TRACE_ON
from rocketq.tracing.records import TraceRecord, TraceType
from rocketq.tracing.trace_sender import TraceSender

_PROPERTIES = MESSAGE_SCHEMA.get_field_index("properties")


class SentMessages:
    """Chooses and records the messages of a client's producers (`SendTrace`). Thread-safe."""

    def __init__(self, config: TraceConfig, sender: TraceSender, client_id: str, clock: Clock) -> None:
        self._rate, self._sender = config.rate, sender
        self._topics = None if config.topics is None else frozenset(config.topics)
        self._client_id, self._clock = client_id, clock
        #: One of its own, so that a program that seeds Python's gets the same numbers with and without a
        #: trace.
        self._chance = random.Random().random

    # --- choosing --------------------------------------------------------------------

    def marked(self, topic: str, properties: dict[str, str] | None) -> dict[str, str] | None:
        """Return the properties of a message, with the mark and an id of its own if it is to be recorded."""
        own = None if properties is None else properties.get(TRACE_ON)
        if own is None:
            # The chance first: it decides most messages.
            return _marked(properties) if self._chance() < self._rate and self._covers(topic) else properties
        return _marked(properties) if own == "true" else properties

    def marked_rows(
        self, topic: str, given: Mapping[int, Mapping[str, str]], rows: int
    ) -> dict[int, dict[str, str]]:
        """Choose from the messages of a batch; return the properties of those that are recorded, by row."""
        found = {row: _marked(own) for row, own in given.items() if own.get(TRACE_ON) == "true"}
        if self._covers(topic):
            for row in self._chosen_rows(rows):
                own = given.get(row)
                if own is None or own.get(TRACE_ON) is None:
                    found[row] = _marked(own)
        return found

    def _chosen_rows(self, rows: int) -> Iterable[int]:
        """Choose each row with the chance of the rate, at the cost of the rows that are chosen."""
        if self._rate >= 1:
            yield from range(rows)
        elif self._rate > 0:
            # How many are passed over before the next one has a geometric distribution.
            row = self._passed_over()
            while row < rows:
                yield row
                row += 1 + self._passed_over()

    def _passed_over(self) -> int:
        return int(math.log(1 - self._chance()) / math.log1p(-self._rate))

    def marked_batch(self, topic: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch of which the chosen messages are marked, and have an id of their own."""
        column = batch.column(_PROPERTIES)
        chosen = self._chosen(batch.num_rows) if self._covers(topic) else np.zeros(batch.num_rows, np.bool_)
        chosen &= lacks(column, TRACE_ON)
        by_hand = rows_with(column, TRACE_ON, "true")
        if not chosen.any() and not len(by_hand):
            return batch
        lacking = lacks(column, UNIQUE_ID_PROPERTY)
        unnamed = int((chosen & lacking).sum())
        added = {TRACE_ON: repeated("true", int(chosen.sum()))}
        if unnamed == int(chosen.sum()):
            # Nearly always all of them lack an id, or none does, so once through the column is enough.
            added[UNIQUE_ID_PROPERTY] = UNIQUE_IDS.many(unnamed).column(unnamed)
            lacking &= ~chosen
        column = with_properties(column, chosen, added)
        lacking[~chosen] = False
        lacking[by_hand] = lacks(column, UNIQUE_ID_PROPERTY)[by_hand]
        if lacking.any():
            count = int(lacking.sum())
            ids = UNIQUE_IDS.many(count).column(count)
            column = with_properties(column, lacking, {UNIQUE_ID_PROPERTY: ids})
        return batch.set_column(_PROPERTIES, MESSAGE_SCHEMA.field(_PROPERTIES), column)

    def _covers(self, topic: str) -> bool:
        return topic in self._topics if self._topics is not None else not is_reserved_topic(topic)

    def _chosen(self, rows: int) -> Any:
        """Return which rows of a batch are chosen: each with the chance of the rate."""
        if self._rate >= 1:
            return np.ones(rows, np.bool_)
        chance = np.random.default_rng()
        chosen = np.zeros(rows, np.bool_)
        # Where a row is drawn twice, it is one row less: with the rates that are worth sampling, hardly any.
        chosen[chance.integers(0, max(1, rows), chance.binomial(rows, self._rate))] = True
        return chosen

    # --- recording -------------------------------------------------------------------

    def attempted_one(
        self, attempt: TracedAttempt, queue: MessageQueue, message: Message, result: SendResult | None
    ) -> None:
        begun_us = self._clock.now_us() - 1_000 * attempt.elapsed_ms

        def making() -> Iterable[TraceRecord]:
            fields = (message.key, message.tag, len(message.body), message.properties or {})
            return [self._record(attempt, begun_us, queue, fields, result, 0)]

        self._sender.add(1, making)

    def attempted(self, attempt: TracedAttempt, parcel: Parcel, results: Sequence[SendResult] | None) -> None:
        begun_us = self._clock.now_us() - 1_000 * attempt.elapsed_ms
        for number, piece in enumerate(parcel.slices):
            rows = rows_with(piece.batch.column(_PROPERTIES), TRACE_ON, "true")
            room = self._sender.room
            if len(rows) > room:
                self._sender.drop(len(rows) - room)
                rows = rows[:room]
            if len(rows):
                result = None if results is None else results[number]
                self._add_rows(attempt, begun_us, piece.queue, piece.batch, rows, result)

    def _add_rows(
        self,
        attempt: TracedAttempt,
        begun_us: int,
        queue: MessageQueue,
        batch: pa.RecordBatch,
        rows: Any,
        result: SendResult | None,
    ) -> None:
        # Copies of the few values, so that they do not keep the whole batch in memory.
        places = numbers(rows)
        columns = [batch.column(name).take(places) for name in ("key", "tag", "properties")]
        columns.append(pc.binary_length(batch.column("body")).take(places))

        def making() -> Iterable[TraceRecord]:
            values = zip(rows.tolist(), *(column.to_pylist() for column in columns), strict=True)
            for row, key, tag, properties, size in values:
                fields = (key, tag, size, dict(properties))
                yield self._record(attempt, begun_us, queue, fields, result, row)

        self._sender.add(len(rows), making)

    def _record(
        self,
        attempt: TracedAttempt,
        begun_us: int,
        queue: MessageQueue,
        fields: tuple[bytes | None, str | None, int, dict[str, str]],
        result: SendResult | None,
        row: int,
    ) -> TraceRecord:
        key, tag, size, properties = fields
        place: str | None = None
        if result is not None:
            is_placed = result.offset != NO_OFFSET
            place = message_id(result.queue, result.offset + row) if is_placed else result.timer_id
        error = attempt.error
        outcome = "UNKNOWN" if error is None else error.code
        return TraceRecord(
            type=TraceType.PUB,
            at_us=begun_us,
            topic=queue.topic,
            broker=attempt.broker,
            client_id=self._client_id,
            attempt=attempt.number,
            unique_id=properties.get(UNIQUE_ID_PROPERTY),
            message_id=place,
            elapsed_ms=attempt.elapsed_ms,
            outcome=outcome if result is None else str(result.status),
            error=None if error is None else error.message,
            key=None if key is None else key.decode(errors="replace"),
            tag=tag,
            body_bytes=size,
        )


def _marked(properties: Mapping[str, str] | None) -> dict[str, str]:
    """Return properties with the mark, and an id if the message has none of its own."""
    made = {**(properties or {}), TRACE_ON: "true"}
    if made.get(UNIQUE_ID_PROPERTY) is None:
        made[UNIQUE_ID_PROPERTY] = UNIQUE_IDS.one()
    return made
