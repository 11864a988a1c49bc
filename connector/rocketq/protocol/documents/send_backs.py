"""Documents of messages that consumers send back, and of dead letters (docs/protocol.md)."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from rocketq.model import Int64
from rocketq.protocol.json_codec import prepare_documents
from rocketq.protocol.send_number import SendNumber

#: Bounds of one call.
SEND_BACK_MESSAGES_MAX: Final = 1_000
RESENT_LETTERS_MAX: Final = 1_000


class FailedMessage(msgspec.Struct, frozen=True):
    """A message that failed, in a queue of the asked broker that the member owns under `epoch`.

    `attempt` is the number of the attempt that failed, as the member counts; the broker's own count counts if
    it is higher. `delay_ms` is the wait that was asked for; None: RocketMQ's back-off. `reason` says why it
    failed.
    """

    topic: str
    queue: Int64
    epoch: Int64
    offset: Int64
    attempt: Int64 = 1
    delay_ms: Int64 | None = None
    reason: str = ""


class SendBackRequest(msgspec.Struct, frozen=True):
    """A member sends messages back (RocketMQ: CONSUMER_SEND_MSG_BACK).

    `retries_max` counts instead of the group's own setting, if it is given. `number` is the text of a
    SendNumber: the same call again, because its answer was lost, makes no second copy.
    """

    client_id: str
    messages: tuple[FailedMessage, ...]
    retries_max: Int64 | None = None
    number: str | None = None


def letters_number(number: SendNumber) -> SendNumber:
    """Return the number of the dead letters of a call: those of the retry topic have the call's own."""
    return SendNumber(number.slot ^ 1, number.sequence)


class SendBackOutcome(StrEnum):
    """What became of a message that was sent back. Only after the first two the member may pass it."""

    #: A copy waits in the retry topic.
    RETRY = "retry"
    #: A copy lies in the dead letter topic: it was the last attempt.
    DEAD_LETTER = "dead_letter"
    #: Nothing was done: the message is no longer stored here, or cannot be read.
    UNREADABLE = "unreadable"
    #: Nothing was done: the call was full. Send it back again.
    NOT_YET = "not_yet"
    #: Nothing was stored: the write failed. `why` of the answer says more.
    FAILED = "failed"


class SendBackAnswer(msgspec.Struct, frozen=True):
    """What became of each message, in the order of the request."""

    broker: str
    group: str
    outcomes: tuple[SendBackOutcome, ...]
    why: str = ""


class OffsetRange(msgspec.Struct, frozen=True):
    """Offsets [begin, end) of a queue."""

    begin: Int64
    end: Int64


class DeadLetterMarks(msgspec.Struct, frozen=True):
    """The dead letters of a group on one broker: offsets [min, max), and which were sent again already.

    `resent` are ranges of offsets, in order. All are empty if there is no dead letter topic.
    """

    broker: str
    group: str
    min: Int64
    max: Int64
    resent: tuple[OffsetRange, ...] = ()


class ResendRequest(msgspec.Struct, frozen=True):
    """Send dead letters to their original topics again; one that was sent already only with `again`."""

    offsets: tuple[Int64, ...]
    again: bool = False
    dry_run: bool = False


class ResendOutcome(StrEnum):
    """What became of a dead letter that was to be sent again."""

    SENT = "sent"
    #: It was sent before; nothing was done.
    SENT_BEFORE = "sent_before"
    #: The broker has no such letter (any more), or cannot read it.
    NOT_FOUND = "not_found"
    #: The original topic does not exist on this broker, or takes no messages.
    NO_TOPIC = "no_topic"
    #: The write failed; `why` of the answer says more.
    FAILED = "failed"


class ResentLetter(msgspec.Struct, frozen=True):
    """One letter: its offset in the dead letter topic, its original topic, and where it went.

    `topic` is empty if the letter was not found; `queue` and `offset_sent` are None unless it was sent.
    """

    offset: Int64
    outcome: ResendOutcome
    topic: str = ""
    queue: Int64 | None = None
    offset_sent: Int64 | None = None


class ResendAnswer(msgspec.Struct, frozen=True):
    """What became of each letter, by offset; with `dry_run` what would become of it."""

    broker: str
    group: str
    dry_run: bool
    letters: tuple[ResentLetter, ...]
    why: str = ""


prepare_documents(__name__)
