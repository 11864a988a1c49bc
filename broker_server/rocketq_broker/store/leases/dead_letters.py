"""Dead letters: which messages have had their last attempt, and what is stored of them.

A dead letter goes to queue 0 of the topic `%DLQ%group` on the broker that has the message. The names of the
properties are RocketMQ's (MessageConst); they say where the message comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rocketq.model import Message, StoredMessage
from rocketq.protocol.arrow.stream_reader import encapsulate
from rocketq.protocol.message_schema import from_messages
from rocketq.protocol.rules.delivery_time import DELIVERY_PROPERTIES
from rocketq_broker.store.commit.small_batches import QueueBatch

#: RocketMQ: MixAll.DLQ_GROUP_TOPIC_PREFIX.
_PREFIX: Final = "%DLQ%"


def dead_letter_topic(group: str) -> str:
    """Return the topic of a group's dead letters."""
    return f"{_PREFIX}{group}"


def is_dead(attempt: int, attempts_max: int) -> bool:
    """Whether a message whose lease ran out had its last attempt; there is always a first."""
    return attempt >= max(1, attempts_max)


def dead_letters(messages: Sequence[StoredMessage], attempts: int) -> QueueBatch:
    """Return the batch for the topic of dead letters that shows messages after so many attempts."""
    made = from_messages([_dead_letter(each, attempts) for each in messages])
    return QueueBatch(0, encapsulate(made), made)


def _dead_letter(message: StoredMessage, attempts: int) -> Message:
    kept = {
        name: value
        for name, value in (message.properties or {}).items()
        # It was delivered once; as a dead letter it is not to wait again.
        if name not in DELIVERY_PROPERTIES
    }
    origin = {
        "RETRY_TOPIC": message.queue.topic,
        "ORIGIN_MESSAGE_ID": message.message_id,
        "DLQ_ORIGIN_TOPIC": message.queue.topic,
        "DLQ_ORIGIN_MESSAGE_ID": message.message_id,
        "RECONSUME_TIME": str(attempts),
    }
    return Message(message.body, message.key, message.tag, {**kept, **origin}, message.born_at_us)
