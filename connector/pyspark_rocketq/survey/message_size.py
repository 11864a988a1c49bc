"""The size of a queue's messages, estimated from the frame that is to be read next.

A limit in bytes has to be turned into offsets before anything is read, and the brokers' answer
about offsets counts messages only. So the first frame at a queue's position is pulled: its header
says how many messages it holds, and how many bytes it has on the wire. The estimate is used
until the query has read FRAMES_VALID such frames; so at most one frame for each queue and batch is
pulled for it. It is wrong where message sizes change within a batch, so limits in bytes are soft.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark_rocketq.connections import TopicOnBroker
from pyspark_rocketq.survey.subscription import Place, in_parallel
from rocketq.errors import RocketqError
from rocketq.model import MessageQueue
from rocketq.protocol import frame

log = logging.getLogger("pyspark_rocketq")

#: Where nothing is known; every message's own columns and Arrow's overhead come to about this.
DEFAULT_BYTES: Final = 256.0
#: An estimate serves until the query is this many sampled frames further.
FRAMES_VALID: Final = 16

#: Estimated bytes per message of a queue.
BytesPerMessage = Callable[[MessageQueue], float]


@dataclass(frozen=True, slots=True)
class Sample:
    """Bytes per message, measured on the messages up to `until`, serving for positions below `valid_to`."""

    bytes_per_message: float
    valid_from: int
    valid_to: int


class MessageSizes:
    """Estimates for the queues of a query; kept from batch to batch."""

    def __init__(self) -> None:
        self._samples: dict[MessageQueue, Sample] = {}

    def measure(
        self, positions: Mapping[MessageQueue, int], places: Mapping[TopicOnBroker, Place]
    ) -> BytesPerMessage:
        """Return bytes per message by queue, for messages from the given positions on.

        Asks for a frame of each queue whose last sample is behind, all at the same time. A queue that
        cannot be sampled keeps its old estimate: a limit is no reason to fail a query.
        """

        def asker(queue: MessageQueue, position: int) -> Callable[[], Sample | None]:
            return lambda: _sample(places[queue.topic, queue.broker], queue, position)

        stale = {
            queue: asker(queue, position)
            for queue, position in positions.items()
            if not self._is_valid(queue, position) and (queue.topic, queue.broker) in places
        }
        if stale:
            for queue, sample in in_parallel(stale).items():
                if sample is not None:
                    self._samples[queue] = sample
        return self._bytes_per_message

    def _is_valid(self, queue: MessageQueue, position: int) -> bool:
        sample = self._samples.get(queue)
        return sample is not None and sample.valid_from <= position < sample.valid_to

    def _bytes_per_message(self, queue: MessageQueue) -> float:
        sample = self._samples.get(queue)
        return sample.bytes_per_message if sample is not None else DEFAULT_BYTES


def _sample(place: Place, queue: MessageQueue, position: int) -> Sample | None:
    try:
        pulled = place.broker.pull(queue.topic, queue.queue, position, max_bytes=1, max_messages=1)
        if not pulled.body:
            return None
        header = frame.peek(pulled.body)
    except RocketqError as error:
        log.warning("The size of messages in %s is not known for now: %s", queue, error.message)
        return None
    span = FRAMES_VALID * header.count
    return Sample(header.size / max(1, header.count), position, position + span)
