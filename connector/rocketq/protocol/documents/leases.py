"""The calls of messages that are leased one by one: JSON documents that both sides hold as values.

A *receipt handle* names a message and the lease under which it was handed out:
`broker:topic:queue:offset:lease`, that is the message's id and the number of the lease. A colon is legal in
no name. Clients give it back as it is. (RocketMQ: POP, ExtraInfoUtil.buildExtraInfo.)
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from rocketq.errors import InvalidRequest
from rocketq.model import Int64
from rocketq.protocol.documents.broker import MessageDocument
from rocketq.protocol.documents.groups import StartRule
from rocketq.protocol.json_codec import prepare_documents

#: Messages of one receive (RocketMQ: 32), and receipt handles of one call.
RECEIVE_MESSAGES: Final = 16
RECEIVE_MESSAGES_MAX: Final = 1_000
HANDLES_MAX: Final = 1_000
#: RocketMQ: 60 s, at most 12 h.
INVISIBLE_MS: Final = 60_000
INVISIBLE_MS_MAX: Final = 12 * 3600 * 1000

_HANDLE: Final = re.compile(r"([^:]+):([^:]+):(\d{1,5}):(\d{1,18}):(\d{1,18})\Z", re.ASCII)


class ReceiptHandle(NamedTuple):
    """A receipt handle, taken apart."""

    broker: str
    topic: str
    queue: int
    offset: int
    lease: int

    def __str__(self) -> str:
        return f"{self.broker}:{self.topic}:{self.queue}:{self.offset}:{self.lease}"


def read_handle(text: str) -> ReceiptHandle:
    """Read a receipt handle; raise InvalidRequest."""
    found = _HANDLE.match(text)
    if found is None:
        raise InvalidRequest(
            "receipt_handles", f"{text[:200]!r} is not broker:topic:queue:offset:lease",
            hint="Give back the receipt_handle of a received message as it is.",
        )  # fmt: skip
    broker, topic, queue, offset, lease = found.groups()
    return ReceiptHandle(broker, topic, int(queue), int(offset), int(lease))


class ReceiveRequest(msgspec.Struct, frozen=True):
    """Lease messages of a topic.

    At most one of `tag` and `sql` filters them, and is the same in all receives of the group.
    `invisible_ms` is how long other receivers of the group do not see them. `wait_ms` holds the call while
    there is nothing. `start` says where a group begins that has no offset. With `new_filter` the filter of
    the group becomes this one. `ordered`: a queue of which the group has leased messages gives no others
    until they are settled or their time is over; the group's setting `ordered` counts if there is one.
    """

    topic: str
    max_messages: Int64 = RECEIVE_MESSAGES
    invisible_ms: Int64 = INVISIBLE_MS
    wait_ms: Int64 = 0
    tag: str | None = None
    sql: str | None = None
    start: StartRule = msgspec.field(default_factory=StartRule)
    new_filter: bool = False
    ordered: bool = False


class LeasedDocument(MessageDocument, frozen=True):
    """A leased message; `attempt` is 1 when it is handed out for the first time."""

    receipt_handle: str = ""
    attempt: Int64 = 1


class ReceiveAnswer(msgspec.Struct, frozen=True):
    """The messages that are leased to the caller; none if there was none in time."""

    broker: str
    group: str
    topic: str
    invisible_ms: Int64
    messages: tuple[LeasedDocument, ...]


class LeaseRefusal(StrEnum):
    """Why a receipt handle is not good."""

    #: Its time is over. The message can be leased again.
    EXPIRED = "expired"
    #: The message was leased again, or its time was changed: it has another handle.
    REPLACED = "replaced"
    #: The broker has no such lease: the group's progress was moved, or the topic or the group deleted.
    UNKNOWN = "unknown"
    #: The message is settled already, so its time cannot be changed.
    SETTLED = "settled"


class RefusedHandle(msgspec.Struct, frozen=True):
    """A receipt handle that is not good."""

    receipt_handle: str
    reason: LeaseRefusal


class AckRequest(msgspec.Struct, frozen=True):
    """These messages are handled."""

    receipt_handles: tuple[str, ...]


class AckAnswer(msgspec.Struct, frozen=True):
    """`acknowledged` were leased and are not any more.

    `settled` had been settled before: acknowledged, for example by a call whose answer was lost, or given up
    as dead letters. `refused` may come again.
    """

    broker: str
    group: str
    acknowledged: Int64
    settled: Int64 = 0
    refused: tuple[RefusedHandle, ...] = ()


class InvisibleTimeRequest(msgspec.Struct, frozen=True):
    """These messages stay hidden for so long from now on; 0 makes them visible again at once."""

    receipt_handles: tuple[str, ...]
    invisible_ms: Int64


class ChangedLease(msgspec.Struct, frozen=True):
    """The handle that was given, and the one that is good from now on."""

    before: str
    receipt_handle: str


class InvisibleTimeAnswer(msgspec.Struct, frozen=True):
    """What became of each handle."""

    broker: str
    group: str
    changed: tuple[ChangedLease, ...]
    refused: tuple[RefusedHandle, ...] = ()


class QueueOfLeases(msgspec.Struct, frozen=True):
    """What is leased of a queue: how many messages, from which offset on; from `next` on none was leased yet.

    `next_out_ms` is in how many milliseconds the first lease runs out, 0 if one has.
    """

    topic: str
    queue: Int64
    leased: Int64
    first: Int64
    next: Int64
    next_out_ms: Int64


class LeaseListing(msgspec.Struct, frozen=True):
    """The queues of a broker of which a group has leased messages."""

    broker: str
    group: str
    queues: tuple[QueueOfLeases, ...]


prepare_documents(__name__)
