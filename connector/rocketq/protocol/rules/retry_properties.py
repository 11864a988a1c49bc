"""What a message says of itself once a consumer has sent it back, and when it is tried again.

A message that failed is copied to the retry topic of its group, and after its last attempt to the dead letter
topic. A copy has these properties, under RocketMQ's names (MessageConst). No producer may set them
(`system_properties`), so what stands there was written by a broker.

    RECONSUME_TIME      how often the message has failed
    RETRY_TOPIC         its original topic
    ORIGIN_MESSAGE_ID   its original id, `broker:topic:queue:offset`, and so its queue and its offset
    UNIQ_KEY            the id that its producer gave it; the original id if it had none
    FAILURE_REASON      why it failed last, in the words of its consumer (not in RocketMQ)

A message that failed for the n-th time waits for RocketMQ's delay level n + 2 (AbstractSendMessageProcessor):
10 s, 30 s, 1 min, …, 2 h.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rocketq.model import UNIQUE_ID_PROPERTY, MessageQueue
from rocketq.protocol.rules.delivery_time import LEVELS_MS

FAILURES: Final = "RECONSUME_TIME"
ORIGINAL_TOPIC: Final = "RETRY_TOPIC"
ORIGINAL_ID: Final = "ORIGIN_MESSAGE_ID"
REASON: Final = "FAILURE_REASON"
#: What a copy has besides the properties of the message itself; UNIQ_KEY stays when it is sent again.
RETURN_PROPERTIES: Final = (FAILURES, ORIGINAL_TOPIC, ORIGINAL_ID, REASON)
#: All properties that a broker writes when it makes a copy.
WRITTEN_PROPERTIES: Final = (*RETURN_PROPERTIES, UNIQUE_ID_PROPERTY)
#: A reason is cut to so many characters.
REASON_CHARACTERS_MAX: Final = 1_000
#: The level of a message that failed for the first time (RocketMQ: 3 + reconsumeTimes).
FIRST_LEVEL: Final = 3

_ID: Final = re.compile(r"([^:]+):([^:]+):(\d{1,9}):(\d{1,18})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a message lay before it failed first, and how often it has failed."""

    queue: MessageQueue
    offset: int
    failures: int


def back_off_ms(failures: int) -> int:
    """Return how long a message waits that has failed so often, at least once."""
    return int(LEVELS_MS[min(FIRST_LEVEL + failures - 1, len(LEVELS_MS)) - 1])


def place_of(message_id: str) -> tuple[MessageQueue, int] | None:
    """Return the queue and the offset that an id names; None if it is no id."""
    matched = _ID.fullmatch(message_id)
    if matched is None:
        return None
    broker, topic, queue, offset = matched.groups()
    return MessageQueue(topic, broker, int(queue)), int(offset)


def origin_of(properties: Mapping[str, str] | None) -> Origin | None:
    """Return what the properties of a copy say of its original; None if they are not those of a copy."""
    if not properties:
        return None
    place = place_of(properties.get(ORIGINAL_ID, ""))
    failures = properties.get(FAILURES, "")
    return Origin(*place, int(failures)) if place is not None and failures.isdigit() else None
