"""The calls of the exactly-once sink: JSON documents that both sides hold as values.

A *sink* writes numbered batches, each exactly once. What a batch consists of is
*staged* first: stored and invisible. A stage is (sink, batch, run) on one broker,
and its frames are named by their log offsets. Then one call to the sink's
*coordinator*, a broker, decides which frames of which brokers count, and each
participant *publishes* exactly those. The *run* says who may decide: when another
one begins, the one before is superseded for good (docs/protocol.md, "Sinks").
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from rocketq.model import Int64, SendStatus
from rocketq.protocol.json_codec import prepare_documents


class StageName(msgspec.Struct, frozen=True):
    """What staged messages are of: a batch of a sink, by one run; and who decides about it."""

    sink: str
    batch: Int64
    run: str
    coordinator: str


class Staged(msgspec.Struct, frozen=True):
    """One staged frame, of `count` messages for a queue; its log offset names it on its broker."""

    queue: Int64
    log_offset: Int64
    count: Int64


class StagedAnswer(msgspec.Struct, frozen=True):
    """Where each batch of one staged send lies, in the order they were sent."""

    status: SendStatus
    broker: str
    topic: str
    staged: tuple[Staged, ...]


class RegisterSinkRequest(msgspec.Struct, frozen=True):
    """Make it known who coordinates a sink."""

    coordinator: str


class StageDescription(msgspec.Struct, frozen=True):
    """What is staged and undecided on this broker; `opened_at_ms` since 1970."""

    batch: Int64
    run: str
    frames: Int64
    messages: Int64
    bytes: Int64
    opened_at_ms: Int64


class PublicationDescription(msgspec.Struct, frozen=True):
    """What is decided and still to be published on this broker."""

    batch: Int64
    run: str
    frames: Int64
    messages: Int64
    bytes: Int64


class PendingBatch(msgspec.Struct, frozen=True):
    """A decided batch and the brokers that have not published it; `problem` is why, as last met."""

    batch: Int64
    brokers: tuple[str, ...]
    problem: str = ""


class SinkDescription(msgspec.Struct, frozen=True):
    """A sink as one broker knows it.

    `query`, `run`, `decided` (the last batch that was decided, None before the first) and `pending`
    are the coordinator's to know; other brokers have None and nothing.
    """

    sink: str
    broker: str
    coordinator: str
    query: str | None
    run: str | None
    decided: Int64 | None
    pending: tuple[PendingBatch, ...]
    stages: tuple[StageDescription, ...]
    publishing: tuple[PublicationDescription, ...]


class SinkListing(msgspec.Struct, frozen=True):
    """The sinks that one broker knows."""

    broker: str
    sinks: tuple[SinkDescription, ...]


class BeginRunRequest(msgspec.Struct, frozen=True):
    """Become the sink's current run; `query` says whose batch numbers these are, empty if nobody's."""

    run: str
    query: str = ""


class RunAnswer(msgspec.Struct, frozen=True):
    """The run is the current one; batches up to `decided` are decided."""

    sink: str
    run: str
    decided: Int64 | None


class Participant(msgspec.Struct, frozen=True):
    """The staged frames of one broker that count, by log offset, and how many messages they hold."""

    broker: str
    frames: tuple[Int64, ...]
    messages: Int64


class OnDecided(StrEnum):
    """What a commit does with a batch whose number is at or below the last decided one.

    FAIL refuses it, unless it repeats the last decided batch with the same number of rows by topic.
    SKIP writes nothing and succeeds (Delta's rule for txnVersion).
    """

    FAIL = "FAIL"
    SKIP = "SKIP"


class CommitBatchRequest(msgspec.Struct, frozen=True):
    """Decide a batch: exactly these frames.

    `rows` is how many rows the writer had for each topic, staged or only counted because the batch was
    known to be decided. Without it (None) the messages of the participants are compared in its place.
    """

    run: str
    participants: tuple[Participant, ...]
    query: str = ""
    rows: dict[str, Int64] | None = None
    on_decided: OnDecided = OnDecided.FAIL

    @property
    def total(self) -> int:
        """All rows that the writer had for the batch."""
        if self.rows is None:
            return sum(each.messages for each in self.participants)
        return sum(self.rows.values())


class CommitOutcome(StrEnum):
    """What a commit did: it decided the batch, an earlier one had, or the batch was skipped."""

    COMMITTED = "COMMITTED"
    ALREADY_COMMITTED = "ALREADY_COMMITTED"
    SKIPPED = "SKIPPED"


class CommitBatchAnswer(msgspec.Struct, frozen=True):
    """The batch is decided; `unsettled` brokers have yet to publish their part, and will.

    `decided` is the last decided batch of the sink.
    """

    sink: str
    batch: Int64
    outcome: CommitOutcome
    unsettled: tuple[str, ...]
    decided: Int64 | None = None


class AbortBatchRequest(msgspec.Struct, frozen=True):
    """Give a batch up; if it is undecided, its run may decide nothing any more."""

    run: str


class AbortBatchAnswer(msgspec.Struct, frozen=True):
    """What holds now: a decided batch stays decided."""

    sink: str
    batch: Int64
    is_decided: bool


class StageVerdict(StrEnum):
    """What a participant is to do with a stage."""

    UNDECIDED = "UNDECIDED"
    PUBLISH = "PUBLISH"
    DROP = "DROP"


class CheckBatchRequest(msgspec.Struct, frozen=True):
    """A participant asks about its stage; with `abandon` it will drop what is still undecided."""

    run: str
    broker: str
    abandon: bool = False


class CheckBatchAnswer(msgspec.Struct, frozen=True):
    """The coordinator's word on a stage; for PUBLISH, the frames that count and their messages."""

    verdict: StageVerdict
    frames: tuple[Int64, ...] = ()
    messages: Int64 = 0


class PublishBatchRequest(msgspec.Struct, frozen=True):
    """Publish exactly these frames of a stage; with `only_check`, say whether that could be done.

    `coordinator` is the broker that asks; a participant that knows another one refuses. Empty says nothing.
    """

    batch: Int64
    run: str
    frames: tuple[Int64, ...]
    messages: Int64
    only_check: bool = False
    coordinator: str = ""


class PublishBatchAnswer(msgspec.Struct, frozen=True):
    """The batch is in its queues here (with `only_check`: it can be)."""

    sink: str
    batch: Int64
    broker: str


prepare_documents(__name__)
