"""Dead letters: which messages have had their last attempt, and what is stored of them.

A dead letter goes to queue 0 of the group's dead letter topic on the broker that has the message. It has the
properties of any dead letter (`rocketq.protocol.rules.returned_messages`), so it is listed and sent again as
those of members are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rocketq.model import UNIQUE_ID_PROPERTY, Message, StoredMessage
from rocketq.protocol.arrow.stream_reader import encapsulate
from rocketq.protocol.message_schema import from_messages
from rocketq.protocol.rules.delivery_time import DELIVERY_PROPERTIES
from rocketq.protocol.rules.returned_messages import FAILURES, ORIGINAL_ID, ORIGINAL_TOPIC, REASON
from rocketq_broker.store.commit.small_batches import QueueBatch

#: Why it died; a lease says nothing of what its holder met.
WHY: Final = "its last lease ran out"


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
        FAILURES: str(attempts),
        ORIGINAL_TOPIC: message.queue.topic,
        ORIGINAL_ID: message.message_id,
        REASON: WHY,
        UNIQUE_ID_PROPERTY: kept.get(UNIQUE_ID_PROPERTY, message.message_id),
    }
    return Message(message.body, message.key, message.tag, {**kept, **origin}, message.born_at_us)
