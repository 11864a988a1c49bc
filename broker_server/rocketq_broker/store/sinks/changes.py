"""The changes of exactly-once sinks: each is the body of one frame of the log, folded by `sinks.table`.

A change carries what was decided, not what was requested.
"""

from __future__ import annotations

import msgspec

from rocketq.protocol.documents.sinks import Participant


class SinkRegistered(msgspec.Struct, frozen=True, tag="sink_registered"):
    """A sink is coordinated by this broker, for good."""

    sink: str
    coordinator: str


class RunStarted(msgspec.Struct, frozen=True, tag="run_started"):
    """A run became the current one of its sink; the one before is superseded."""

    sink: str
    run: str
    query: str


class RunSuperseded(msgspec.Struct, frozen=True, tag="run_superseded"):
    """A run may decide nothing any more."""

    sink: str
    run: str


class BatchDecided(msgspec.Struct, frozen=True, tag="batch_decided"):
    """A batch consists of exactly these frames; `rows` by topic, None if the writer did not say them."""

    sink: str
    batch: int
    run: str
    query: str
    participants: tuple[Participant, ...]
    rows: dict[str, int] | None = None


class BatchSettled(msgspec.Struct, frozen=True, tag="batch_settled"):
    """A participant has published its part of a batch."""

    sink: str
    batch: int
    broker: str


class SinkReset(msgspec.Struct, frozen=True, tag="sink_reset"):
    """What was decided is forgotten, and its last run superseded; the coordinator stays."""

    sink: str


class SinkDeleted(msgspec.Struct, frozen=True, tag="sink_deleted"):
    """A sink is forgotten, with all that is staged and still to be published of it."""

    sink: str


class StageOpened(msgspec.Struct, frozen=True, tag="stage_opened"):
    """A stage began; it makes the sink known, too, where it is not."""

    number: int
    sink: str
    batch: int
    run: str
    coordinator: str
    at_ms: int


class StageDropped(msgspec.Struct, frozen=True, tag="stage_dropped"):
    """Nothing of a stage will be published."""

    number: int


class BatchPublished(msgspec.Struct, frozen=True, tag="batch_published"):
    """Of a stage these frames, ascending, are to be published; the rest is dropped."""

    number: int
    sink: str
    batch: int
    run: str
    frames: tuple[int, ...]


SinkChange = (
    SinkRegistered | RunStarted | RunSuperseded | BatchDecided | BatchSettled | SinkReset | SinkDeleted
    | StageOpened | StageDropped | BatchPublished
)  # fmt: skip
