"""Delayed sends: which messages of a send are delayed, and what their answer says.

A message is delayed by its properties (`rocketq.protocol.rules.delivery_time`), in every form of a send. A
batch of an Arrow stream in which a message is delayed is held as a whole: those of its messages that have no
delivery time are delivered at once. What is delayed has no offset yet. The answer names a message that is
delayed alone by its timer id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from rocketq.model import NO_OFFSET, Appended, MessageQueue, TimerId
from rocketq.protocol.documents.broker import SendAnswer
from rocketq.protocol.rules.delivery_time import Horizon, timed_batch
from rocketq_broker.config import BrokerConfig
from rocketq_broker.store.commit.delayed_batches import delayed_batches
from rocketq_broker.store.commit.small_batches import DelayedBatch
from rocketq_broker.store.store import AppendOutcome, MessageStore, TimerPlace


def horizon(config: BrokerConfig, store: MessageStore) -> Horizon:
    """Return from when to when a delivery time may be now."""
    return Horizon(store.now_ms(), config.delay_ms_max)


def held_batches(
    queue: int, batch: pa.RecordBatch, allowed: Horizon, first_row: int = 0, is_staged: bool = False
) -> list[DelayedBatch]:
    """Return a batch as batches of delayed messages; none if no message of it is delayed.

    A staged one stays whole, since its answer and its commit name it by one place in the log. Raises
    InvalidMessage, whose row counts from `first_row`.
    """
    timed = timed_batch(batch, allowed, first_row)
    return [] if timed is None else delayed_batches(queue, *timed, whole=is_staged)


def joined(appended: Sequence[Appended], pieces: Iterable[int]) -> Iterator[Appended]:
    """Yield where the batches of a send went of which each was appended in so many pieces."""
    parts = iter(appended)
    for count in pieces:
        first = next(parts)
        rest = [next(parts) for _ in range(count - 1)]
        yield Appended(first.queue, first.offset, first.count + sum(each.count for each in rest))


def timer_ids(
    broker: str, topic: str, appended: Sequence[Appended], places: Sequence[TimerPlace | None]
) -> tuple[str, ...]:
    """Return the id of each batch that is a delayed message alone, else an empty text."""
    return tuple(
        "" if place is None else str(TimerId(MessageQueue(topic, broker, each.queue), *place))
        for each, place in zip(appended, places, strict=True)
    )


def send_answer(broker: str, topic: str, outcome: AppendOutcome) -> SendAnswer:
    """Return the answer to a send, batch by batch of its body."""
    appended, places, pieces = outcome.appended, outcome.timers, outcome.pieces
    if all(each.offset != NO_OFFSET for each in appended):
        return SendAnswer(outcome.status, broker, topic, appended)
    places = places or (None,) * len(appended)
    if pieces and len(pieces) < len(appended):
        firsts = [sum(pieces[:at]) for at in range(len(pieces))]
        places = tuple(places[at] if count == 1 else None for at, count in zip(firsts, pieces, strict=True))
        appended = tuple(joined(appended, pieces))
    return SendAnswer(outcome.status, broker, topic, appended, timer_ids(broker, topic, appended, places))
