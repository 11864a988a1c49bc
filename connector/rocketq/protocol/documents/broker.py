"""The calls to a broker: paths, headers, and the JSON documents both sides hold as values.

`rocketq.protocol.json_codec` writes and reads the documents. Message batches are none: they travel as frames
or Arrow streams.
"""

from __future__ import annotations

import base64
from typing import Final

import msgspec

from rocketq import model
from rocketq.errors import InvalidRequest
from rocketq.model import (
    Appended,
    DelayedMessage,
    GroupKind,
    Int64,
    MessageQueue,
    QueueOffsets,
    SendStatus,
    StoredMessage,
    TimerStatus,
    TopicConfig,
)
from rocketq.protocol.json_codec import decode as decode
from rocketq.protocol.json_codec import decode_request as decode_request
from rocketq.protocol.json_codec import encode as encode
from rocketq.protocol.json_codec import prepare_documents

FRAMES: Final = "application/vnd.rocketq.frames"
ARROW_STREAM: Final = "application/vnd.apache.arrow.stream"
JSON: Final = "application/json"
#: A message alone, in its plain form (`rocketq.protocol.plain_message`).
OCTET_STREAM: Final = "application/octet-stream"

#: Headers of a pull's answer.
STATUS_HEADER: Final = "x-rocketq-status"
NEXT_OFFSET_HEADER: Final = "x-rocketq-next-offset"
MIN_OFFSET_HEADER: Final = "x-rocketq-min-offset"
MAX_OFFSET_HEADER: Final = "x-rocketq-max-offset"
INCARNATION_HEADER: Final = "x-rocketq-incarnation"
SUGGESTED_BROKER_HEADER: Final = "x-rocketq-suggested-broker-id"

#: The longest a server holds a call, and what it adds to a client's own deadline.
WAIT_MS_MAX: Final = 60_000


class SendAnswer(msgspec.Struct, frozen=True):
    """Where each batch of one send went, in the order they were sent.

    If something of it is delayed, `timers` has for each batch the id of its delayed message, and "" for a
    batch that is not delayed or has more messages than one. Otherwise it is left out.
    """

    status: SendStatus
    broker: str
    topic: str
    appended: tuple[Appended, ...]
    timers: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


class TopicOffsets(msgspec.Struct, frozen=True):
    """min and max of every queue of a topic on one broker; the index is the queue id.

    `total` is the sum of the max offsets: it grows with every message, so
    "wait until there is more than I know" is one comparison.
    """

    topic: str
    broker: str
    incarnation: str
    total: Int64
    queues: tuple[QueueOffsets, ...]


class TimeOffsets(msgspec.Struct, frozen=True):
    """The offset that a time names in each queue; the index is the queue id."""

    topic: str
    broker: str
    incarnation: str
    at_us: Int64
    offsets: tuple[Int64, ...]


class CreateTopicRequest(msgspec.Struct, frozen=True):
    """Create a topic; with `if_absent` an existing one is a success and stays as it is.

    `automatic` marks creation on a producer's behalf: refused where the broker
    does not allow automatic creation. `brokers` are the names of all broker groups that are to hold
    the topic (`TopicConfig.brokers`), the asked one among them; to a topic that exists they are added.
    """

    read_queues: Int64 = 4
    write_queues: Int64 = 4
    perm: Int64 = 6
    message_bytes_max: Int64 | None = None
    retention_ms: Int64 | None = None
    retention_bytes: Int64 | None = None
    if_absent: bool = False
    automatic: bool = False
    brokers: tuple[str, ...] = ()


class AlterTopicRequest(msgspec.Struct, frozen=True):
    """Change what is given; queue counts may grow, and read and write counts shrink apart.

    Fewer read queues are refused while the queues that would go unread hold messages, unless `force`.
    `remove_brokers` are taken off the topic's record; no broker takes off itself.
    """

    read_queues: Int64 | None = None
    write_queues: Int64 | None = None
    perm: Int64 | None = None
    message_bytes_max: Int64 | None = None
    retention_ms: Int64 | None = None
    retention_bytes: Int64 | None = None
    remove_brokers: tuple[str, ...] = ()
    force: bool = False


class TopicDescription(msgspec.Struct, frozen=True):
    """A topic as this broker has it, with its offsets."""

    broker: str
    config: TopicConfig
    total: Int64
    queues: tuple[QueueOffsets, ...]


class TopicListing(msgspec.Struct, frozen=True):
    """The topics of one broker."""

    broker: str
    topics: tuple[TopicConfig, ...]


class GroupOffset(msgspec.Struct, frozen=True):
    """A group's progress in one queue of this broker: the next offset it will read."""

    topic: str
    queue: Int64
    offset: Int64


class CommitOffsetsRequest(msgspec.Struct, frozen=True):
    """Store a group's progress, not as one of its members (for those: `MemberCommit` in `groups.py`).

    Offsets only advance, unless `reset` says they may go back. Queues that a member owns are refused unless
    `force`: their owners then lose them. `kind` says who keeps this progress; None leaves it as it was.
    """

    offsets: tuple[GroupOffset, ...]
    reset: bool = False
    force: bool = False
    kind: GroupKind | None = None


class GroupOffsets(msgspec.Struct, frozen=True):
    """What this broker knows of a group's progress; a queue never committed is absent, not 0."""

    broker: str
    group: str
    offsets: tuple[GroupOffset, ...]


class QueueStatistics(msgspec.Struct, frozen=True):
    """One queue at run time; the times are of its first and last stored message, None if it is empty."""

    queue: Int64
    min: Int64
    max: Int64
    oldest_at_us: Int64 | None
    newest_at_us: Int64 | None


class GroupLag(msgspec.Struct, frozen=True):
    """How far a group is behind in one queue: `lag` messages are stored and not yet consumed."""

    group: str
    queue: Int64
    offset: Int64
    lag: Int64


class TopicStatistics(msgspec.Struct, frozen=True):
    """A topic at run time, on one broker, with every group that committed progress in it."""

    broker: str
    topic: str
    queues: tuple[QueueStatistics, ...]
    groups: tuple[GroupLag, ...]


class QueueSpan(msgspec.Struct, frozen=True):
    """The queue offsets [first, end) of one queue."""

    queue: Int64
    first: Int64
    end: Int64


class UncoveredRange(msgspec.Struct, frozen=True):
    """A part of a broker's log that a search could not look into: log offsets [log_begin, log_end).

    Its messages were stored within [stored_from_us, stored_to_us]; None: that bound is not known. `queues`
    are the offsets of the topic that was searched; None: the broker cannot tell them.
    """

    log_begin: Int64
    log_end: Int64
    stored_from_us: Int64 | None = None
    stored_to_us: Int64 | None = None
    queues: tuple[QueueSpan, ...] | None = None


class BrokerStatistics(msgspec.Struct, frozen=True):
    """A broker at run time: its log (offsets), what waits (bytes, calls), and what it holds."""

    broker: str
    draining: bool
    log_begin: Int64
    log_end: Int64
    durable_end: Int64
    snapshot_position: Int64
    index_position: Int64
    queued_bytes: Int64
    group_commits: Int64
    held_calls: Int64
    topics: Int64
    queues: Int64
    open_files: Int64
    disk_total_bytes: Int64
    disk_free_bytes: Int64
    #: Parts of the log that cannot be read, as far as the key index met them.
    index_holes: Int64 = 0
    index_hole_bytes: Int64 = 0
    #: Why nothing is deleted by age: "step" (the wall clock stepped forward by `clock_ahead_us`), "off" (time
    #: passed that nobody saw; it counts from `believe_at_us` on), or "" while messages are deleted by age.
    clock_doubt: str = ""
    clock_ahead_us: Int64 = 0
    believe_at_us: Int64 | None = None


class DrainRequest(msgspec.Struct, frozen=True):
    """Take a broker's writes away (True), or give them back; reads go on either way."""

    draining: bool


class ClockRequest(msgspec.Struct, frozen=True):
    """Agree that it is `at_us` now, so that a broker believes its clock again and deletes by age."""

    at_us: Int64


class BrokerVersion(msgspec.Struct, frozen=True):
    """`GET /version` of a broker or NameServer."""

    service: str
    version: str
    protocol: Int64 = 1


# --- searching ----------------------------------------------------------------------


class MessageDocument(msgspec.Struct, frozen=True):
    """One message as JSON; `key` and `body` are text, or else base64 in the fields of that name."""

    message_id: str
    queue: Int64
    offset: Int64
    stored_at_us: Int64
    born_at_us: Int64 | None = None
    key: str | None = None
    key_base64: str | None = None
    tag: str | None = None
    properties: dict[str, str] | None = None
    body: str | None = None
    body_base64: str | None = None

    def message(self, topic: str, broker: str) -> StoredMessage:
        """Return the message; raise InvalidRequest for bad base64."""
        return StoredMessage(
            MessageQueue(topic, broker, self.queue),
            self.offset,
            bytes_of(self.body, self.body_base64) or b"",
            bytes_of(self.key, self.key_base64),
            self.tag,
            self.properties,
            self.born_at_us,
            self.stored_at_us,
        )


class TimerDocument(msgspec.Struct, frozen=True):
    """A delayed message; `key` and `body` as in a MessageDocument. A list leaves the body out."""

    timer_id: str
    queue: Int64
    deliver_at_ms: Int64
    status: TimerStatus
    stored_at_us: Int64
    born_at_us: Int64 | None = None
    key: str | None = None
    key_base64: str | None = None
    tag: str | None = None
    properties: dict[str, str] | None = None
    body: str | None = None
    body_base64: str | None = None

    def message(self, topic: str, broker: str) -> DelayedMessage:
        """Return the message; raise InvalidRequest for bad base64."""
        return DelayedMessage(
            self.timer_id,
            MessageQueue(topic, broker, self.queue),
            self.deliver_at_ms,
            self.status,
            bytes_of(self.body, self.body_base64),
            bytes_of(self.key, self.key_base64),
            self.tag,
            self.properties,
            self.born_at_us,
            self.stored_at_us,
        )


class TimerListing(msgspec.Struct, frozen=True):
    """A page of the delayed messages of a topic on one broker that are not delivered yet, the next first."""

    broker: str
    topic: str
    timers: tuple[TimerDocument, ...]
    next_page: str | None = None


class KeyQueryAnswer(msgspec.Struct, frozen=True):
    """A page of the messages of one broker that have a key, newest first.

    `lag_bytes` of the broker's log were not indexed; `uncovered` cannot be read and may hold messages
    with this key. Brokers of earlier versions answer without `next_page` and `uncovered`.
    """

    messages: tuple[MessageDocument, ...]
    lag_bytes: Int64
    next_page: str | None = None
    uncovered: tuple[UncoveredRange, ...] = ()


class TimeQueryAnswer(msgspec.Struct, frozen=True):
    """A page of the messages of one broker that were stored within an interval, oldest first."""

    messages: tuple[MessageDocument, ...]
    next_page: str | None = None


def bytes_of(text: str | None, in_base64: str | None) -> bytes | None:
    """Return what a document has as text or as base64, None if as neither; raise InvalidRequest."""
    if in_base64 is None:
        return None if text is None else text.encode("utf-8")
    try:
        return base64.b64decode(in_base64, validate=True)
    except ValueError as error:
        raise InvalidRequest("the JSON body", f"a field is not base64: {error}") from None


prepare_documents(model.__name__)
prepare_documents(__name__)
