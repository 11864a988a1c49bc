"""Delayed messages on their way into frames: sorted by delivery time, in pieces, and merged if they are
small.

A frame of delayed messages is read whenever some of its messages are due. So a large batch with many delivery
times becomes several frames of neighbouring times, each small enough to be read for the sake of one message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rocketq.model import Message
from rocketq.protocol.arrow.stream_writer import encapsulate
from rocketq.protocol.rules.delivery_time import Times, timed_properties
from rocketq_broker.store.commit.small_batches import (
    Delayed,
    DelayedBatch,
    DelayedMessage,
    QueueMessage,
    batches_of,
)

#: Messages with different delivery times are cut into frames of about this size.
PIECE_BYTES: Final = 128 << 10


def delayed_batches(
    queue: int, batch: pa.RecordBatch, times: Times, whole: bool = False
) -> list[DelayedBatch]:
    """Return a batch for a queue as batches of delayed messages, which say their times (`with_times`).

    A message whose time is NO_TIME is due at once. With `whole` they are one batch, however large.
    """
    pieces = 1 if whole or (times == times[0]).all() else min(times.size, -(-batch.nbytes // PIECE_BYTES))
    if pieces == 1 and (np.diff(times) >= 0).all():
        return [DelayedBatch(queue, encapsulate(batch), batch, times)]
    order = _stable_order(times)
    step = -(-times.size // pieces)
    made: list[DelayedBatch] = []
    for first in range(0, times.size, step):
        rows = order[first : first + step]
        piece = batch.take(pa.array(rows))
        made.append(DelayedBatch(queue, encapsulate(piece), piece, times[rows]))
    return made


def _stable_order(times: Times) -> npt.NDArray[np.int64]:
    """Return the rows by time, those of equal times in their order.

    Distinct numbers need no stable sort, which takes several times as long.
    """
    return np.argsort((times - times.min()) * times.size + np.arange(times.size))


def delayed_message(queue: int, message: Message, at_ms: int) -> DelayedMessage:
    """Return a message that came alone and is to be delivered at a time."""
    timed = replace(message, properties=timed_properties(message.properties or {}, at_ms))
    return DelayedMessage(QueueMessage(queue, timed), at_ms)


class MergedDelayed(NamedTuple):
    """The body of one frame of delayed messages, their delivery times, and where the rows of a run went."""

    body: pa.Buffer
    times: Times
    #: The row of each message in the frame, in the order of the run.
    rows: npt.NDArray[np.int64]


def merge_delayed(run: Sequence[Delayed]) -> MergedDelayed:
    """Make what goes into one frame of delayed messages for one queue, sorted by delivery time."""
    times = np.concatenate(
        [each.times if isinstance(each, DelayedBatch) else np.array([each.at_ms]) for each in run]
    )
    if len(run) == 1 and isinstance(run[0], DelayedBatch):
        return MergedDelayed(run[0].encapsulated, times, np.arange(times.size))
    parts = [each if isinstance(each, DelayedBatch) else each.alone for each in run]
    batches = batches_of(parts)
    batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    order = _stable_order(times)
    if (np.diff(times) < 0).any():
        batch = batch.take(pa.array(order))
    rows = np.empty(order.size, np.int64)
    rows[order] = np.arange(order.size)
    return MergedDelayed(encapsulate(batch), times[order], rows)
