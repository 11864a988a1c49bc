"""What a coordinator decides, in any order of calls: nothing twice, nothing by a run that is over, and
nothing that it ever let a participant drop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rocketq.errors import Conflict, InvalidName, InvalidRequest
from rocketq.errors.sink_errors import (
    BatchAlreadyDecided,
    BatchDiffers,
    BatchNotDecided,
    NotCoordinator,
    SinkBusy,
    SinkFenced,
    SinkNotFound,
    SinkQueryChanged,
)
from rocketq.protocol.documents.nameserver import DataVersion
from rocketq.protocol.documents.sinks import (
    CheckBatchAnswer,
    CheckBatchRequest,
    CommitBatchRequest,
    CommitOutcome,
    OnDecided,
    Participant,
    PublishBatchRequest,
    StageName,
    StageVerdict,
)
from rocketq_broker.store.sinks import decisions
from rocketq_broker.store.sinks.changes import BatchDecided, SinkChange
from rocketq_broker.store.sinks.table import SETTLED_KEPT, SUPERSEDED_MAX, SinkPicture, SinkTable
from rocketq_broker.store.state.state import Picture, decode_picture, encode
from tests.support.examples import examples
from tests.support.topics import topics as topic_table

ME, OTHERS = "a", ("b", "c")
SINK = "etl"
RUNS = st.sampled_from(["r1", "r2", "r3", "r4"])
BATCHES = st.integers(0, 5)
BROKERS = st.sampled_from(OTHERS)
ROWS = st.none() | st.dictionaries(st.sampled_from(["t", "u"]), st.integers(1, 2))


def after(table: SinkTable, *changes: SinkChange | None) -> SinkTable:
    for change in changes:
        if change is not None:
            assert table.knows(change)
            table = table.apply(change, topic_table())
    return table


def is_same(one: CommitBatchRequest, other: CommitBatchRequest) -> bool:
    """Whether two commits are of as many rows: by topic, if both say the topics."""
    if one.rows is None or other.rows is None:
        return one.total == other.total
    return one.rows == other.rows


class Coordination(RuleBasedStateMachine):
    """One sink; its participants are others, so that their stages are not here."""

    def __init__(self) -> None:
        super().__init__()
        self.table = after(SinkTable(), decisions.register(SinkTable(), SINK, ME))
        #: Each batch that was decided, with its run and its participants.
        self.decided: dict[int, CommitBatchRequest] = {}
        self.dropped: set[tuple[int, str]] = set()
        self.over: set[str] = set()
        self.settled: set[tuple[int, str]] = set()

    @property
    def current(self) -> str:
        return self.table.sinks[SINK].run

    @rule(run=RUNS)
    def begin(self, run: str) -> None:
        before = self.current
        if run in self.over:
            with pytest.raises(SinkFenced):
                decisions.begin_run(self.table, SINK, run, "q", ME)
            return
        self.table = after(self.table, decisions.begin_run(self.table, SINK, run, "q", ME))
        assert self.current == run
        if before and before != run:
            self.over.add(before)

    @rule(batch=BATCHES, run=RUNS, brokers=st.sets(BROKERS), rows=ROWS, on_decided=st.sampled_from(OnDecided))
    def commit(
        self, batch: int, run: str, brokers: set[str], rows: dict[str, int] | None, on_decided: OnDecided
    ) -> None:
        """Commit the next batch, one that came again, or one of a checkpoint that was set back."""
        parts = tuple(Participant(each, (8 * batch,), 1) for each in sorted(brokers))
        request = CommitBatchRequest(run, parts, "q", rows, on_decided)

        def decide() -> BatchDecided | CommitOutcome:
            return decisions.decide_batch(self.table, SINK, batch, request, ME)

        if self.decided and batch <= max(self.decided):
            self._is_answered_as_decided(batch, request, decide)
            return
        if run != self.current:
            with pytest.raises(SinkFenced):
                decide()
            return
        if rows is not None and sum(rows.values()) != len(parts):
            with pytest.raises(InvalidRequest):
                decide()
            return
        assert run not in self.over
        assert (batch, run) not in self.dropped, "a participant was told to drop this"
        change = decide()
        assert isinstance(change, BatchDecided)
        self.table = after(self.table, change)
        self.decided[batch] = request

    def _is_answered_as_decided(
        self, batch: int, request: CommitBatchRequest, decide: Callable[[], BatchDecided | CommitOutcome]
    ) -> None:
        last, made = max(self.decided), self.decided.get(batch)
        parts = made.participants if made is not None else ()
        awaited = any((batch, part.broker) not in self.settled for part in parts)
        is_remembered = awaited or batch in sorted(self.decided)[-SETTLED_KEPT:]
        if made is not None and is_remembered and replace(request, on_decided=made.on_decided) == made:
            assert decide() is CommitOutcome.ALREADY_COMMITTED, "the same call again"
        elif request.on_decided is OnDecided.SKIP:
            assert decide() is CommitOutcome.SKIPPED
        elif batch < last:
            with pytest.raises(BatchAlreadyDecided) as below:
                decide()
            assert (below.value.facts["decided"], below.value.facts["rows"]) == (last, request.total)
        elif is_same(self.decided[last], request):
            assert decide() is CommitOutcome.ALREADY_COMMITTED
        else:
            with pytest.raises(BatchDiffers):
                decide()

    @rule(batch=BATCHES, run=RUNS)
    def abort(self, batch: int, run: str) -> None:
        self.table = after(self.table, decisions.abort_batch(self.table, SINK, batch, run, ME))
        if not self.decided or batch > max(self.decided):
            self.over.add(run)

    @rule(batch=BATCHES, run=RUNS, broker=BROKERS, abandon=st.booleans())
    def check(self, batch: int, run: str, broker: str, abandon: bool) -> None:
        request = CheckBatchRequest(run, broker, abandon)
        before = decisions.verdict(self.table, SINK, batch, request)
        self.table = after(self.table, decisions.check_batch(self.table, SINK, batch, request, ME))
        said = decisions.verdict(self.table, SINK, batch, request)
        assert not (abandon and said.verdict is StageVerdict.UNDECIDED)
        if before.verdict is StageVerdict.UNDECIDED and abandon:
            self.over.add(run)
        made = self.decided.get(batch)
        part = made and next((each for each in made.participants if each.broker == broker), None)
        counts = made is not None and made.run == run and part is not None
        if said.verdict is StageVerdict.PUBLISH:
            assert counts
            assert part is not None
            assert said.frames == part.frames
        elif said.verdict is StageVerdict.DROP:
            assert not counts or (batch, broker) in self.settled
            self.dropped.add((batch, run))

    @rule(broker=BROKERS)
    def settle_the_next(self, broker: str) -> None:
        pending = [each.batch for each in self.table.sinks[SINK].pending if broker in each.unsettled]
        if pending:
            change = decisions.settle(self.table, SINK, min(pending), broker)
            self.table = after(self.table, change)
            self.settled.add((min(pending), broker))
            assert decisions.settle(self.table, SINK, min(pending), broker) is None

    @rule()
    def reset(self) -> None:
        entry = self.table.sinks[SINK]
        if entry.pending:
            with pytest.raises(SinkBusy):
                decisions.reset(self.table, SINK, ME)
            return
        if self.current:
            self.over.add(self.current)
        self.table = after(self.table, decisions.reset(self.table, SINK, ME))
        self.decided, self.dropped, self.settled = {}, set(), set()

    @invariant()
    def what_is_pending_is_what_was_decided_and_is_not_settled(self) -> None:
        entry = self.table.sinks[SINK]
        pending = {(each.batch, broker) for each in entry.pending for broker in each.unsettled}
        assert pending == {
            (batch, part.broker)
            for batch, request in self.decided.items()
            for part in request.participants
            if (batch, part.broker) not in self.settled
        }
        assert entry.decided == max(self.decided, default=None)
        assert all(each.rows == self.decided[each.batch].rows for each in entry.decisions)
        whole = Picture((), {}, 0, DataVersion(), {}, 0, SinkPicture.of(self.table))
        assert decode_picture(encode(whole)).sinks.table() == self.table


TestCoordination = Coordination.TestCase
TestCoordination.settings = settings(max_examples=examples(150), stateful_step_count=30, deadline=None)


def coordinated(*runs: str) -> SinkTable:
    table = after(SinkTable(), decisions.register(SinkTable(), SINK, ME))
    for run in runs:
        table = after(table, decisions.begin_run(table, SINK, run, "q", ME))
    return table


def decided(
    table: SinkTable, batch: int, query: str = "q", rows: dict[str, int] | None = None, messages: int = 1
) -> SinkTable:
    part = Participant("b", (8,), messages)
    request = CommitBatchRequest(table.sinks[SINK].run, (part,), query, rows)
    change = decisions.decide_batch(table, SINK, batch, request, ME)
    assert isinstance(change, BatchDecided)
    return after(table, change)


def again(table: SinkTable, batch: int, rows: dict[str, int] | None, **fields: Any) -> CommitOutcome:
    """What the coordinator makes of a batch that another run counted, and did not stage."""
    request = CommitBatchRequest("another", (), "q", rows, **fields)
    made = decisions.decide_batch(table, SINK, batch, request, ME)
    assert isinstance(made, CommitOutcome)
    return made


def test_the_last_batch_may_come_again_with_as_many_rows_of_each_topic() -> None:
    table = decided(coordinated("r1"), 7, rows={"orders": 2, "paid": 1}, messages=3)
    assert again(table, 7, {"paid": 1, "orders": 2}) is CommitOutcome.ALREADY_COMMITTED
    for rows, topics in (
        ({"orders": 1, "paid": 2}, {"orders": [2, 1], "paid": [1, 2]}),
        ({"orders": 2}, {"paid": [1, 0]}),
        ({"orders": 2, "paid": 1, "new": 4}, {"new": [0, 4]}),
    ):
        with pytest.raises(BatchDiffers) as raised:
            again(table, 7, rows)
        assert raised.value.facts["topics"] == topics
        assert again(table, 7, rows, on_decided=OnDecided.SKIP) is CommitOutcome.SKIPPED


def test_a_batch_below_the_last_decided_is_refused_or_skipped() -> None:
    table = decided(decided(coordinated("r1"), 6), 7)
    with pytest.raises(BatchAlreadyDecided, match="rocketq sink reset etl") as raised:
        again(table, 3, {"orders": 12})
    assert raised.value.facts == {"sink": SINK, "batch": 3, "decided": 7, "rows": 12}
    with pytest.raises(BatchAlreadyDecided):
        again(table, 6, {"orders": 1})
    assert again(table, 3, {"orders": 12}, on_decided=OnDecided.SKIP) is CommitOutcome.SKIPPED


def test_a_decision_without_rows_by_topic_is_compared_by_its_total() -> None:
    table = decided(coordinated("r1"), 7, rows=None, messages=3)
    assert again(table, 7, {"orders": 1, "paid": 2}) is CommitOutcome.ALREADY_COMMITTED
    with pytest.raises(BatchDiffers, match="decided with 3 rows and comes again with 4:"):
        again(table, 7, {"orders": 4})


def test_a_commit_that_counts_other_rows_than_it_stages_decides_nothing() -> None:
    request = CommitBatchRequest("r1", (Participant("b", (8,), 3),), "q", {"orders": 4})
    with pytest.raises(InvalidRequest, match="add up to 4, and the participants hold 3"):
        decisions.decide_batch(coordinated("r1"), SINK, 0, request, ME)
    for rows in ({"orders": 0}, {"orders": -1}):
        with pytest.raises(InvalidRequest):
            decisions.check_commit(CommitBatchRequest("r1", (), "q", rows))
    with pytest.raises(InvalidName):
        decisions.check_commit(CommitBatchRequest("r1", (), "q", {"no/topic": 1}))


@pytest.mark.parametrize(
    "answer",
    [
        CheckBatchAnswer(StageVerdict.UNDECIDED),
        CheckBatchAnswer(StageVerdict.DROP),
        CheckBatchAnswer(StageVerdict.PUBLISH, (8,), 1),
        CheckBatchAnswer(StageVerdict.PUBLISH, (8, 16), 3),
    ],
)
def test_only_what_the_coordinator_decided_is_published(answer: CheckBatchAnswer) -> None:
    request = PublishBatchRequest(0, "r1", (8, 16), 2)
    with pytest.raises(BatchNotDecided, match="broker a, which coordinates the sink"):
        decisions.confirm(SINK, request, ME, answer)
    decisions.confirm(SINK, request, ME, CheckBatchAnswer(StageVerdict.PUBLISH, (16, 8), 2))


def test_a_publication_of_another_coordinator_is_refused() -> None:
    table = after(SinkTable(), decisions.open_stage(SinkTable(), StageName(SINK, 0, "r1", "b"), ME, 0))
    for only_check in (True, False):
        request = PublishBatchRequest(0, "r1", (8,), 1, only_check, coordinator="c")
        with pytest.raises(NotCoordinator) as raised:
            decisions.publish(table, SINK, request, ME)
        assert raised.value.coordinator == "b"


def test_only_the_coordinator_decides_and_only_about_sinks_it_knows() -> None:
    table = after(SinkTable(), decisions.register(SinkTable(), SINK, "b"))
    assert decisions.register(table, SINK, "a") is None, "a sink keeps its coordinator"
    with pytest.raises(NotCoordinator) as raised:
        decisions.begin_run(table, SINK, "r1", "", ME)
    assert raised.value.coordinator == "b"
    with pytest.raises(SinkNotFound):
        decisions.begin_run(table, "other", "r1", "", ME)


def test_a_query_with_a_new_checkpoint_is_refused_until_the_sink_is_reset() -> None:
    table = decided(coordinated("r1"), 7)
    with pytest.raises(SinkQueryChanged) as raised:
        decisions.begin_run(table, SINK, "r2", "another", ME)
    assert raised.value.facts["decided"] == 7
    assert decisions.begin_run(table, SINK, "r2", "", ME) is not None, "no query, no comparison"
    table = after(table, decisions.settle(table, SINK, 7, "b"))
    table = after(table, decisions.reset(table, SINK, ME))
    table = after(table, decisions.begin_run(table, SINK, "r2", "another", ME))
    assert table.sinks[SINK].query == "another"
    assert table.sinks[SINK].decided is None
    with pytest.raises(SinkFenced):
        decisions.begin_run(table, SINK, "r1", "another", ME)


def test_runs_are_remembered_as_superseded_up_to_a_bound() -> None:
    table = coordinated(*(f"r{number}" for number in range(SUPERSEDED_MAX + 10)))
    remembered = table.sinks[SINK].superseded
    assert remembered == tuple(f"r{number}" for number in range(9, SUPERSEDED_MAX + 9))


def test_stages_of_an_unknown_sink_are_kept_until_abandoned() -> None:
    for abandon, verdict in ((False, StageVerdict.UNDECIDED), (True, StageVerdict.DROP)):
        request = CheckBatchRequest("r1", "b", abandon)
        assert decisions.check_batch(SinkTable(), SINK, 0, request, ME) is None
        assert decisions.verdict(SinkTable(), SINK, 0, request).verdict is verdict


@pytest.mark.parametrize(
    "parts",
    [
        (Participant("b", (), 0),),
        (Participant("b", (8, 8), 2),),
        (Participant("b", (8, 16), 1),),
        (Participant("b", (8,), 1), Participant("b", (16,), 1)),
    ],
)
def test_participants_that_make_no_sense_are_refused(parts: tuple[Participant, ...]) -> None:
    with pytest.raises(InvalidRequest):
        decisions.check_commit(CommitBatchRequest("r1", parts))


def test_names_are_checked_and_tables_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for table, bad in ((SinkTable(), "no/name"), (SinkTable(), "")):
        with pytest.raises(InvalidName):
            decisions.register(table, bad, ME)
        with pytest.raises(InvalidName):
            decisions.check_stage_name(StageName("s", 0, bad, ME))
    with pytest.raises(InvalidName):
        decisions.begin_run(coordinated(), SINK, "r1", "no/name", ME)
    monkeypatch.setattr(decisions, "SINKS_MAX", 1)
    monkeypatch.setattr(decisions, "STAGES_MAX", 1)
    table = coordinated("r1")
    with pytest.raises(Conflict):
        decisions.register(table, "one-more", ME)
    table = after(table, decisions.open_stage(table, StageName(SINK, 0, "r1", ME), ME, 0))
    assert decisions.open_stage(table, StageName(SINK, 0, "r1", ME), ME, 0) is None
    for name in (StageName(SINK, 1, "r1", ME), StageName("one-more", 0, "r1", ME)):
        with pytest.raises(Conflict):
            decisions.open_stage(table, name, ME, 0)


def test_a_publication_names_each_frame_once_and_counts_its_messages() -> None:
    for frames, messages in (((), 0), ((8, 8), 2), ((8, 16), 1)):
        with pytest.raises(InvalidRequest):
            decisions.publish(SinkTable(), SINK, PublishBatchRequest(0, "r", frames, messages), ME)
