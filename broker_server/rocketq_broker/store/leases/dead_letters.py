"""Dead letters: which messages have had their last attempt, and what is stored of them.

A dead letter goes to queue 0 of the group's dead letter topic on the broker that has the message. It has the
properties of any dead letter (`rocketq.protocol.rules.retry_properties`), so it is listed and sent again as
those of members are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from rocketq.model import MessageQueue, message_id
from rocketq.protocol.arrow.stream_writer import encapsulate
from rocketq.protocol.frame_slices import FrameSlice
from rocketq.protocol.property_columns import entries_of
from rocketq.protocol.retry_columns import with_return
from rocketq_broker.store.commit.small_batches import QueueBatch

#: Why it died; a lease says nothing of what its holder met.
WHY: Final = "its last lease ran out"


def is_dead(attempt: int, attempts_max: int) -> bool:
    """Whether a message whose lease ran out had its last attempt; there is always a first."""
    return attempt >= max(1, attempts_max)


def dead_letters(queue: MessageQueue, slices: Sequence[FrameSlice], attempts: int) -> QueueBatch:
    """Return the batch for the topic of dead letters that shows messages after so many attempts."""
    made = pa.concat_batches([_copies(queue, piece, attempts) for piece in slices])
    return QueueBatch(0, encapsulate(made), made)


def _copies(queue: MessageQueue, piece: FrameSlice, attempts: int) -> pa.RecordBatch:
    batch, offsets = piece.batch, piece.offsets().tolist()
    return with_return(
        batch,
        entries_of(batch),
        failures=pa.repeat(attempts, batch.num_rows),
        topics=pa.repeat(queue.topic, batch.num_rows),
        ids=pa.array([message_id(queue, offset) for offset in offsets], pa.string()),
        reasons=pa.repeat(WHY, batch.num_rows),
    )
