"""Comparing a query's start offset with what the brokers hold, and the end offset of a batch. Pure.

`compare` compares a start offset with what the brokers hold now. For each queue:

    in both, min <= next <= max   it goes on at `next`
    only in the survey            it is new and begins at `min`: all of it is read
    next < min                    a loss: retention was faster; goes on at `min`
    next > max                    a loss: the broker lost the end of its log; goes on at `max`
    another incarnation           a loss: the topic was made anew; goes on at `min`
    only in the start             its broker is away, or it is not subscribed to any more: it stands still
    topic gone from its broker    a loss, and dropped: the topic was deleted, or the broker lost its data
                                  or was taken off the topic
    no read queue any more        it stands still; a loss if it holds messages beyond `next`

The caller decides by `failOnDataLoss` what follows from a loss. `joined` holds new queues and queues that
start over; they become the `base` of the batch's end offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from pyspark_rocketq.connections import TopicOnBroker
from pyspark_rocketq.errors import DataLost
from pyspark_rocketq.stream.offset import StreamOffset
from pyspark_rocketq.survey.subscription import Places, Survey
from rocketq.model import MessageQueue, QueueOffsets


@dataclass(frozen=True, slots=True)
class Comparison:
    """Each queue's [next, max), those that begin with this batch, and what was lost."""

    backlogs: Mapping[MessageQueue, tuple[int, int]] = field(hash=False)
    joined: Mapping[MessageQueue, int] = field(hash=False)
    incarnations: Mapping[TopicOnBroker, str] = field(hash=False)
    #: Queues that cannot be read now and keep their position.
    still: frozenset[MessageQueue] = frozenset()
    losses: tuple[DataLost, ...] = ()

    @property
    def waiting(self) -> int:
        """How many messages there are to read."""
        return sum(last - first for first, last in self.backlogs.values())


def compare(start: StreamOffset, survey: Survey) -> Comparison:
    """Compare the query's positions with what the brokers hold now."""
    backlogs: dict[MessageQueue, tuple[int, int]] = {}
    joined: dict[MessageQueue, int] = {}
    losses: dict[str, DataLost] = {}
    for queue, held in survey.ranges.items():
        position = start.positions.get(queue)
        if position is None:
            begin = joined[queue] = held.min
        elif _is_renewed(queue, start, survey):
            begin = joined[queue] = held.min
            losses[_place(queue)] = DataLost(_place(queue), RENEWED)
        else:
            begin, why = _placed(position, held)
            if why:
                joined[queue] = begin
                losses[str(queue)] = DataLost(str(queue), why)
        backlogs[queue] = (begin, held.max)
    still = frozenset(_still(start, survey, losses))
    backlogs |= {queue: (start.positions[queue], start.positions[queue]) for queue in still}
    return Comparison(
        dict(sorted(backlogs.items())),
        joined,
        _incarnations(start, survey),
        still,
        tuple(losses.values()),
    )


def lifted(survey: Survey, places: Places, start: StreamOffset) -> Survey:
    """Return what slaves hold as at least what the query has read: they may not know of all of it yet."""
    ranges = {
        queue: replace(held, max=max(held.max, start.positions.get(queue, 0)))
        if places[queue.topic, queue.broker].is_slave
        else held
        for queue, held in survey.ranges.items()
    }
    return replace(survey, ranges=ranges)


RENEWED: Final = "the topic was deleted and created again"


def _still(start: StreamOffset, survey: Survey, losses: dict[str, DataLost]) -> Iterator[MessageQueue]:
    """Yield the queues of the start that cannot be read and keep their position; add to the losses."""
    for queue, position in start.positions.items():
        if queue in survey.ranges:
            continue
        why = survey.gone.get((queue.topic, queue.broker), "")
        if not why and _is_renewed(queue, start, survey):
            why = RENEWED
        if why:
            losses[_place(queue)] = DataLost(_place(queue), why)
            continue
        held = survey.closed.get(queue)
        if held is not None and position < held.max:
            losses[str(queue)] = DataLost(
                str(queue),
                f"the topic has fewer read queues now, and offsets {max(position, held.min)} to "
                f"{held.max - 1} were not read",
                hint="Give the topic its read queues back: rocketq topic alter. Or set failOnDataLoss=false.",
            )
        yield queue


def _is_renewed(queue: MessageQueue, start: StreamOffset, survey: Survey) -> bool:
    """Whether the queue's topic is another one of the same name."""
    place = (queue.topic, queue.broker)
    known, now = start.incarnations.get(place), survey.incarnations.get(place)
    return known is not None and now is not None and known != now


def _place(queue: MessageQueue) -> str:
    return f"{queue.topic}/{queue.broker}"


def _placed(position: int, held: QueueOffsets) -> tuple[int, str]:
    if position < held.min:
        return held.min, f"retention removed offsets {position} to {held.min - 1}"
    if position > held.max:
        return held.max, f"the broker lost offsets {held.max} to {position - 1} from the end of its log"
    return position, ""


def _incarnations(start: StreamOffset, survey: Survey) -> dict[TopicOnBroker, str]:
    known = {place: name for place, name in start.incarnations.items() if place not in survey.gone}
    return known | dict(survey.incarnations)


def end_offset(start: StreamOffset, comparison: Comparison, ends: Mapping[MessageQueue, int]) -> StreamOffset:
    """Return the end offset of the batch that reads each queue of `comparison` up to `ends`.

    The base of a batch that starts at the very beginning is kept: until it is committed
    it may be replayed from another initial offset.
    """
    positions = {queue: ends[queue] for queue in comparison.backlogs}
    base = {q: first for q, first in start.base.items() if q in positions} if start.is_initial else {}
    return StreamOffset(positions, base | dict(comparison.joined), comparison.incarnations)
