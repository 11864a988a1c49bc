"""The nouns of the protocol: frozen values that hash and compare.

Offsets are array indexes into one MessageQueue: `min` is the first that is
stored, `max` the next to be written, so a queue holds [min, max). Times are
microseconds since 1970 in UTC (`_us`), durations milliseconds (`_ms`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import IntFlag, StrEnum
from typing import Annotated, Final

import msgspec

#: Every integer of a document: what Arrow, Spark and the store can hold.
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9_%|-]{1,127}\Z")
_CLIENT_ID_PATTERN: Final = re.compile(r"[!-.0-~]{1,255}\Z")

#: Queue ids are dense and small; the broker's own limit is lower still.
QUEUE_COUNT_MAX: Final = 16_384
#: As RocketMQ's properties, so that one key can never dominate a batch.
KEY_BYTES_MAX: Final = 32_767
TAG_BYTES_MAX: Final = 255
#: What one pull may ask for; also what a client is prepared to take in.
PULL_BYTES_MAX: Final = 64 * 1024 * 1024
DEFAULT_QUEUES: Final = 4
#: The property that holds the id which the client gave a message (RocketMQ: MessageConst).
UNIQUE_ID_PROPERTY: Final = "UNIQ_KEY"
#: How many broker groups the record of a topic may name.
TOPIC_BROKERS_MAX: Final = 1_024
#: The offset of messages that are stored and in no queue yet, because they are delayed.
NO_OFFSET: Final = -1


def is_legal_name(name: str) -> bool:
    """Whether `name` may name a topic, broker, cluster or group (RocketMQ: Validators)."""
    return NAME_PATTERN.match(name) is not None


def is_legal_client_id(text: str) -> bool:
    """Whether `text` may name a member of a group: visible ASCII without a slash."""
    return _CLIENT_ID_PATTERN.match(text) is not None


class Perm(IntFlag):
    """What a topic on one broker admits (RocketMQ: PermName; R 4, W 2)."""

    NONE = 0
    WRITE = 2
    READ = 4
    READ_WRITE = 6


class FlushMode(StrEnum):
    """When a send is acknowledged: after the page cache, or after the disk."""

    ASYNC = "async"
    SYNC = "sync"


class ReplicationMode(StrEnum):
    """Whether a message is confirmed when the in-sync replicas hold it, or when the master does
    (RocketMQ: SYNC_MASTER, ASYNC_MASTER).
    """

    ASYNC = "async"
    SYNC = "sync"


class SendStatus(StrEnum):
    """RocketMQ's SendStatus; all but SEND_OK mean stored here but not as safely as asked."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"

    @property
    def is_unconfirmed(self) -> bool:
        """Whether the master has the message, and the slaves that are to have it did not say so in time."""
        return self in (SendStatus.FLUSH_SLAVE_TIMEOUT, SendStatus.SLAVE_NOT_AVAILABLE)


class PullStatus(StrEnum):
    """RocketMQ's PullStatus."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    NO_MATCHED_MSG = "NO_MATCHED_MSG"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


class TimeBoundary(StrEnum):
    """Which offset a time names (RocketMQ: BoundaryType).

    LOWER is the first message stored at or after it, max if there is none;
    UPPER the last stored at or before it, min if there is none.
    """

    LOWER = "lower"
    UPPER = "upper"


class MessageModel(StrEnum):
    """RocketMQ's MessageModel: the members share the queues, or each member reads all of them."""

    CLUSTERING = "clustering"
    BROADCASTING = "broadcasting"


class StartFrom(StrEnum):
    """Where a group begins in a queue without a stored offset (RocketMQ: ConsumeFromWhere)."""

    FIRST = "first"
    LAST = "last"
    TIME = "time"


class GroupKind(StrEnum):
    """Who keeps the progress of a group."""

    #: Members that share its queues, or consumers that commit on their own.
    CONSUMERS = "consumers"
    #: A streaming query of Spark, which commits what it has processed so that its lag can be seen.
    SPARK = "spark"


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of one topic on one broker group: the unit of order and of parallelism.

    >>> str(MessageQueue("orders", "broker-a", 3))
    'orders/broker-a/3'
    """

    topic: str
    #: The name of the broker group (RocketMQ: brokerName).
    broker: str
    #: The number of the queue on that broker group, from 0.
    queue: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker}/{self.queue}"


@dataclass(frozen=True, slots=True)
class Message:
    """What a producer sends: a body, and what it may be found or filtered by.

    >>> Message(b"42", key=b"o-1", tag="paid", properties={"amount": "42"}).tag
    'paid'
    """

    body: bytes
    #: What `Query.by_key` finds it by; it does not choose the queue.
    key: bytes | None = None
    #: One word by which consumers filter at the broker, as `Tag`.
    tag: str | None = None
    #: Text by name, for filters in SQL and for the receiver.
    properties: dict[str, str] | None = field(default=None, hash=False)
    #: When it was made, in microseconds since 1970; None: the producer's clock at sending.
    born_at_us: int | None = None


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as a consumer gets it: with its place and its times."""

    queue: MessageQueue
    #: Its number in the queue, from 0, without gaps.
    offset: int
    body: bytes
    key: bytes | None
    tag: str | None
    properties: dict[str, str] | None = field(hash=False)
    #: When its producer made it, in microseconds since 1970.
    born_at_us: Int64 | None
    #: When its broker stored it, in microseconds since 1970.
    stored_at_us: Int64

    @property
    def message_id(self) -> str:
        """The id of its place."""
        return message_id(self.queue, self.offset)

    @property
    def unique_id(self) -> str | None:
        """The id that its producer gave it; copies of a message, made by retries or resends, share it."""
        return (self.properties or {}).get(UNIQUE_ID_PROPERTY)


def message_id(queue: MessageQueue, offset: int) -> str:
    """Return the id of a message, `broker:topic:queue:offset`; a colon is legal in no name."""
    return f"{queue.broker}:{queue.topic}:{queue.queue}:{offset}"


class TransactionState(StrEnum):
    """What became of a local transaction (RocketMQ: LocalTransactionState); UNKNOWN: not decided yet."""

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class HalfMessage:
    """A message of an undecided transaction, as its producer group is asked about it.

    It is the first message of its transaction. `check` counts the checks of the transaction, this one
    included; `begun_at_ms` is when the broker stored the message, in milliseconds since 1970.
    """

    transaction_id: str
    queue: MessageQueue
    body: bytes
    key: bytes | None
    tag: str | None
    properties: dict[str, str] | None = field(hash=False)
    born_at_us: Int64 | None
    stored_at_us: Int64
    begun_at_ms: int
    check: int


class TimerStatus(StrEnum):
    """What became of a delayed message; one that is PAST was delivered, unless it had been cancelled."""

    PENDING = "pending"
    CANCELLED = "cancelled"
    PAST = "past"


_TIMER_ID: Final = re.compile(r"([^:]+):([^:]+):(\d{1,9}):@(\d{1,18})\.(\d{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True)
class TimerId:
    """Names a delayed message by its place in the log of its broker: `broker:topic:queue:@log offset.row`.

    It has no offset in its queue before it is delivered, so it has no message id yet.
    """

    queue: MessageQueue
    log_offset: int
    row: int

    def __str__(self) -> str:
        queue = self.queue
        return f"{queue.broker}:{queue.topic}:{queue.queue}:@{self.log_offset}.{self.row}"

    @staticmethod
    def parse(text: str) -> TimerId | None:
        """Return what a text names; None if it is no timer id."""
        match = _TIMER_ID.fullmatch(text)
        if match is None:
            return None
        broker, topic, queue, log_offset, row = match.groups()
        return TimerId(MessageQueue(topic, broker, int(queue)), int(log_offset), int(row))


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """A message that is stored and not in its queue yet; `body` is None in a list."""

    timer_id: str
    queue: MessageQueue
    deliver_at_ms: Int64
    status: TimerStatus
    body: bytes | None
    key: bytes | None
    tag: str | None
    properties: dict[str, str] | None = field(hash=False)
    born_at_us: Int64 | None
    stored_at_us: Int64


@dataclass(frozen=True, slots=True)
class QueueOffsets:
    """The readable range [min, max) of one queue."""

    min: Int64
    max: Int64


@dataclass(frozen=True, slots=True)
class Appended:
    """Where one batch went: `count` messages from `offset` on, in one queue of one broker.

    The offset of delayed messages is NO_OFFSET: they get one when they are delivered.
    """

    queue: Int64
    offset: Int64
    count: Int64


@dataclass(frozen=True, slots=True)
class SendResult:
    """The outcome of sending one batch (RocketMQ: SendResult).

    >>> with client.producer() as producer:
    ...     [result] = producer.send_batch("orders", [Message(b"1"), Message(b"2")])
    >>> result.status.value, result.count
    ('SEND_OK', 2)
    """

    status: SendStatus
    queue: MessageQueue
    #: That of the first message; NO_OFFSET for delayed messages, which get theirs when they are delivered.
    offset: int
    #: How many messages; their offsets follow one another.
    count: int
    #: The id that the producer gave a message which was sent alone (RocketMQ: msgId).
    unique_id: str | None = None
    #: What names a delayed message that was sent alone.
    timer_id: str | None = None
    #: A broker that never answered an earlier attempt may have a copy, too.
    may_be_duplicate: bool = False

    @property
    def is_delayed(self) -> bool:
        return self.offset == NO_OFFSET

    @property
    def message_id(self) -> str:
        """The id of the first message; of a delayed one its timer id, empty if it was not sent alone."""
        return (self.timer_id or "") if self.is_delayed else message_id(self.queue, self.offset)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic as one broker keeps it (RocketMQ: TopicConfig).

    `incarnation` is made anew whenever a topic of this name is created, so
    that an offset remembered from before a delete is never taken for one of
    the new topic. None of the optional limits overrides the broker's when None.

    `brokers` is the topic's record: the sorted names of the broker groups that hold it, this one
    among them. Each of them keeps it, so one that is away is still known of. It is empty where
    nobody said it: in a topic that was made by an earlier version, or on one broker by hand.
    """

    name: str
    read_queues: Int64 = DEFAULT_QUEUES
    write_queues: Int64 = DEFAULT_QUEUES
    perm: Int64 = int(Perm.READ_WRITE)
    incarnation: str = ""
    message_bytes_max: Int64 | None = None
    retention_ms: Int64 | None = None
    retention_bytes: Int64 | None = None
    brokers: tuple[str, ...] = ()

    @property
    def queues(self) -> int:
        return max(self.read_queues, self.write_queues)
