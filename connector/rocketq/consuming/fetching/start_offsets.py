"""Where a consumer begins in each queue, and where it goes on when an offset is gone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rocketq.config import PullConsumerConfig, Reset
from rocketq.errors import OffsetOutOfRange
from rocketq.model import MessageQueue, StartFrom
from rocketq.net.broker_api import BrokerApi
from rocketq.protocol.documents.broker import TopicOffsets
from rocketq.protocol.documents.groups import StartRule


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where to begin in a queue, how far it reaches, which topic it is, and the epoch of a claim."""

    offset: int
    max_offset: int
    incarnation: str
    epoch: int | None = None


def begin_offsets(
    broker: BrokerApi,
    topic: str,
    queues: Sequence[MessageQueue],
    config: PullConsumerConfig,
    group: str | None,
    *,
    is_new: bool = False,
) -> dict[MessageQueue, Beginning]:
    """Ask a broker where to begin in its queues of a topic; a queue it does not have yet is left out.

    With `is_new` the queues came into being while the consumer was running: what
    the group has not committed is read from the first message, whatever the start is, since
    nothing of it can have been meant to be skipped.
    Raises OffsetOutOfRange where the group has no offset and `start_fallback` is "error".
    """
    offsets = broker.offsets(topic)
    committed: dict[int, int] = {}
    if config.start == "group" and group is not None:
        committed = {
            o.queue: o.offset for o in broker.group_offsets(group, topic).offsets if o.topic == topic
        }
    by_time: tuple[int, ...] = ()
    if config.start == "time" and config.start_timestamp_us is not None and not is_new:
        by_time = broker.offsets_at(topic, config.start_timestamp_us).offsets
    found = {}
    for queue in queues:
        if queue.queue < len(offsets.queues):
            begin = _begin(queue, offsets, committed, by_time, config, is_new)
            found[queue] = Beginning(begin, offsets.queues[queue.queue].max, offsets.incarnation)
    return found


def _begin(
    queue: MessageQueue,
    offsets: TopicOffsets,
    committed: dict[int, int],
    by_time: tuple[int, ...],
    config: PullConsumerConfig,
    is_new: bool,
) -> int:
    extent = offsets.queues[queue.queue]
    if queue.queue in committed:
        return committed[queue.queue]
    if queue.queue < len(by_time):
        return by_time[queue.queue]
    if is_new:
        return extent.min
    wanted = config.start_fallback if config.start == "group" else config.start
    if wanted == "error":
        raise OffsetOutOfRange(queue.topic, queue.broker, queue.queue, -1, extent.min, extent.max)
    return extent.max if wanted == "latest" else extent.min


def group_offsets(
    broker: BrokerApi,
    topic: str,
    stored: Mapping[int, int | None],
    start: StartRule,
    initial: Collection[MessageQueue],
    epochs: Mapping[int, int],
) -> dict[MessageQueue, Beginning]:
    """Ask a broker where a member begins in queues of a topic; a queue it does not have is left out.

    `stored` has the queues, each with its stored offset, which counts; without one, `start` does. Queues that
    are not `initial` came into being while the member was running, and are read from their first message:
    nothing of them can have been meant to be skipped (in RocketMQ the start rule counts for them as well).
    `epochs` are those of the claims.
    """
    offsets = broker.offsets(topic)
    by_time: tuple[int, ...] = ()
    if start.where is StartFrom.TIME and start.at_us is not None and None in stored.values():
        by_time = broker.offsets_at(topic, start.at_us).offsets
    found = {}
    for number, offset in stored.items():
        if number < len(offsets.queues):
            queue, extent = MessageQueue(topic, broker.broker, number), offsets.queues[number]
            if offset is None:
                offset = extent.min
                if queue in initial and start.where is StartFrom.LAST:
                    offset = extent.max
                elif queue in initial and number < len(by_time):
                    offset = by_time[number]
            found[queue] = Beginning(offset, extent.max, offsets.incarnation, epochs.get(number))
    return found


def resume_offset(error: OffsetOutOfRange, offset_reset: Reset) -> int | None:
    """Return where to go on after an offset that is not there, or None if that must be an error.

    Beyond the end there is nothing earlier to prefer: the queue was cut, so both go on at its end.
    """
    if offset_reset == "error":
        return None
    if offset_reset == "latest":
        return error.max_offset
    return error.corrected
