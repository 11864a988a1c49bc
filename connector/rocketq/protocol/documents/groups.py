"""Documents of consumer groups: members, claims of queues, progress, settings (docs/protocol.md).

A *member* is one consumer of a group. A *claim* says which member owns a queue of a clustering group on one
broker; its *epoch* rises at each new owner of any queue of that broker. Times are microseconds since 1970
(`_us`), durations milliseconds (`_ms`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from rocketq.model import GroupKind, Int64, MessageModel, StartFrom
from rocketq.protocol.json_codec import prepare_documents

#: How often a message that failed is tried again (RocketMQ: SubscriptionGroupConfig.retryMaxTimes).
RETRIES_MAX: Final = 16
#: After this time without a call a member is gone (RocketMQ: ConsumerManager.CHANNEL_EXPIRED_TIMEOUT).
SESSION_TIMEOUT_MS: Final = 120_000
SESSION_TIMEOUT_MS_MIN: Final = 1_000
#: How often a member sends a heartbeat (RocketMQ: ClientConfig.heartbeatBrokerInterval).
HEARTBEAT_MS: Final = 30_000
#: How long a watch of a member is held. Changes answer it, and a death breaks its connection, at any length:
#: only a process that stands still is found out later for it. Proxies cut calls that are silent for 60 s.
WATCH_MS: Final = 50_000
#: Bounds of one heartbeat and one claim.
SUBSCRIPTIONS_MAX: Final = 1_000
CLAIMED_QUEUES_MAX: Final = 10_000


class StartRule(msgspec.Struct, frozen=True):
    """Where to begin without a stored offset; `at_us` belongs to TIME, and to it alone."""

    where: StartFrom = StartFrom.FIRST
    at_us: Int64 | None = None


class Subscription(msgspec.Struct, frozen=True):
    """A topic and what a member wants of it: a tag expression, an SQL filter, or (neither) everything."""

    topic: str
    tag: str | None = None
    sql: str | None = None


class GroupSettings(msgspec.Struct, frozen=True):
    """What a broker remembers of a group besides its progress (RocketMQ: SubscriptionGroupConfig).

    `model`, `start` and `ordered` are None while nobody has set them: then those of the oldest member count.
    """

    enabled: bool = True
    retries_max: Int64 = RETRIES_MAX
    model: MessageModel | None = None
    start: StartRule | None = None
    ordered: bool | None = None


# --- members ------------------------------------------------------------------------


class Heartbeat(msgspec.Struct, frozen=True):
    """What a member says of itself, at its start, at each change, and every HEARTBEAT_MS.

    `started_at_us` is when the member started, by its own clock; it stays the same as long as the member
    lives. The oldest member decides which subscription counts, so all brokers must be told the same. The
    address of a member is that of its connection.
    """

    started_at_us: Int64
    subscriptions: tuple[Subscription, ...]
    model: MessageModel = MessageModel.CLUSTERING
    start: StartRule = StartRule()
    ordered: bool = False
    #: None: that of the broker. The broker takes SESSION_TIMEOUT_MS_MIN up to its own.
    session_timeout_ms: Int64 | None = None
    language: str = ""
    version: str = ""


class DifferenceKind(StrEnum):
    """In what a member differs from its group."""

    #: Its filter of `topic` is another: it gets no queue of the topic.
    FILTER = "filter"
    #: Its message model is another: it gets no queue at all.
    MODEL = "model"
    #: It consumes in order and the group does not, or the other way: it gets no queue at all.
    ORDERED = "ordered"
    #: It does not subscribe to `topic`, and others do: the others share the topic's queues.
    TOPIC = "topic"
    #: Its start rule is another: the group's counts.
    START = "start"


class Difference(msgspec.Struct, frozen=True):
    """One point in which a member differs from what counts in its group; `theirs` says whose value counts.

    `theirs` is a client id, or empty if the group's settings say it. `topic` is empty where it means nothing.
    """

    client_id: str
    kind: DifferenceKind
    topic: str
    value: str
    counts: str
    theirs: str


class QueueClaim(msgspec.Struct, frozen=True):
    """A queue of this broker, its owner, and the claim's epoch. `offset` is the stored one of the group."""

    topic: str
    queue: Int64
    client_id: str
    epoch: Int64
    offset: Int64 | None


class HeartbeatAnswer(msgspec.Struct, frozen=True):
    """How the group stands, for the member that sent a heartbeat.

    `is_new`: the broker had no heartbeat of the member (it is new, its session had ended, or the broker was
    restarted). In any case `claims` are all queues that it owns here. `model`, `start`, `ordered` and
    `retries_max` are what counts in the group. `differences` are those of all members.
    """

    broker: str
    group: str
    is_new: bool
    members_version: str
    session_timeout_ms: Int64
    model: MessageModel
    start: StartRule
    ordered: bool
    retries_max: Int64
    differences: tuple[Difference, ...]
    claims: tuple[QueueClaim, ...]


class Member(msgspec.Struct, frozen=True):
    """One member as a broker knows it.

    `heard` is False after a restart of the broker until the member's next heartbeat: the broker knows it by
    the queues that it owns, keeps them for one session timeout, and knows no more of it.
    """

    client_id: str
    started_at_us: Int64
    heard: bool
    session_timeout_ms: Int64
    model: MessageModel
    start: StartRule
    ordered: bool
    language: str
    version: str
    address: str
    subscriptions: tuple[Subscription, ...]


class TopicMembers(msgspec.Struct, frozen=True):
    """The members that share the queues of a topic, by client id in order: those with the filter that counts.

    An allocation takes exactly these, so that every queue goes to a member that wants what others want.
    """

    topic: str
    client_ids: tuple[str, ...]


class GroupMembers(msgspec.Struct, frozen=True):
    """The members of a group on one broker.

    `version` changes when a member comes, goes or says something else of itself, when settings change, and
    when a queue is released that another member had asked for. It is opaque: compare it for equality, and
    only with versions of the same broker. `is_changed` is False if it still is the version that the caller
    knows; `members` and `topics` are then left out. `queues_taken` changes when an operator has taken queues
    from their owners: each member then asks by a heartbeat what it still owns.
    """

    broker: str
    group: str
    version: str
    members: tuple[Member, ...] = ()
    topics: tuple[TopicMembers, ...] = ()
    is_changed: bool = True
    queues_taken: Int64 = 0


# --- claims ---------------------------------------------------------------------------


class QueueOfTopic(msgspec.Struct, frozen=True):
    """A queue of the asked broker."""

    topic: str
    queue: Int64


class ClaimRequest(msgspec.Struct, frozen=True):
    """A member asks for queues; those that it owns already stay as they are."""

    client_id: str
    queues: tuple[QueueOfTopic, ...]


class RefusalReason(StrEnum):
    """Why a queue is not given to a member."""

    #: Another member owns it: wait until it releases the queue, or its session ends.
    OWNED = "owned"
    #: The member is not among the TopicMembers of the topic.
    NOT_ELIGIBLE = "not_eligible"
    #: This broker has no such queue to read.
    NO_SUCH_QUEUE = "no_such_queue"


class RefusedClaim(msgspec.Struct, frozen=True):
    """A queue that was not given; `owner` is empty unless the reason is OWNED."""

    topic: str
    queue: Int64
    reason: RefusalReason
    owner: str = ""


class ClaimAnswer(msgspec.Struct, frozen=True):
    """The outcome for each asked queue, in the order asked within each of the two."""

    broker: str
    group: str
    granted: tuple[QueueClaim, ...]
    refused: tuple[RefusedClaim, ...]


class ReleaseRequest(msgspec.Struct, frozen=True):
    """A member releases queues; those that it does not own are passed over."""

    client_id: str
    queues: tuple[QueueOfTopic, ...]


class ClaimedOffset(msgspec.Struct, frozen=True):
    """A member's progress in a queue that it owns under `epoch`."""

    topic: str
    queue: Int64
    epoch: Int64
    offset: Int64


class MemberCommit(msgspec.Struct, frozen=True):
    """Progress of one member. Offsets only advance, unless `reset` (after a seek) says they may go back.

    With `release` the same call releases the queues: the next owner begins at what is committed.
    """

    client_id: str
    offsets: tuple[ClaimedOffset, ...]
    reset: bool = False
    release: bool = False


# --- the group as a whole ---------------------------------------------------------------


class GroupSummary(msgspec.Struct, frozen=True):
    """A group in a listing: the client ids of its members, and the topics that it has progress in."""

    group: str
    kind: GroupKind
    settings: GroupSettings
    members: tuple[str, ...]
    topics: tuple[str, ...]


class GroupListing(msgspec.Struct, frozen=True):
    """The groups of one broker, by name."""

    broker: str
    groups: tuple[GroupSummary, ...]


class GroupQueue(msgspec.Struct, frozen=True):
    """Where a group stands in one queue, and who owns it.

    `committed` is the next offset to read, None if nothing was committed. `lag` counts messages that are
    stored and not yet consumed. `lag_ms` is the age of the next message to consume, 0 if there is none. Each
    is None where it is not known.
    """

    topic: str
    queue: Int64
    committed: Int64 | None
    min: Int64 | None
    max: Int64 | None
    lag: Int64 | None
    lag_ms: Int64 | None
    owner: str | None = None
    epoch: Int64 | None = None


class MemberStatus(msgspec.Struct, frozen=True):
    """A member at this moment: how long ago its last call was, and how many queues it owns on this broker."""

    member: Member
    last_heard_ms: Int64
    queues: Int64


class GroupDescription(msgspec.Struct, frozen=True):
    """A group as one broker has it: in every queue in which it has progress, or which a member owns.

    The queue of its retry topic is among them once there is one; messages that still wait for their next
    attempt are not counted in its lag. `dead_letters` counts the letters that are stored here.
    """

    broker: str
    group: str
    kind: GroupKind
    settings: GroupSettings
    members: tuple[MemberStatus, ...]
    differences: tuple[Difference, ...]
    queues: tuple[GroupQueue, ...]
    dead_letters: Int64 = 0


class SetGroupRequest(msgspec.Struct, frozen=True):
    """Create a group, or change what is given of its settings; None leaves a setting as it is.

    `unset` names settings of which none is to be set any more: `model`, `start` or `ordered`.
    """

    enabled: bool | None = None
    retries_max: Int64 | None = None
    model: MessageModel | None = None
    start: StartRule | None = None
    ordered: bool | None = None
    unset: tuple[str, ...] = ()


class ResetTarget(StrEnum):
    """Where a reset puts a group: the first or the next message of each queue, an offset, or a time."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TIME = "time"


class ResetRequest(msgspec.Struct, frozen=True):
    """Put a group's progress in a topic elsewhere; in all its read queues, unless `queues` are given.

    `offset` belongs to OFFSET and `at_us` to TIME (the first message stored at or after it, max if there is
    none), and to them alone. With `dry_run` nothing is stored. While members are active it is refused unless
    `force`: then the owners lose the queues, so that they begin again at the new offsets. A group that does
    not exist is refused unless `create`.
    """

    topic: str
    to: ResetTarget
    offset: Int64 | None = None
    at_us: Int64 | None = None
    queues: tuple[Int64, ...] | None = None
    dry_run: bool = False
    force: bool = False
    create: bool = False


class CloneRequest(msgspec.Struct, frozen=True):
    """Give a group the progress of `source`, in `topic` alone if it is named.

    `dry_run` and `force` are as in a reset.
    """

    source: str
    topic: str | None = None
    dry_run: bool = False
    force: bool = False


class OffsetMove(msgspec.Struct, frozen=True):
    """What a reset or clone does to one queue; `before` is None if the group had no offset there."""

    topic: str
    queue: Int64
    before: Int64 | None
    after: Int64


class OffsetMoves(msgspec.Struct, frozen=True):
    """What a reset or clone did, or with `dry_run` would do."""

    broker: str
    group: str
    dry_run: bool
    moves: tuple[OffsetMove, ...]


# --- producers --------------------------------------------------------------------------


class ProducerHeartbeat(msgspec.Struct, frozen=True):
    """What a member of a producer group says of itself."""

    started_at_us: Int64
    session_timeout_ms: Int64 | None = None
    language: str = ""
    version: str = ""


class ProducerMember(msgspec.Struct, frozen=True):
    """One producer as a broker knows it."""

    client_id: str
    started_at_us: Int64
    last_heard_ms: Int64
    language: str
    version: str
    address: str


class ProducerMembers(msgspec.Struct, frozen=True):
    """The producers of a group on one broker."""

    broker: str
    group: str
    session_timeout_ms: Int64
    members: tuple[ProducerMember, ...]


prepare_documents(__name__)
