"""From a position in words (earliest, a time, a group) to an offset for every queue.

`Lookups` are the questions that only brokers can answer, fetched before the pure part
decides; so what a position means can be tested without a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from pyspark_rocketq.connections import TopicOnBroker
from pyspark_rocketq.errors import DataLost
from pyspark_rocketq.options.options import SourceOptions
from pyspark_rocketq.options.position_syntax import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AtOffsets,
    AtTime,
    AtTimes,
    Edge,
    NoMatch,
    Position,
)
from pyspark_rocketq.survey.subscription import Place, Places, Survey, in_parallel
from rocketq.errors import InvalidConfiguration
from rocketq.model import MessageQueue, QueueOffsets
from rocketq.net.retry import persist
from rocketq.protocol.documents.broker import GroupOffsets, TimeOffsets


@dataclass(frozen=True, slots=True)
class Lookups:
    """Answers of brokers: the group's offsets, and the offset of each asked time (µs) in each queue."""

    group: Mapping[MessageQueue, int] = field(hash=False, default_factory=dict)
    times: Mapping[tuple[MessageQueue, int], int] = field(hash=False, default_factory=dict)


def look_up(position: Position, places: Places, survey: Survey, options: SourceOptions) -> Lookups:
    """Ask the brokers of the survey what `position` needs to know; each is waited for (brokerWaitMs)."""
    places = {key: place for key, place in places.items() if key in survey.incarnations}
    wait_ms = options.broker_wait_ms
    if position is Edge.GROUP and options.group is not None:
        return Lookups(group=_group_offsets(places, options.group, wait_ms))
    if isinstance(position, AtTime):
        return Lookups(times=time_offsets(places, {key: {position.at_ms * 1000} for key in places}, wait_ms))
    if isinstance(position, AtTimes):
        asked: dict[TopicOnBroker, set[int]] = {}
        for queue in survey.ranges:
            at_ms = position.at_ms.get(queue)
            if at_ms is not None:
                asked.setdefault((queue.topic, queue.broker), set()).add(at_ms * 1000)
        return Lookups(times=time_offsets(places, asked, wait_ms))
    return Lookups()


def _group_offsets(places: Places, group: str, wait_ms: int) -> dict[MessageQueue, int]:
    def asker(place: Place) -> Callable[[], GroupOffsets]:
        return lambda: persist(
            lambda: place.broker.group_offsets(group, place.topic),
            f"Offsets of group {group} on {place.broker.broker}",
            wait_ms,
        )

    answers = in_parallel({key: asker(place) for key, place in places.items()})
    return {
        MessageQueue(one.topic, answer.broker, one.queue): one.offset
        for answer in answers.values()
        for one in answer.offsets
    }


def time_offsets(
    places: Places, asked: Mapping[TopicOnBroker, Collection[int]], wait_ms: int
) -> dict[tuple[MessageQueue, int], int]:
    """Return the first offset stored at or after each asked time (µs since 1970) in every queue."""

    def asker(place: Place, at_us: int) -> Callable[[], TimeOffsets]:
        return lambda: persist(
            lambda: place.broker.offsets_at(place.topic, at_us),
            f"Offsets at a time of {place.topic} on {place.broker.broker}",
            wait_ms,
        )

    answers = in_parallel(
        {(key, at_us): asker(places[key], at_us) for key, times in asked.items() for at_us in times}
    )
    return {
        (MessageQueue(topic, broker, queue), at_us): offset
        for ((topic, broker), at_us), answer in answers.items()
        for queue, offset in enumerate(answer.offsets)
    }


def resolve(
    position: Position, option: str, survey: Survey, lookups: Lookups, *, fail_on_data_loss: bool = True
) -> dict[MessageQueue, int]:
    """Return the offset that `position` means in every queue of the survey.

    `option` is only for messages. Raises InvalidConfiguration where the position does not fit the
    queues there are, DataLost where it lies below what is stored and `fail_on_data_loss` is set.
    """
    if isinstance(position, AtOffsets):
        _check_names(position, option, survey)
    if isinstance(position, AtTimes):
        _check_topics(position.at_ms.topics(), option, survey)
    return {
        queue: _resolved(position, option, queue, held, lookups, fail_on_data_loss)
        for queue, held in sorted(survey.ranges.items())
    }


def _resolved(
    position: Position, option: str, queue: MessageQueue, held: QueueOffsets, lookups: Lookups, strict: bool
) -> int:
    if isinstance(position, AtOffsets):
        return _exact(position.offsets.get(queue), option, queue, held, strict)
    if isinstance(position, AtTime):
        return _timed(position.at_ms, position.no_match, option, queue, held, lookups)
    if isinstance(position, AtTimes):
        at_ms = position.at_ms.get(queue)
        # A queue without a time begins like one that appears later: at its first message.
        return held.min if at_ms is None else _timed(at_ms, position.no_match, option, queue, held, lookups)
    if position is Edge.GROUP:
        committed = lookups.group.get(queue)
        # A queue the group never read is all new to it.
        return held.min if committed is None else _kept(committed, queue, held, strict)
    return held.min if position is Edge.EARLIEST else held.max


def _exact(number: int | None, option: str, queue: MessageQueue, held: QueueOffsets, strict: bool) -> int:
    assert number is not None, "checked by _check_names"
    if number == EARLIEST_OFFSET:
        return held.min
    if number == LATEST_OFFSET:
        return held.max
    if number > held.max:
        raise InvalidConfiguration(
            option, f"{queue}: {number}", f"the queue ends at {held.max}", hint="Use -1 for its end."
        )
    return _kept(number, queue, held, strict)


def _kept(offset: int, queue: MessageQueue, held: QueueOffsets, strict: bool) -> int:
    """Return the offset moved into what is stored; a group's can lie beyond it if the topic was made anew."""
    if held.min <= offset <= held.max:
        return offset
    if strict:
        raise DataLost(str(queue), f"reading was to begin at {offset}, and it holds [{held.min}, {held.max})")
    return held.min


def _timed(
    at_ms: int, no_match: NoMatch, option: str, queue: MessageQueue, held: QueueOffsets, lookups: Lookups
) -> int:
    found = lookups.times.get((queue, at_ms * 1000))
    if found is None or found >= held.max:
        if no_match is NoMatch.ERROR:
            raise InvalidConfiguration(
                option, at_ms, f"{queue} has no message stored at or after that time",
                hint='Set startingOffsetsByTimestampStrategy to "latest" to begin at its end.',
            )  # fmt: skip
        return held.max
    return max(found, held.min)


def _check_names(position: AtOffsets, option: str, survey: Survey) -> None:
    """Every queue needs an offset, and every offset a queue (as Kafka's source demands)."""
    unknown = sorted(position.offsets.queues() - set(survey.ranges))
    if unknown:
        raise InvalidConfiguration(
            option, ", ".join(map(str, unknown)), "there is no such queue in the subscription",
            hint="Queues: " + _listed(sorted(survey.ranges)),
        )  # fmt: skip
    _check_topics(position.offsets.topics(), option, survey)
    missing = [queue for queue in sorted(survey.ranges) if position.offsets.get(queue) is None]
    if missing:
        raise InvalidConfiguration(
            option, ", ".join(map(str, missing[:5])), f"no offset is given for {len(missing)} queue(s)",
            hint="Give -2 for earliest or -1 for latest, for a queue, a broker or a topic.",
        )  # fmt: skip


def _check_topics(topics: set[str], option: str, survey: Survey) -> None:
    unknown = sorted(topics - {queue.topic for queue in survey.ranges})
    if unknown:
        raise InvalidConfiguration(
            option, ", ".join(unknown), "it is not among the subscribed topics",
            hint="Subscribe to it too, or leave it out.",
        )  # fmt: skip


def _listed(queues: list[MessageQueue]) -> str:
    shown = ", ".join(map(str, queues[:8]))
    return f"{shown}, … ({len(queues)} in all)." if len(queues) > 8 else f"{shown or 'none'}."
