"""The table of exactly-once sinks, stages and publications: a state machine that is folded from the log.

Every broker may be a participant; one broker is the coordinator of a sink:

    participant   StageOpened ─> staged frames ─> BatchPublished ─> copies in the queues, one for each frame
                                     └──────────> StageDropped
    coordinator   RunStarted ─> BatchDecided ─> BatchSettled, one for each participant that has published

A stage holds the staged frames of one (sink, batch, run). `BatchPublished` moves the decided frames to the
end of `publishing` and drops the other frames of the stage. The log writer copies the frames from the head of
`publishing` to their queues. Each copy carries a flag, and folding it moves the head on by one. So copying
goes on after a crash where it stopped, and each decided frame comes to its queue once.

When a topic is deleted, its frames go, also from `publishing`. `CopySkipped` passes over a frame that
salvage found lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import ClassVar, Final, get_args

from rpds import HashTrieMap

from rocketq.protocol.documents.sinks import Participant
from rocketq.protocol.frame import FrameKind
from rocketq_broker.store.machines.machine import CopyName, HeldFrame, Holding, Machine
from rocketq_broker.store.machines.topic_table import TopicDeleted, TopicTable
from rocketq_broker.store.sinks.changes import (
    BatchDecided,
    BatchPublished,
    BatchSettled,
    RunStarted,
    RunSuperseded,
    SinkChange,
    SinkDeleted,
    SinkRegistered,
    SinkReset,
    StageDropped,
    StageOpened,
)

#: Runs of a sink that are remembered as superseded, the newest of them.
SUPERSEDED_MAX: Final = 64
#: Batches of a sink that a participant remembers to have published, and a coordinator to have
#: decided once all have: a participant must remember more, to know what it did when it is asked again.
PUBLISHED_MAX: Final = 8
SETTLED_KEPT: Final = 2


class FrameList:
    """Frames that only become more. Appending gives a new view and leaves every older one as it was.

    The views share one list, each up to its own length, so a stage of a hundred thousand
    frames costs as much to grow as one of ten.
    """

    __slots__ = ("_frames", "_size")

    def __init__(self, frames: Iterable[HeldFrame] = ()) -> None:
        self._frames = list(frames)
        self._size = len(self._frames)

    def appended(self, frame: HeldFrame) -> FrameList:
        longer = FrameList.__new__(FrameList)
        # Where the list has gone on without us, with a group that was never written, ours is a new one.
        shared = len(self._frames) == self._size
        longer._frames = self._frames if shared else self._frames[: self._size]
        longer._frames.append(frame)
        longer._size = self._size + 1
        return longer

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[HeldFrame]:
        return iter(self._frames[: self._size])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FrameList) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    @property
    def first(self) -> HeldFrame | None:
        return self._frames[0] if self._size else None


@dataclass(frozen=True, slots=True)
class Stage:
    """The staged frames of one batch by one run, undecided as far as this broker knows."""

    number: int
    sink: str
    batch: int
    run: str
    opened_at_ms: int
    last_at_ms: int
    frames: FrameList = field(default_factory=FrameList)
    messages: int = 0
    bytes: int = 0

    def with_frame(self, frame: HeldFrame, at_ms: int) -> Stage:
        return replace(
            self,
            last_at_ms=at_ms,
            frames=self.frames.appended(frame),
            messages=self.messages + frame.messages,
            bytes=self.bytes + frame.size,
        )


@dataclass(frozen=True, slots=True)
class Publication:
    """Decided frames of one stage that are still to be copied to their queues, from `done` on."""

    sink: str
    batch: int
    run: str
    frames: tuple[HeldFrame, ...]
    done: int = 0

    @property
    def name(self) -> CopyName:
        return self.sink, self.batch, self.run

    @property
    def rest(self) -> tuple[HeldFrame, ...]:
        return self.frames[self.done :]


@dataclass(frozen=True, slots=True)
class Decision:
    """A decided batch, and the participants that have published their part.

    `rows` by topic is None where the writer did not say them, or was of an older version.
    """

    batch: int
    run: str
    participants: tuple[Participant, ...]
    settled: tuple[str, ...] = ()
    rows: dict[str, int] | None = field(default=None, hash=False)

    @property
    def total(self) -> int:
        """All rows of the batch."""
        return sum(each.messages for each in self.participants)

    @property
    def unsettled(self) -> tuple[str, ...]:
        return tuple(each.broker for each in self.participants if each.broker not in self.settled)

    def part_of(self, broker: str) -> Participant | None:
        return next((each for each in self.participants if each.broker == broker), None)


@dataclass(frozen=True, slots=True)
class SinkEntry:
    """One sink. All but the coordinator's name and `published` is only known to the coordinator."""

    coordinator: str
    query: str = ""
    run: str = ""
    superseded: tuple[str, ...] = ()
    decided: int | None = None
    decisions: tuple[Decision, ...] = ()
    #: Batch and run of what was published here last.
    published: tuple[tuple[int, str], ...] = ()

    def decision(self, batch: int) -> Decision | None:
        return next((each for each in self.decisions if each.batch == batch), None)

    @property
    def pending(self) -> tuple[Decision, ...]:
        return tuple(each for each in self.decisions if each.unsettled)

    def without_run(self, run: str) -> SinkEntry:
        """Return the entry with a run superseded."""
        rest = tuple(each for each in self.superseded if each != run)
        current = "" if self.run == run else self.run
        return replace(self, run=current, superseded=(*rest, run)[-SUPERSEDED_MAX:])

    def with_run(self, run: str, query: str) -> SinkEntry:
        before = self.without_run(self.run) if self.run and self.run != run else self
        known = self.query if self.decided is not None else ""
        return replace(before, run=run, query=query or known)

    def with_decisions(self, decisions: tuple[Decision, ...]) -> SinkEntry:
        """Return the entry with these, less those that all participants have settled long ago."""
        newest = decisions[-SETTLED_KEPT:]
        return replace(self, decisions=tuple(each for each in decisions if each.unsettled or each in newest))

    def settled(self, batch: int, broker: str) -> SinkEntry:
        return self.with_decisions(
            tuple(
                replace(each, settled=(*each.settled, broker)) if each.batch == batch else each
                for each in self.decisions
            )
        )

    def reset(self) -> SinkEntry:
        fenced = self.without_run(self.run) if self.run else self
        return SinkEntry(self.coordinator, superseded=fenced.superseded, published=self.published)


@dataclass(frozen=True, slots=True)
class SinkTable(Machine):
    """All sinks, stages and publications of one broker: a state machine of the log."""

    HELD_KIND: ClassVar[FrameKind | None] = FrameKind.STAGED
    CHANGES: ClassVar[tuple[type, ...]] = (*get_args(SinkChange), TopicDeleted)

    sinks: HashTrieMap[str, SinkEntry] = field(default_factory=HashTrieMap)
    stages: HashTrieMap[int, Stage] = field(default_factory=HashTrieMap)
    publishing: tuple[Publication, ...] = ()
    next_stage: int = 0
    #: The stage that is open for each (sink, batch, run).
    open: HashTrieMap[CopyName, int] = field(default_factory=HashTrieMap)

    def due(self, at_ms: int) -> Iterator[HeldFrame]:
        """Yield the frames that are to be published, whatever the time."""
        for each in self.publishing:
            yield from islice(each.frames, each.done, None)

    @property
    def floor(self) -> int | None:
        """The lowest log offset that is still needed here; None if nothing is."""
        firsts = [stage.frames.first for stage in self.stages.values()]
        needed = [frame.log_offset for frame in firsts if frame is not None]
        needed += [each.frames[each.done].log_offset for each in self.publishing]
        return min(needed, default=None)

    def lost(self, change: SinkChange | TopicDeleted) -> tuple[CopyName, int] | None:
        """Return how many of the frames to be published are not staged, and the batch's name."""
        if not isinstance(change, BatchPublished):
            return None
        staged = self.stages[change.number].frames if change.number in self.stages else ()
        missing = len(set(change.frames).difference(each.log_offset for each in staged))
        return ((change.sink, change.batch, change.run), missing) if missing else None

    def holdings(self) -> Iterator[Holding]:
        for number in sorted(self.stages):
            stage = self.stages[number]
            yield Holding((stage.sink, stage.batch, stage.run), False, tuple(stage.frames))
        for each in self.publishing:
            yield Holding(each.name, True, each.rest)

    def stage_of(self, name: CopyName) -> Stage | None:
        number = self.open.get(name)
        return None if number is None else self.stages[number]

    def is_copying(self, name: CopyName) -> bool:
        """Whether frames of this batch are still to be published."""
        return any(each.name == name for each in self.publishing)

    def has_published(self, name: CopyName) -> bool:
        """Whether a batch is in its queues, among the last of its sink that are."""
        sink, batch, run = name
        entry = self.sinks.get(sink)
        return entry is not None and (batch, run) in entry.published

    # --- folds --------------------------------------------------------------------------

    def holds(self, number: int) -> bool:
        """Whether a stage has this number."""
        return number in self.stages

    def knows(self, change: SinkChange | TopicDeleted) -> bool:
        """Whether what a change speaks of is here; if not, what brought it was lost."""
        match change:
            case StageDropped(number) | BatchPublished(number=number):
                return number in self.stages
            case SinkRegistered() | StageOpened() | TopicDeleted():
                return True
            case _:
                return change.sink in self.sinks

    def apply(self, change: SinkChange | TopicDeleted, topics: TopicTable) -> SinkTable:
        """Return the table after `change`; `topics` are those there were before it."""
        match change:
            case TopicDeleted(name):
                return self._without_topic(topics[name].number)
            case StageOpened(number, sink, batch, run, coordinator, at_ms):
                known = self._with_sink(sink, self.sinks.get(sink, SinkEntry(coordinator)))
                return replace(
                    known,
                    stages=self.stages.insert(number, Stage(number, sink, batch, run, at_ms, at_ms)),
                    next_stage=max(self.next_stage, number + 1),
                    open=self.open.insert((sink, batch, run), number),
                )
            case StageDropped(number):
                return self._without_stage(number)
            case BatchPublished():
                return self._publish(change, topics)
            case SinkDeleted(sink):
                rest = self
                for each in [stage.number for stage in self.stages.values() if stage.sink == sink]:
                    rest = rest._without_stage(each)
                return replace(
                    rest,
                    sinks=self.sinks.remove(sink),
                    publishing=tuple(each for each in self.publishing if each.sink != sink),
                )
            case SinkRegistered(sink, coordinator):
                return self._with_sink(sink, self.sinks.get(sink, SinkEntry(coordinator)))
            case _:
                return self._with_sink(change.sink, _changed(self.sinks[change.sink], change))

    def held(self, number: int, frame: HeldFrame, at_ms: int) -> SinkTable:
        """Return the table after a staged frame."""
        return replace(self, stages=self.stages.insert(number, self.stages[number].with_frame(frame, at_ms)))

    def copied(self) -> SinkTable:
        """Return the table after the first frame of `publishing` was copied to its queue, or passed over."""
        head, *rest = self.publishing
        return self._finished([replace(head, done=head.done + 1), *rest])

    def _without_topic(self, number: int) -> SinkTable:
        """Return the table after a topic went: nothing is published to it any more."""
        if not any(frame.topic_number == number for each in self.publishing for frame in each.rest):
            return self
        return self._finished(
            [
                replace(
                    each, frames=tuple(frame for frame in each.rest if frame.topic_number != number), done=0
                )
                for each in self.publishing
            ]
        )

    def _publish(self, change: BatchPublished, topics: TopicTable) -> SinkTable:
        wanted = set(change.frames)
        frames = tuple(
            frame
            for frame in self.stages[change.number].frames
            if frame.log_offset in wanted and topics.has_number(frame.topic_number)
        )
        rest = self._without_stage(change.number)
        publication = Publication(change.sink, change.batch, change.run, frames)
        return rest._finished([*rest.publishing, publication])

    def _finished(self, publishing: list[Publication]) -> SinkTable:
        """Return the table with these publications, those that are done remembered as such."""
        table = replace(self, publishing=tuple(each for each in publishing if each.done < len(each.frames)))
        for each in publishing:
            if each.done == len(each.frames) and each.sink in table.sinks:
                entry = table.sinks[each.sink]
                remembered = (*entry.published, (each.batch, each.run))[-PUBLISHED_MAX:]
                table = table._with_sink(each.sink, replace(entry, published=remembered))
        return table

    def _with_sink(self, sink: str, entry: SinkEntry) -> SinkTable:
        return replace(self, sinks=self.sinks.insert(sink, entry))

    def _without_stage(self, number: int) -> SinkTable:
        stage = self.stages[number]
        name = (stage.sink, stage.batch, stage.run)
        opened = self.open.remove(name) if self.open.get(name) == number else self.open
        return replace(self, stages=self.stages.remove(number), open=opened)


def _changed(
    entry: SinkEntry, change: RunStarted | RunSuperseded | BatchDecided | BatchSettled | SinkReset
) -> SinkEntry:
    match change:
        case RunStarted(run=run, query=query):
            return entry.with_run(run, query)
        case RunSuperseded(run=run):
            return entry.without_run(run)
        case BatchDecided(batch=batch, run=run, query=query, participants=participants, rows=rows):
            made = Decision(batch, run, participants, rows=rows)
            decided = replace(entry, decided=batch, query=query or entry.query)
            return decided.with_decisions((*entry.decisions, made))
        case BatchSettled(batch=batch, broker=broker):
            return entry.settled(batch, broker)
        case SinkReset():
            return entry.reset()


# --- in a picture of the state ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StagePicture:
    """A stage with its frames written out."""

    number: int
    sink: str
    batch: int
    run: str
    opened_at_ms: int
    last_at_ms: int
    frames: tuple[HeldFrame, ...]

    def stage(self) -> Stage:
        messages, size = sum(each.messages for each in self.frames), sum(each.size for each in self.frames)
        return Stage(
            self.number, self.sink, self.batch, self.run, self.opened_at_ms, self.last_at_ms,
            FrameList(self.frames), messages, size,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SinkPicture:
    """A whole table, as a state frame and the snapshot hold it."""

    sinks: dict[str, SinkEntry] = field(default_factory=dict)
    stages: tuple[StagePicture, ...] = ()
    publishing: tuple[Publication, ...] = ()
    next_stage: int = 0

    @staticmethod
    def of(table: SinkTable) -> SinkPicture:
        stages = tuple(
            StagePicture(
                each.number, each.sink, each.batch, each.run, each.opened_at_ms, each.last_at_ms,
                tuple(each.frames),
            )
            for each in (table.stages[number] for number in sorted(table.stages))
        )  # fmt: skip
        publishing = tuple(replace(each, frames=each.rest, done=0) for each in table.publishing)
        return SinkPicture(dict(table.sinks.items()), stages, publishing, table.next_stage)

    def table(self) -> SinkTable:
        return SinkTable(
            HashTrieMap(self.sinks),
            HashTrieMap({each.number: each.stage() for each in self.stages}),
            self.publishing,
            self.next_stage,
            HashTrieMap({(each.sink, each.batch, each.run): each.number for each in self.stages}),
        )
