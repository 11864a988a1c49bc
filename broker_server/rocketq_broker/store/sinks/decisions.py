"""Decides what a request about a sink becomes: a change, nothing, or an error.

The functions are pure. The log writer calls them with the sinks as they are when the change gets its place in
the log (as `state.topic_decisions`). They prevent what must never happen: that two runs decide a batch, that
one batch number is decided twice, or that a stage is dropped which may still be decided.
"""

from __future__ import annotations

from typing import Final

from rocketq.errors import Conflict, InvalidRequest
from rocketq.errors.sink_errors import (
    BatchAlreadyDecided,
    BatchDiffers,
    BatchNotDecided,
    NotCoordinator,
    SinkBusy,
    SinkFenced,
    SinkNotFound,
    SinkQueryChanged,
    StageNotFound,
)
from rocketq.protocol.documents.sinks import (
    CheckBatchAnswer,
    CheckBatchRequest,
    CommitBatchRequest,
    CommitOutcome,
    OnDecided,
    PublishBatchRequest,
    StageName,
    StageVerdict,
)
from rocketq.protocol.rules.reserved_names import check_name
from rocketq_broker.store.sinks.changes import (
    BatchDecided,
    BatchPublished,
    BatchSettled,
    RunStarted,
    RunSuperseded,
    SinkDeleted,
    SinkRegistered,
    SinkReset,
    StageDropped,
    StageOpened,
)
from rocketq_broker.store.sinks.table import SinkEntry, SinkTable, Stage

#: Of how many topics whose rows differ an error has the names.
TOPICS_NAMED_MAX: Final = 10
#: What one broker keeps at most: each is in every copy of the state that begins a segment.
SINKS_MAX: Final = 10_000
STAGES_MAX: Final = 10_000


def known_sink(table: SinkTable, sink: str, broker: str) -> SinkEntry:
    """Return a sink's entry; raise SinkNotFound."""
    entry = table.sinks.get(sink)
    if entry is None:
        raise SinkNotFound(sink, broker)
    return entry


def coordinated_sink(table: SinkTable, sink: str, broker: str) -> SinkEntry:
    """Return the entry of a sink that this broker decides about; raise SinkNotFound or NotCoordinator."""
    entry = known_sink(table, sink, broker)
    if entry.coordinator != broker:
        raise NotCoordinator(sink, broker, entry.coordinator)
    return entry


# --- the coordinator -------------------------------------------------------------------


def register(table: SinkTable, sink: str, coordinator: str) -> SinkRegistered | None:
    """Decide a registration; a sink keeps the coordinator it has."""
    if sink in table.sinks:
        return None
    _check_names(("sink", sink), ("broker", coordinator))
    _check_room(table, sink)
    return SinkRegistered(sink, coordinator)


def begin_run(table: SinkTable, sink: str, run: str, query: str, broker: str) -> RunStarted | None:
    """Decide that a run becomes the current one; None if it is the current one."""
    entry = coordinated_sink(table, sink, broker)
    _check_names(("run", run))
    if run in entry.superseded:
        raise SinkFenced(sink, run, entry.run)
    _check_query(entry, sink, query)
    return None if run == entry.run else RunStarted(sink, run, query)


def decide_batch(
    table: SinkTable, sink: str, batch: int, request: CommitBatchRequest, broker: str
) -> BatchDecided | CommitOutcome:
    """Decide a batch. If its number was decided before, return the outcome.

    Raises BatchAlreadyDecided or BatchDiffers where the writer's numbers went back, unless it skips.
    """
    entry = coordinated_sink(table, sink, broker)
    if entry.decided is not None and batch <= entry.decided:
        return _decided_before(entry, entry.decided, sink, batch, request)
    if request.run != entry.run:
        raise SinkFenced(sink, request.run, entry.run)
    _check_query(entry, sink, request.query)
    staged = sum(each.messages for each in request.participants)
    if request.total != staged:
        raise InvalidRequest(
            "rows", f"they add up to {request.total}, and the participants hold {staged} messages"
        )
    for each in request.participants:
        if each.broker == broker:
            wanted = PublishBatchRequest(batch, request.run, each.frames, each.messages)
            publish(table, sink, wanted, broker)
    return BatchDecided(sink, batch, request.run, request.query, request.participants, request.rows)


def _decided_before(
    entry: SinkEntry, last: int, sink: str, batch: int, request: CommitBatchRequest
) -> CommitOutcome:
    decision = entry.decision(batch)
    repeated = (request.run, request.participants, request.rows)
    if decision is not None and (decision.run, decision.participants, decision.rows) == repeated:
        # The same call again: its answer was lost.
        return CommitOutcome.ALREADY_COMMITTED
    if request.on_decided is OnDecided.SKIP:
        return CommitOutcome.SKIPPED
    if batch < last or decision is None:
        raise BatchAlreadyDecided(sink, batch, last, request.total)
    if request.rows is None or decision.rows is None:
        then: dict[str, int] = {}
        now: dict[str, int] = {}
        differs = decision.total != request.total
    else:
        then, now = decision.rows, request.rows
        differs = then != now
    if differs:
        topics = [topic for topic in sorted(then | now) if then.get(topic, 0) != now.get(topic, 0)]
        both = {topic: (then.get(topic, 0), now.get(topic, 0)) for topic in topics[:TOPICS_NAMED_MAX]}
        raise BatchDiffers(sink, batch, decision.total, request.total, both)
    return CommitOutcome.ALREADY_COMMITTED


def check_commit(request: CommitBatchRequest) -> None:
    """Raise InvalidName or InvalidRequest unless brokers, their frames and rows can be those of a batch.

    Each broker and each of its frames is named once, and each topic with at least one row.
    """
    for topic, rows in (request.rows or {}).items():
        _check_names(("topic", topic))
        if rows < 1:
            raise InvalidRequest("rows", f"topic {topic!r} has {rows}", hint="Leave out what has no rows.")
    names = [each.broker for each in request.participants]
    for at, each in enumerate(request.participants):
        _check_names(("broker", each.broker))
        where = f"participants[{at}]"
        if names.count(each.broker) > 1:
            raise InvalidRequest(where, f"broker {each.broker!r} is named twice")
        _check_frames(where, each.frames, each.messages)


def abort_batch(table: SinkTable, sink: str, batch: int, run: str, broker: str) -> RunSuperseded | None:
    """Decide to abort the undecided batch of a run: the run is superseded."""
    entry = coordinated_sink(table, sink, broker)
    _check_names(("run", run))
    is_decided = entry.decided is not None and batch <= entry.decided
    return None if is_decided or run in entry.superseded else RunSuperseded(sink, run)


def check_batch(
    table: SinkTable, sink: str, batch: int, request: CheckBatchRequest, broker: str
) -> RunSuperseded | None:
    """Decide what a participant's question about a stage changes: an abandoned stage ends its run."""
    entry = table.sinks.get(sink)
    if entry is None:
        return None
    if entry.coordinator != broker:
        raise NotCoordinator(sink, broker, entry.coordinator)
    _check_names(("run", request.run))
    undecided = verdict(table, sink, batch, request).verdict is StageVerdict.UNDECIDED
    return RunSuperseded(sink, request.run) if undecided and request.abandon else None


def verdict(table: SinkTable, sink: str, batch: int, request: CheckBatchRequest) -> CheckBatchAnswer:
    """Return what is to become of the stage that a participant asks about.

    A sink that nobody knows here was deleted, or this broker lost its disk: what is staged is
    kept as long as an undecided stage is.
    """
    entry = table.sinks.get(sink)
    if entry is None:
        return CheckBatchAnswer(StageVerdict.DROP if request.abandon else StageVerdict.UNDECIDED)
    decision = entry.decision(batch)
    if decision is not None and decision.run == request.run:
        part = decision.part_of(request.broker)
        if part is not None:
            return CheckBatchAnswer(StageVerdict.PUBLISH, part.frames, part.messages)
    is_past = entry.decided is not None and batch <= entry.decided
    if is_past or request.run in entry.superseded:
        return CheckBatchAnswer(StageVerdict.DROP)
    return CheckBatchAnswer(StageVerdict.UNDECIDED)


def settle(table: SinkTable, sink: str, batch: int, broker: str) -> BatchSettled | None:
    """Decide that a participant is done; None if that is known, or nobody waits for it any more."""
    entry = table.sinks.get(sink)
    decision = None if entry is None else entry.decision(batch)
    return None if decision is None or broker not in decision.unsettled else BatchSettled(sink, batch, broker)


def reset(table: SinkTable, sink: str, broker: str) -> SinkReset:
    """Decide to forget what was decided; raise SinkBusy while some of it is pending."""
    entry = known_sink(table, sink, broker)
    _check_idle(table, entry, sink, broker)
    return SinkReset(sink)


def delete(table: SinkTable, sink: str, broker: str, force: bool) -> SinkDeleted:
    """Decide to forget a sink; raise SinkBusy unless nothing of it is pending, or `force` gives it up."""
    entry = known_sink(table, sink, broker)
    if not force:
        _check_idle(table, entry, sink, broker)
    return SinkDeleted(sink)


# --- a participant ---------------------------------------------------------------------


def open_stage(table: SinkTable, name: StageName, broker: str, at_ms: int) -> StageOpened | None:
    """Decide a stage for messages that are staged; None if it is open. Raises NotCoordinator or Conflict."""
    entry = table.sinks.get(name.sink)
    if entry is not None and entry.coordinator != name.coordinator:
        raise NotCoordinator(name.sink, broker, entry.coordinator)
    if (name.sink, name.batch, name.run) in table.open:
        return None
    _check_room(table, name.sink)
    if len(table.stages) >= STAGES_MAX:
        raise Conflict(
            f"sink {name.sink!r}",
            f"the broker has its limit of {STAGES_MAX} stages",
            "Undecided stages go when their run is superseded, or after some hours.",
        )
    return StageOpened(table.next_stage, name.sink, name.batch, name.run, name.coordinator, at_ms)


def check_stage_name(name: StageName) -> None:
    """Raise InvalidName if sink, run or coordinator cannot be the name of one."""
    _check_names(("sink", name.sink), ("run", name.run), ("broker", name.coordinator))


def publish(table: SinkTable, sink: str, request: PublishBatchRequest, broker: str) -> BatchPublished | None:
    """Decide to publish; None if that is done or under way.

    Raises StageNotFound unless all is there, NotCoordinator if the request is of another coordinator
    than the one this broker knows.
    """
    _check_frames("frames", request.frames, request.messages)
    entry = table.sinks.get(sink)
    if entry is not None and request.coordinator not in ("", entry.coordinator):
        raise NotCoordinator(sink, broker, entry.coordinator)
    name = (sink, request.batch, request.run)
    if table.has_published(name) or table.is_copying(name):
        return None
    stage = table.stage_of(name)
    wanted = set(request.frames)
    found = [each for each in (stage.frames if stage is not None else ()) if each.log_offset in wanted]
    why = ""
    if stage is None:
        why = "nothing is staged"
    elif len(found) < len(wanted):
        why = f"{len(wanted) - len(found)} of {len(wanted)} frames are not there"
    elif sum(each.messages for each in found) != request.messages:
        why = f"the frames hold {sum(each.messages for each in found)} messages, not {request.messages}"
    if why or stage is None:
        raise StageNotFound(sink, request.batch, request.run, broker, why)
    return BatchPublished(stage.number, sink, request.batch, request.run, tuple(sorted(wanted)))


def confirm(sink: str, request: PublishBatchRequest, coordinator: str, answer: CheckBatchAnswer) -> None:
    """Raise BatchNotDecided unless the coordinator's answer is to publish exactly what is requested."""
    why = ""
    if answer.verdict is not StageVerdict.PUBLISH:
        why = (
            "has not decided it" if answer.verdict is StageVerdict.UNDECIDED else "has dropped what is staged"
        )
    elif set(answer.frames) != set(request.frames) or answer.messages != request.messages:
        why = "has decided other frames"
    if why:
        raise BatchNotDecided(sink, request.batch, request.run, coordinator, why)


def named_brokers(table: SinkTable) -> frozenset[str]:
    """Return the brokers that decisions of this coordinator name: each was there when it was decided."""
    return frozenset(
        part.broker
        for entry in table.sinks.values()
        for decision in entry.decisions
        for part in decision.participants
    )


def drop(table: SinkTable, stage: Stage) -> StageDropped | None:
    """Decide to drop a stage that the coordinator has condemned; None if it is gone."""
    return StageDropped(stage.number) if stage.number in table.stages else None


# --- validation of requests --------------------------------------------------------------


def _check_names(*names: tuple[str, str]) -> None:
    for kind, name in names:
        check_name(kind, name)


def _check_frames(where: str, frames: tuple[int, ...], messages: int) -> None:
    if not frames or len(set(frames)) < len(frames):
        why = "names a frame twice" if frames else "names no frame"
        raise InvalidRequest(where, why, hint="A participant has frames, each named once by its log offset.")
    if messages < len(frames):
        raise InvalidRequest(where, f"{len(frames)} frames cannot hold {messages} messages")


def _check_query(entry: SinkEntry, sink: str, query: str) -> None:
    if query:
        _check_names(("query", query))
    if entry.decided is not None and entry.query and query and query != entry.query:
        raise SinkQueryChanged(sink, query, entry.query, entry.decided)


def _check_room(table: SinkTable, sink: str) -> None:
    if sink not in table.sinks and len(table.sinks) >= SINKS_MAX:
        raise Conflict(
            f"sink {sink!r}",
            f"the broker has its limit of {SINKS_MAX} sinks",
            "Delete those that are no longer used: rocketq sink list.",
        )


def _check_idle(table: SinkTable, entry: SinkEntry, sink: str, broker: str) -> None:
    if entry.pending:
        waiting = ", ".join(sorted({name for each in entry.pending for name in each.unsettled}))
        raise SinkBusy(sink, broker, f"batch {entry.pending[0].batch} is decided and awaited from {waiting}")
    if any(each.sink == sink for each in table.publishing):
        raise SinkBusy(sink, broker, "a decided batch is being published")
