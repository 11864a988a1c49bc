"""From where a query stands to where it may go: pure.

`stand` compares a start offset with what the brokers hold now. For each queue:

    in both, min <= next <= max   it goes on at `next`
    only in the survey            it is new and begins at `min`: all of it is read
    next < min                    a loss: retention was faster; goes on at `min`
    next > max                    a loss: the broker lost the end of its log; goes on at `max`
    another incarnation           a loss: the topic was made anew; goes on at `min`
    only in the start             its broker is away, so it stands still;
                                  if the broker says there is no such topic: a loss, and dropped

What becomes of a loss is the caller's: `failOnDataLoss`. New queues and those that were
started over are `joined`; they become the `base` of the batch's end offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark_rocketq.errors import DataLost
from pyspark_rocketq.offset import StreamOffset, TopicOnBroker
from pyspark_rocketq.topology import Survey
from rocketq.protocol.model import MessageQueue, QueueOffsets


@dataclass(frozen=True, slots=True)
class Standing:
    """Each queue's [next, max), those that begin with this batch, and what was lost."""

    backlogs: Mapping[MessageQueue, tuple[int, int]] = field(hash=False)
    joined: Mapping[MessageQueue, int] = field(hash=False)
    incarnations: Mapping[TopicOnBroker, str] = field(hash=False)
    #: Queues whose broker is away.
    still: frozenset[MessageQueue] = frozenset()
    losses: tuple[DataLost, ...] = ()

    @property
    def waiting(self) -> int:
        """How many messages there are to read."""
        return sum(last - first for first, last in self.backlogs.values())


def stand(start: StreamOffset, survey: Survey) -> Standing:
    """Compare where the query is with what there is."""
    backlogs: dict[MessageQueue, tuple[int, int]] = {}
    joined: dict[MessageQueue, int] = {}
    losses: dict[str, DataLost] = {}
    still = set()
    for queue, held in survey.ranges.items():
        position = start.positions.get(queue)
        place = (queue.topic, queue.broker)
        renewed = place in start.incarnations and start.incarnations[place] != survey.incarnations[place]
        if position is None:
            begin = joined[queue] = held.min
        elif renewed:
            begin = joined[queue] = held.min
            losses[str(place)] = DataLost(
                f"{queue.topic}/{queue.broker}", "the topic was deleted and created again"
            )
        else:
            begin, why = _placed(position, held)
            if why:
                joined[queue] = begin
                losses[str(queue)] = DataLost(str(queue), why)
        backlogs[queue] = (begin, held.max)
    for queue, position in start.positions.items():
        if queue in survey.ranges:
            continue
        if (queue.topic, queue.broker) in survey.gone:
            losses[f"{queue.topic}/{queue.broker}"] = DataLost(
                f"{queue.topic}/{queue.broker}", "the topic was deleted"
            )
        else:
            backlogs[queue] = (position, position)
            still.add(queue)
    return Standing(
        dict(sorted(backlogs.items())),
        joined,
        _incarnations(start, survey),
        frozenset(still),
        tuple(losses.values()),
    )


def _placed(position: int, held: QueueOffsets) -> tuple[int, str]:
    if position < held.min:
        return held.min, f"retention removed offsets {position} to {held.min - 1}"
    if position > held.max:
        return held.max, f"the broker lost offsets {held.max} to {position - 1} from the end of its log"
    return position, ""


def _incarnations(start: StreamOffset, survey: Survey) -> dict[TopicOnBroker, str]:
    known = {place: name for place, name in start.incarnations.items() if place not in survey.gone}
    return known | dict(survey.incarnations)


def advanced(start: StreamOffset, standing: Standing, ends: Mapping[MessageQueue, int]) -> StreamOffset:
    """Return the end offset of the batch that reads each queue of `standing` up to `ends`.

    The base of a batch that starts at the very beginning is kept: until it is committed
    it may be replayed from another initial offset.
    """
    positions = {queue: ends[queue] for queue in standing.backlogs}
    base = {q: first for q, first in start.base.items() if q in positions} if start.is_initial else {}
    return StreamOffset(positions, base | dict(standing.joined), standing.incarnations)
