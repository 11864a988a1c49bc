"""Finds out whether a frame that arrives damaged twice is damaged in the broker's log or on the network."""

from __future__ import annotations

from typing import Final

from rocketq.errors import CorruptFrame, RocketqError
from rocketq.model import MessageQueue, message_id
from rocketq.net.broker_api import BrokerApi
from rocketq.protocol.damage import damaged_when_received

#: A frame that comes corrupt so often is given up.
CORRUPT_MAX: Final = 3


def is_in_log(error: CorruptFrame) -> bool:
    """Whether the broker itself has found the damage, in its log."""
    return "log_offset" in error.facts


def diagnosed(api: BrokerApi, queue: MessageQueue, offset: int, error: CorruptFrame) -> CorruptFrame:
    """Return the error to raise: the broker's own account of the damage, if it finds any.

    The broker sends stored frames as they lie, and leaves their checksums to the reader. So it is asked for
    the message at `offset` in a form for which it has to open the frame. One of several replicas then heals
    the frame, and finds it sound.
    """
    if is_in_log(error):
        return error
    try:
        api.message(message_id(queue, offset))
    except CorruptFrame as damage:
        return damage
    except RocketqError as failure:
        verdict = f"The broker could not say whether its log is damaged ({failure.message})"
    else:
        verdict = "The broker reads the frame without an error, so it is damaged on the way"
    return damaged_when_received(error, queue, offset, verdict)
