"""The calls to a broker: paths, headers, and the JSON documents both sides hold as values.

`rocketq.protocol.codec` writes and reads the documents. Message batches are none: they travel as frames
or Arrow streams.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from rocketq.protocol import model
from rocketq.protocol.codec import decode as decode
from rocketq.protocol.codec import decode_request as decode_request
from rocketq.protocol.codec import encode as encode
from rocketq.protocol.codec import prepare_documents
from rocketq.protocol.model import Appended, Int64, QueueOffsets, SendStatus, TopicConfig

FRAMES: Final = "application/vnd.rocketq.frames"
ARROW_STREAM: Final = "application/vnd.apache.arrow.stream"
JSON: Final = "application/json"

#: Headers of a pull's answer.
STATUS_HEADER: Final = "x-rocketq-status"
NEXT_OFFSET_HEADER: Final = "x-rocketq-next-offset"
MIN_OFFSET_HEADER: Final = "x-rocketq-min-offset"
MAX_OFFSET_HEADER: Final = "x-rocketq-max-offset"
INCARNATION_HEADER: Final = "x-rocketq-incarnation"
SUGGESTED_BROKER_HEADER: Final = "x-rocketq-suggested-broker-id"

#: The longest a server holds a call, and what it adds to a client's own deadline.
WAIT_MS_MAX: Final = 60_000


@dataclass(frozen=True, slots=True)
class SendAnswer:
    """Where each batch of one send went, in the order they were sent."""

    status: SendStatus
    broker: str
    topic: str
    appended: tuple[Appended, ...] = field(hash=False)


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """min and max of every queue of a topic on one broker; the index is the queue id.

    `total` is the sum of the max offsets: it grows with every message, so
    "wait until there is more than I know" is one comparison.
    """

    topic: str
    broker: str
    incarnation: str
    total: Int64
    queues: tuple[QueueOffsets, ...] = field(hash=False)


@dataclass(frozen=True, slots=True)
class TimeOffsets:
    """The offset that a time names in each queue; the index is the queue id."""

    topic: str
    broker: str
    incarnation: str
    at_us: Int64
    offsets: tuple[Int64, ...] = field(hash=False)


@dataclass(frozen=True, slots=True)
class CreateTopicRequest:
    """Create a topic; with `if_absent` an existing one is a success and stays as it is.

    `automatic` marks creation on a producer's behalf: refused where the broker
    does not allow automatic creation.
    """

    read_queues: Int64 = 4
    write_queues: Int64 = 4
    perm: Int64 = 6
    message_bytes_max: Int64 | None = None
    retention_ms: Int64 | None = None
    retention_bytes: Int64 | None = None
    if_absent: bool = False
    automatic: bool = False


@dataclass(frozen=True, slots=True)
class AlterTopicRequest:
    """Change what is given; queue counts may grow, and read and write counts shrink apart."""

    read_queues: Int64 | None = None
    write_queues: Int64 | None = None
    perm: Int64 | None = None
    message_bytes_max: Int64 | None = None
    retention_ms: Int64 | None = None
    retention_bytes: Int64 | None = None


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as this broker has it, with its offsets."""

    broker: str
    config: TopicConfig
    total: Int64
    queues: tuple[QueueOffsets, ...] = field(hash=False)


@dataclass(frozen=True, slots=True)
class TopicListing:
    """The topics of one broker."""

    broker: str
    topics: tuple[TopicConfig, ...] = field(hash=False)


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """A group's progress in one queue of this broker: the next offset it will read."""

    topic: str
    queue: Int64
    offset: Int64


@dataclass(frozen=True, slots=True)
class CommitOffsetsRequest:
    """Store a group's progress. Offsets only advance, unless `reset` says they may go back."""

    offsets: tuple[GroupOffset, ...] = field(hash=False)
    reset: bool = False


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """What this broker knows of a group's progress; a queue never committed is absent, not 0."""

    broker: str
    group: str
    offsets: tuple[GroupOffset, ...] = field(hash=False)


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """One queue at run time; the times are of its first and last stored message, None if it is empty."""

    queue: Int64
    min: Int64
    max: Int64
    oldest_at_us: Int64 | None
    newest_at_us: Int64 | None


@dataclass(frozen=True, slots=True)
class GroupLag:
    """How far a group is behind in one queue: `lag` messages are stored and not yet consumed."""

    group: str
    queue: Int64
    offset: Int64
    lag: Int64


@dataclass(frozen=True, slots=True)
class TopicStatistics:
    """A topic at run time, on one broker, with every group that committed progress in it."""

    broker: str
    topic: str
    queues: tuple[QueueStatistics, ...] = field(hash=False)
    groups: tuple[GroupLag, ...] = field(hash=False)


@dataclass(frozen=True, slots=True)
class BrokerStatistics:
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


@dataclass(frozen=True, slots=True)
class DrainRequest:
    """Take a broker's writes away (True), or give them back; reads go on either way."""

    draining: bool


@dataclass(frozen=True, slots=True)
class BrokerVersion:
    """`GET /version` of a broker or NameServer."""

    service: str
    version: str
    protocol: Int64 = 1


prepare_documents(model.__name__)
prepare_documents(__name__)
