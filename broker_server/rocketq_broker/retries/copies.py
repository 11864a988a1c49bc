"""The copies of messages that failed, or that are sent again: decisions and columns, no I/O.

Which properties a copy has is said in `rocketq.protocol.rules.retry_properties`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rocketq.model import MessageQueue, message_id
from rocketq.protocol.documents.send_backs import FailedMessage
from rocketq.protocol.property_columns import Entries, entries_of, with_columns
from rocketq.protocol.retry_columns import with_return
from rocketq.protocol.rules.delivery_time import DELIVERY_PROPERTIES, Times
from rocketq.protocol.rules.retry_properties import (
    FAILURES,
    ORIGINAL_ID,
    ORIGINAL_TOPIC,
    REASON_CHARACTERS_MAX,
    RETURN_PROPERTIES,
    back_off_ms,
)

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RetryRules:
    """What decides about the next attempt: how many retries there are, the time, and the longest delay."""

    retries_max: int
    now_ms: int
    delay_ms_max: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Messages of one queue that failed, each with what its consumer says of it."""

    queue: MessageQueue
    batch: pa.RecordBatch
    offsets: Sequence[int]
    said: Sequence[FailedMessage]


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies of `Failed`, in its order: which of them are dead letters, and when the others are due."""

    batch: pa.RecordBatch
    is_dead: Flags
    times: Times

    def retried(self) -> tuple[pa.RecordBatch, Times]:
        """Return the copies that are tried again, with their delivery times."""
        kept = ~self.is_dead
        return self.batch.filter(pa.array(kept)), self.times[kept]

    def dead(self) -> pa.RecordBatch:
        """Return the dead letters."""
        return self.batch.filter(pa.array(self.is_dead))


def copies_of(failed: Failed, is_copy: bool, rules: RetryRules) -> Copies:
    """Decide what becomes of messages that failed, and make their copies.

    With `is_copy` the messages are copies themselves: they lie in the retry topic of the group.
    A message has failed as often as its properties or its consumer say, whichever is more (RocketMQ: a
    message whose reconsumeTimes has reached the maximum becomes a dead letter).
    """
    found = entries_of(failed.batch)
    failures = np.array([max(1, one.attempt) for one in failed.said], np.int64)
    if is_copy:
        failures = np.maximum(failures, _numbers(found.column(FAILURES)) + 1)
    is_dead = failures > rules.retries_max
    delays = [
        back_off_ms(int(count)) if one.delay_ms is None else max(0, one.delay_ms)
        for count, one in zip(failures, failed.said, strict=True)
    ]
    times = rules.now_ms + np.minimum(np.array(delays, np.int64), rules.delay_ms_max)
    due = pa.array([None if dead else str(at) for dead, at in zip(is_dead, times, strict=True)], pa.string())
    topics, ids = _origins(failed, found, is_copy)
    reasons = pa.array([one.reason[:REASON_CHARACTERS_MAX] or None for one in failed.said], pa.string())
    batch = with_return(
        failed.batch, found, failures=pa.array(failures), topics=topics, ids=ids, reasons=reasons, due=due
    )
    return Copies(batch, is_dead, times)


def letters_to_send(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return dead letters as they are sent to their topics again: as new messages, with their ids."""
    found = entries_of(batch)
    return with_columns(batch, found.without((*RETURN_PROPERTIES, *DELIVERY_PROPERTIES)), {})


def _origins(failed: Failed, found: Entries, is_copy: bool) -> tuple[pa.StringArray, pa.StringArray]:
    """Return the original topic and the original id of each message."""
    topics = pa.array([failed.queue.topic] * len(failed.offsets), pa.string())
    ids = pa.array([message_id(failed.queue, offset) for offset in failed.offsets], pa.string())
    if not is_copy:
        return topics, ids
    return pc.coalesce(found.column(ORIGINAL_TOPIC), topics), pc.coalesce(found.column(ORIGINAL_ID), ids)


def _numbers(column: pa.StringArray) -> npt.NDArray[np.int64]:
    """Return the numbers of a column, 0 where there is none."""
    numbers: npt.NDArray[np.int64] = pc.cast(pc.fill_null(column, "0"), pa.int64()).to_numpy()
    return numbers
