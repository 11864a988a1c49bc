"""The exactly-once sink, from the side of its writers.

A sink writes numbered batches, each exactly once, however often a batch is tried:

    sink = client.sink("orders-copy")
    decided = sink.begin(run)                     # another run, if there was one, is over
    if decided is None or batch > decided:
        staged = producer.stage_batch(sink.stage(batch, run), "orders", table)
        sink.commit(batch, run, participants(staged), rows=rows_by_topic(staged))

What is staged is invisible. The commit is one call to the sink's coordinator (`coordinator_lookup`),
which logs the decision; from then on the batch is there, and a second commit of it changes
nothing. So every failure has one answer, which is to do it again:

    before the commit            the batch is staged anew; what was staged before is dropped
    the commit has no answer     it is made again: it took place once or not at all
    after the commit             the next attempt learns from `begin` that the batch is decided

A batch number that was decided before is a repetition only if it is the last one and has as many rows by
topic. Otherwise the writer's numbers went back, and the commit refuses it: skipped rows would be lost.

A sink has one *run* at a time. `begin` ends the run before: a writer that was believed dead and
still writes can stage, but never commit.

Calls are repeated on errors that pass (a broker that restarts, a busy one) until their timeout.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from rocketq.errors import BrokerUnavailable, BrokerUnreachable, NotMaster, RocketqError
from rocketq.errors.sink_errors import (
    CommitUnanswered,
    CoordinatorUnreachable,
    SinkNotFound,
)
from rocketq.net.broker_api import BrokerApi
from rocketq.net.retry import persist
from rocketq.net.route_cache import RouteCache
from rocketq.net.transport import Transport
from rocketq.protocol.documents.sinks import (
    AbortBatchAnswer,
    CommitBatchAnswer,
    CommitBatchRequest,
    OnDecided,
    Participant,
    RunAnswer,
    SinkDescription,
    StageName,
)
from rocketq.protocol.rules.reserved_names import check_name
from rocketq.sinks.coordinator_lookup import Coordinators

log = logging.getLogger("rocketq.sinks.sink")

TIMEOUT_MS: Final = 30_000
#: One attempt to commit: the coordinator answers sooner, also when a participant does not.
COMMIT_ATTEMPT_MS: Final = 30_000

T = TypeVar("T")


class Sink:
    """One sink of a cluster. Thread-safe; it remembers its coordinator and the run that was begun last."""

    def __init__(
        self, transport: Transport, routes: RouteCache, name: str, *, timeout_ms: int = TIMEOUT_MS
    ) -> None:
        check_name("sink", name)
        self.name = name
        self.timeout_ms = timeout_ms
        self._coordinators = Coordinators(transport, routes)
        #: The coordinator's name, a broker group, holds as long as the sink; the address of the group's
        #: master until it does not answer, or is not master any more.
        self._known: str | None = None
        self._coordinator: BrokerApi | None = None
        self._begun: tuple[str, str, int | None] | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Sink({self.name!r})"

    def coordinator(self) -> str:
        """Return the name of the broker that decides, electing it if the sink is new."""
        return self._known or self._until_answered(lambda api: api.broker, "Coordinator", elect=True)

    def begin(self, run: str, query: str = "", *, elect: bool = True) -> int | None:
        """Make `run` the sink's current one and return the last batch that is decided, None if none is.

        `query` says whose numbers the batches have, if anybody's: a sink whose batches another query
        numbered refuses (SinkQueryChanged). Asked once for each run: later calls answer from memory.
        With `elect=False` a sink that no broker knows is not made, but SinkNotFound. Raises SinkFenced
        for a run that was superseded, CoordinatorUnreachable, CoordinatorUnknown, CoordinatorConflict.
        """
        with self._lock:
            if self._begun is not None and self._begun[:2] == (run, query):
                return self._begun[2]

            def begin() -> RunAnswer:
                what = f"Beginning run {run}"
                return self._until_answered(
                    lambda api: api.begin_run(self.name, run, query), what, elect=elect
                )

            try:
                answer = begin()
            except SinkNotFound:
                if not elect:
                    raise
                # It was deleted since it was found here: it is a new sink again.
                self._coordinator = self._known = None
                answer = begin()
            self._begun = (run, query, answer.decided)
            return answer.decided

    def stage(self, batch: int, run: str) -> StageName:
        """Return what `Producer.stage_batch` takes for messages of this batch."""
        return StageName(self.name, batch, run, self.coordinator())

    def commit(
        self,
        batch: int,
        run: str,
        participants: Sequence[Participant],
        query: str = "",
        *,
        rows: Mapping[str, int] | None = None,
        on_decided: OnDecided = OnDecided.FAIL,
        timeout_ms: int | None = None,
    ) -> CommitBatchAnswer:
        """Decide that the batch is these staged frames; a repetition of this call changes nothing.

        `rows` is how many rows there were for each topic, also those that were not staged because the
        batch is decided. The last decided batch may come again, and succeeds if it has as many rows by
        topic as then (only the total is compared where either side did not say the topics). Otherwise it
        is BatchDiffers, and a batch below the last decided one is BatchAlreadyDecided; with
        `on_decided=SKIP` both are answered SKIPPED. None of these writes anything.

        When this returns, all brokers but `unsettled` have published their part; those will. Raises
        SinkFenced if another run has begun, StageNotFound if a broker lost what was staged,
        ParticipantUnknown if no broker of that name was ever there, NotCoordinator if a participant knows
        another coordinator, SinkQueryChanged, and CommitUnanswered when the coordinator gave no answer in
        time, so that the batch may be decided or not.
        """
        counted = None if rows is None else dict(rows)
        request = CommitBatchRequest(run, tuple(participants), query, counted, on_decided)
        allowed_ms = timeout_ms or self.timeout_ms
        begun = time.monotonic()

        def attempt(api: BrokerApi) -> CommitBatchAnswer:
            left_ms = max(1, allowed_ms - int((time.monotonic() - begun) * 1000))
            return api.commit_batch(self.name, batch, request, timeout_ms=min(left_ms, COMMIT_ATTEMPT_MS))

        what = f"Commit of batch {batch} of sink {self.name}"
        try:
            answer = persist(lambda: self._ask(attempt), what, allowed_ms)
        except RocketqError as error:
            if not error.retryable:
                raise
            elapsed_ms = int((time.monotonic() - begun) * 1000)
            raise CommitUnanswered(self.name, batch, elapsed_ms, error.message) from error
        if answer.unsettled:
            log.warning("%s: decided; %s will publish it later.", what, ", ".join(answer.unsettled))
        return answer

    def abort(self, batch: int, run: str) -> AbortBatchAnswer:
        """Give up what the run staged, unless the batch is decided; the run can commit nothing more."""
        return self._until_answered(
            lambda api: api.abort_batch(self.name, batch, run), f"Abort of batch {batch}"
        )

    def describe(self) -> SinkDescription:
        """Return the sink as its coordinator knows it."""
        return self._until_answered(lambda api: api.sink(self.name), "Description")

    def delete(self) -> None:
        """Have every broker forget the sink, with what is staged; the coordinator first.

        A group without a master is waited for before any broker forgets the sink: a participant that is
        passed over would keep it. Raises SinkNotFound, SinkBusy while a decided batch is not published
        everywhere, and BrokerUnreachable if a group gets no master in time, or a master does not answer. Then
        the call may be repeated.
        """
        with self._lock:
            first = self._until_answered(lambda api: api, "Coordinator").broker
            masters = persist(self._coordinators.brokers, f"Deletion of sink {self.name}", self.timeout_ms)
            brokers = sorted(masters, key=lambda api: api.broker != first)
            for api in brokers:
                try:
                    api.delete_sink(self.name)
                except SinkNotFound:
                    # It never took part, or an earlier call got this far.
                    continue
            self._coordinator = self._known = self._begun = None

    # --- inside ------------------------------------------------------------------

    def _until_answered(self, question: Callable[[BrokerApi], T], what: str, *, elect: bool = False) -> T:
        what = f"{what} of sink {self.name}"
        return persist(lambda: self._ask(question, elect=elect), what, self.timeout_ms)

    def _ask(self, question: Callable[[BrokerApi], T], *, elect: bool = False) -> T:
        """Put a question to the coordinator, found first if it is not known or did not answer last time."""
        api = self._coordinator
        if api is None:
            api = self._coordinator = self._coordinators.find(self.name, elect=elect)
            self._known = api.broker
        try:
            return question(api)
        except BrokerUnreachable as error:
            # It may come back at another address.
            self._coordinator = None
            why = f"{error.facts['address']}: {error.facts['why']}"
            raise CoordinatorUnreachable(self.name, api.broker, why) from error
        except (NotMaster, BrokerUnavailable):
            # Another replica of its group may be master by now.
            self._coordinator = None
            raise
