"""The store's door for exactly-once sinks: calls that are decided and ordered by the log writer.

As everywhere in the store, `done` is called on the writer's thread with the outcome
or the error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rocketq.errors.sink_errors import StageNotFound
from rocketq.protocol.documents.sinks import (
    AbortBatchAnswer,
    CheckBatchAnswer,
    CheckBatchRequest,
    CommitBatchAnswer,
    CommitBatchRequest,
    CommitOutcome,
    PublishBatchRequest,
    RunAnswer,
    SinkDescription,
    StageName,
)
from rocketq.protocol.frame import FrameKind
from rocketq_broker.store.commit.ends import LogEnds
from rocketq_broker.store.commit.waiting_operations import ChangeState, Hold, Operation
from rocketq_broker.store.sinks import decisions
from rocketq_broker.store.sinks.descriptions import describe
from rocketq_broker.store.sinks.table import SinkTable, Stage
from rocketq_broker.store.state.state import Change, State

Done = Callable[[Any], None]


class SinkOperations:
    """Everything that can be asked of the sinks of one store."""

    def __init__(self, broker: str, ends: LogEnds, submit: Callable[[Operation], None]) -> None:
        self._broker = broker
        self._ends = ends
        self._submit = submit

    @property
    def table(self) -> SinkTable:
        """All sinks as they are now; a value that never changes."""
        return self._ends.state.sinks

    def description(self, sink: str) -> SinkDescription:
        """Return a sink as this broker knows it; raise SinkNotFound."""
        return self._described(self.table, sink)

    def descriptions(self) -> tuple[SinkDescription, ...]:
        table = self.table
        return tuple(describe(table, sink, self._broker) for sink in sorted(table.sinks))

    def _described(self, table: SinkTable, sink: str) -> SinkDescription:
        decisions.known_sink(table, sink, self._broker)
        return describe(table, sink, self._broker)

    # --- the coordinator ----------------------------------------------------------------

    def register(self, sink: str, coordinator: str, done: Done) -> None:
        """Make a coordinator known; `done` has the SinkDescription, of a known sink as it was."""
        self._change(
            lambda table: decisions.register(table, sink, coordinator),
            lambda table: self._described(table, sink),
            done,
        )

    def begin_run(self, sink: str, run: str, query: str, done: Done) -> None:
        """Make a run the current one; `done` has the RunAnswer, SinkFenced or SinkQueryChanged."""
        self._change(
            lambda table: decisions.begin_run(table, sink, run, query, self._broker),
            lambda table: RunAnswer(sink, run, table.sinks[sink].decided),
            done,
        )

    def decide_batch(self, sink: str, batch: int, request: CommitBatchRequest, done: Done) -> None:
        """Decide a batch; `done` has the CommitBatchAnswer, without `unsettled`, or the refusal."""
        # Of two calls that race, the change says which one decided.
        outcome = CommitOutcome.COMMITTED

        def decide(table: SinkTable) -> Change | None:
            nonlocal outcome
            made = decisions.decide_batch(table, sink, batch, request, self._broker)
            if isinstance(made, CommitOutcome):
                outcome = made
                return None
            return made

        def answer(table: SinkTable) -> CommitBatchAnswer:
            return CommitBatchAnswer(sink, batch, outcome, (), table.sinks[sink].decided)

        self._change(decide, answer, done)

    def abort_batch(self, sink: str, batch: int, run: str, done: Done) -> None:
        """Give an undecided batch up with its run; `done` has the AbortBatchAnswer."""

        def answer(table: SinkTable) -> AbortBatchAnswer:
            decided = table.sinks[sink].decided
            return AbortBatchAnswer(sink, batch, decided is not None and batch <= decided)

        self._change(lambda table: decisions.abort_batch(table, sink, batch, run, self._broker), answer, done)

    def check_batch(self, sink: str, batch: int, request: CheckBatchRequest, done: Done) -> None:
        """Say what is to become of a participant's stage; `done` has the CheckBatchAnswer."""

        def answer(table: SinkTable) -> CheckBatchAnswer:
            return decisions.verdict(table, sink, batch, request)

        self._change(
            lambda table: decisions.check_batch(table, sink, batch, request, self._broker), answer, done
        )

    def settle(self, sink: str, batch: int, broker: str, done: Done) -> None:
        """Note that a participant has published; `done` has None."""
        self._change(lambda table: decisions.settle(table, sink, batch, broker), lambda table: None, done)

    def reset(self, sink: str, done: Done) -> None:
        """Forget what was decided; `done` has the SinkDescription, SinkNotFound or SinkBusy."""
        self._change(
            lambda table: decisions.reset(table, sink, self._broker),
            lambda table: self._described(table, sink),
            done,
        )

    def delete(self, sink: str, force: bool, done: Done) -> None:
        """Forget a sink with what is staged of it; `done` has None, SinkNotFound or SinkBusy."""
        self._change(
            lambda table: decisions.delete(table, sink, self._broker, force), lambda table: None, done
        )

    # --- a participant ------------------------------------------------------------------

    def check_publication(self, sink: str, request: PublishBatchRequest) -> None:
        """Raise StageNotFound unless these frames could be published, or are; NotCoordinator as `publish`."""
        decisions.publish(self.table, sink, request, self._broker)

    def publish(self, sink: str, request: PublishBatchRequest, done: Done) -> None:
        """Publish exactly these frames; `done` has None once they are in their queues, or the error."""
        name = (sink, request.batch, request.run)

        def decide(state: State) -> Change | None:
            return decisions.publish(state.sinks, sink, request, self._broker)

        def answer(state: State) -> None:
            if not state.sinks.has_published(name):
                raise StageNotFound(*name, self._broker, "its sink was deleted meanwhile")

        self._submit(ChangeState(decide, answer, done, awaits=name))

    def hold(self, stage: StageName) -> Hold:
        """Return how an append is staged: its stage is opened where it is new, and holds its frames."""

        def open_stage(state: State, at_ms: int) -> Change | None:
            return decisions.open_stage(state.sinks, stage, self._broker, at_ms)

        def number(state: State) -> int:
            return state.sinks.open[stage.sink, stage.batch, stage.run]

        return Hold(FrameKind.STAGED, open_stage, number)

    def drop(self, stage: Stage, done: Done) -> None:
        """Drop a stage; `done` has None."""
        self._change(lambda table: decisions.drop(table, stage), lambda table: None, done)

    def _change(
        self,
        decide: Callable[[SinkTable], Change | None],
        answer: Callable[[SinkTable], Any],
        done: Done,
    ) -> None:
        def decide_in(state: State) -> Change | None:
            return decide(state.sinks)

        self._submit(ChangeState(decide_in, lambda state: answer(state.sinks), done))
