"""Does what is due for sinks, in the background (`work_due` decides what is due).

    a batch is decided            the coordinator tells all participants at once to publish; each participant
                                  first asks the coordinator whether the batch is decided
    a participant does not answer the coordinator tells it again until it answers: a decision is final
    a stage was quiet             the participant asks the coordinator what to do with it

One thread looks for due work after each decision and from time to time. A small pool makes the calls, so a
participant that hangs delays no other. A broker that did not answer gets one call at a time until it answers.
Nothing here needs to be kept: a broker that starts finds in its store what is due.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Final, TypeVar

import structlog

from rocketq.clock import Clock
from rocketq.config import TransportConfig
from rocketq.errors import (
    BrokerUnavailable,
    BrokerUnreachable,
    Closed,
    InternalError,
    NotMaster,
    RocketqError,
)
from rocketq.errors.sink_errors import (
    CoordinatorUnreachable,
    NotCoordinator,
    ParticipantUnknown,
    StageNotFound,
)
from rocketq.net.broker_api import BrokerApi
from rocketq.net.transport import Transport
from rocketq.protocol.documents.sinks import (
    CheckBatchAnswer,
    CheckBatchRequest,
    Participant,
    PublishBatchRequest,
    StageVerdict,
)
from rocketq_broker.config import BrokerConfig
from rocketq_broker.registration.peer_addresses import Addresses
from rocketq_broker.sinks.work_due import (
    CheckDue,
    DropDue,
    Lane,
    PublicationDue,
    publications_due,
    stages_due,
)
from rocketq_broker.store.sinks import decisions as sink_decisions
from rocketq_broker.store.sinks.table import Stage
from rocketq_broker.store.store import MessageStore

#: Publishing much data takes a while; after this the participant is asked again, which does no harm.
PUBLISH_TIMEOUT_MS: Final = 30_000
#: Questions are answered from memory.
ASK_TIMEOUT_MS: Final = 2_000
#: What says that a broker group's master may be at another address by now.
MOVED: Final = (BrokerUnreachable, NotMaster, BrokerUnavailable)
#: A refusal does not go away by itself soon.
REFUSED_RETRY_MS: Final = 30_000
#: Stages that are asked about at the same time; the others are a little later.
CHECKS_MAX: Final = 64
#: Longer than any stage can have been open.
NEVER_MS: Final = 1 << 62
_POOL_THREADS: Final = 8

T = TypeVar("T")

log = structlog.get_logger("rocketq.broker.publisher")


class SinkPublisher:
    """The background side of one broker's sinks, from `start` to `stop`."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        clock: Clock,
        on_published: Callable[[str, int], None],
    ) -> None:
        self._config = config
        self._store = store
        self._clock = clock
        self._on_published = on_published
        self._transport = Transport(TransportConfig(timeout_ms=ASK_TIMEOUT_MS))
        self._addresses = Addresses(config.cluster, config.nameservers, self._transport)
        self._pool = ThreadPoolExecutor(_POOL_THREADS, thread_name_prefix="rocketq-publish")
        #: For `confirm_publication` alone. Two brokers whose pools are full of calls to each other would
        #: wait in vain if the answers needed the same threads.
        self.confirmations = ThreadPoolExecutor(_POOL_THREADS, thread_name_prefix="rocketq-confirm")
        self._thread = threading.Thread(target=self._run, name="rocketq-publisher", daemon=True)
        self._due = threading.Event()
        self._stopping = False
        #: Guards everything below.
        self._lock = threading.Lock()
        self._under_way: set[Lane] = set()
        self._not_before_ms: dict[Lane, int] = {}
        self._problems: dict[Lane, str] = {}
        self._published: set[tuple[str, int, str]] = set()
        self._unanswering: set[str] = set()
        self._asking: set[int] = set()
        self._asked_ms: dict[int, int] = {}

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Look for due work at once; any thread may call this."""
        self._due.set()

    def stop(self) -> None:
        """Cut the calls that are under way and end the threads; what is due stays due."""
        self._stopping = True
        self.wake()
        if self._thread.ident is not None:
            self._thread.join()
        self._transport.close()
        self._pool.shutdown(cancel_futures=True)
        self.confirmations.shutdown(cancel_futures=True)

    # --- what callers ask ---------------------------------------------------------------

    def unsettled(self, sink: str, batch: int) -> tuple[str, ...]:
        """Return the participants of a decided batch that are not known to have published it."""
        entry = self._store.sinks.table.sinks.get(sink)
        decision = None if entry is None else entry.decision(batch)
        if decision is None:
            return ()
        with self._lock:
            return tuple(each for each in decision.unsettled if (sink, batch, each) not in self._published)

    @property
    def calls(self) -> int:
        """How many publications and questions are under way."""
        with self._lock:
            return len(self._under_way) + len(self._asking)

    def problem(self, sink: str, brokers: tuple[str, ...]) -> str:
        """Return why participants have not published yet, as far as that is known."""
        with self._lock:
            return " ".join(self._problems[sink, each] for each in brokers if (sink, each) in self._problems)

    def ask_participants(
        self, sink: str, batch: int, run: str, participants: tuple[Participant, ...]
    ) -> None:
        """Raise StageNotFound or NotCoordinator if a participant refuses what is to be decided.

        One that does not answer is passed over if it is known: what it has acknowledged, it has. Raises
        ParticipantUnknown if it is not: no NameServer has listed it, and no decision has named it.
        """
        others = [each for each in participants if each.broker != self._config.name]
        asked = [self._pool.submit(self._ask_participant, sink, batch, run, each) for each in others]
        refused = [error for each in asked if (error := each.result()) is not None]
        if refused:
            raise refused[0]

    def _ask_participant(self, sink: str, batch: int, run: str, part: Participant) -> RocketqError | None:
        me = self._config.name
        request = PublishBatchRequest(batch, run, part.frames, part.messages, only_check=True, coordinator=me)
        try:
            self._asked(part.broker, lambda api: api.publish_batch(sink, request))
        except (StageNotFound, NotCoordinator) as error:
            return error
        except BrokerUnreachable as error:
            decided = sink_decisions.named_brokers(self._store.sinks.table)
            if not (self._addresses.was_seen(part.broker) or part.broker in decided):
                return ParticipantUnknown(sink, batch, part.broker, str(error.facts["why"]))
        except RocketqError as error:
            log.info("participant_not_asked", broker=part.broker, sink=sink, batch=batch, why=str(error))
        return None

    def _asked(self, broker: str, question: Callable[[BrokerApi], T]) -> T:
        """Put a question to a broker; where it does not answer, once more if it has moved."""
        address = self._addresses.of(broker)
        try:
            return question(BrokerApi(self._transport, broker, address))
        except MOVED:
            self._addresses.forget(broker)
            if self._addresses.of(broker) == address:
                raise
            return question(self._api(broker))

    def learn_brokers(self) -> None:
        """Learn from the NameServers which brokers there are: a later commit may name one that is away."""
        problem = self._addresses.refresh()
        if problem:
            log.warning("brokers_not_learned", why=problem)

    def confirm_publication(self, sink: str, request: PublishBatchRequest) -> None:
        """Ask the sink's coordinator, as this broker knows it, whether these frames are to be published.

        Asks nobody if they are published already. Raises BatchNotDecided, StageNotFound, NotCoordinator,
        CoordinatorUnreachable.
        """
        me, table = self._config.name, self._store.sinks.table
        if sink_decisions.publish(table, sink, request, me) is None:
            return
        coordinator = table.sinks[sink].coordinator
        question = CheckBatchRequest(request.run, me)
        if coordinator == me:
            answer = sink_decisions.verdict(table, sink, request.batch, question)
        else:
            answer = self._ask_coordinator(sink, coordinator, request.batch, question)
        sink_decisions.confirm(sink, request, coordinator, answer)

    def _ask_coordinator(
        self, sink: str, coordinator: str, batch: int, question: CheckBatchRequest
    ) -> CheckBatchAnswer:
        try:
            return self._asked(coordinator, lambda api: api.check_batch(sink, batch, question))
        except RocketqError as error:
            # Whoever answers at its address may be another broker by now.
            self._addresses.forget(coordinator)
            if not isinstance(error, BrokerUnreachable):
                raise
            why = f"{error.facts['address']}: {error.facts['why']}"
            raise CoordinatorUnreachable(sink, coordinator, why) from error

    # --- the thread ---------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            # Before the look: what becomes due after it is seen by the next.
            self._due.clear()
            self.look()
            self._due.wait(self._config.sink_retry_ms / 1000)

    def look(self) -> None:
        """Begin everything that is due now."""
        table = self._store.sinks.table
        now_ms, wall_ms = self._clock.monotonic_ms(), self._clock.now_us() // 1000
        config = self._config
        with self._lock:
            self._asked_ms = {number: at for number, at in self._asked_ms.items() if number in table.stages}
            publications = [
                each
                for each in publications_due(table, config.name, self._under_way, self._not_before_ms, now_ms)
                if self._may_call(each.broker)
            ]
            self._under_way.update(each.lane for each in publications)
            asked = {**self._asked_ms, **dict.fromkeys(self._asking, wall_ms)}
            # A stage is as old as the wall clock says: none is given up while that is not believed.
            ttl_ms = NEVER_MS if self._store.clock_watch.is_doubted() else config.stage_ttl_ms
            due_stages = stages_due(table, asked, wall_ms, config.sink_check_ms, ttl_ms)
            stages = list(islice(due_stages, CHECKS_MAX - len(self._asking)))
            self._asking.update(each.stage.number for each in stages)
        for each in publications:
            self._publish(each)
        for due in stages:
            self._decide_stage(due)

    def _may_call(self, broker: str) -> bool:
        """Whether another call to a broker may begin: one that did not answer gets one at a time."""
        return broker not in self._unanswering or not any(lane[1] == broker for lane in self._under_way)

    def _api(self, broker: str) -> BrokerApi:
        return BrokerApi(self._transport, broker, self._addresses.of(broker))

    # --- decided batches ------------------------------------------------------------------

    def _publish(self, due: PublicationDue) -> None:
        me = self._config.name
        request = PublishBatchRequest(due.batch, due.run, due.frames, due.messages, coordinator=me)
        if due.broker == self._config.name:
            self._store.sinks.publish(due.sink, request, partial(self._publication_ended, due))
        else:
            self._pool.submit(self._publish_there, due, request)

    def _publish_there(self, due: PublicationDue, request: PublishBatchRequest) -> None:
        # If a defect ends the call, this is its outcome, and the batch stays due.
        outcome: RocketqError | None = InternalError("of the sink publisher")
        try:
            self._api(due.broker).publish_batch(due.sink, request, timeout_ms=PUBLISH_TIMEOUT_MS)
            outcome = None
        except RocketqError as error:
            outcome = error
        finally:
            self._publication_ended(due, outcome)

    def _publication_ended(self, due: PublicationDue, error: RocketqError | None) -> None:
        with self._lock:
            self._unanswering.discard(due.broker)
            if error is None:
                self._problems.pop(due.lane, None)
                self._not_before_ms.pop(due.lane, None)
                self._published.add((due.sink, due.batch, due.broker))
            else:
                self._note_failure(due, error)
        if error is None:
            self._store.sinks.settle(due.sink, due.batch, due.broker, partial(self._publication_noted, due))
            self._on_published(due.sink, due.batch)

    def _note_failure(self, due: PublicationDue, error: RocketqError) -> None:
        if isinstance(error, MOVED):
            self._addresses.forget(due.broker)
        if isinstance(error, BrokerUnreachable):
            self._unanswering.add(due.broker)
        if self._problems.get(due.lane) != str(error) and not isinstance(error, Closed):
            log.warning(
                "not_published_yet", sink=due.sink, batch=due.batch, broker=due.broker, why=str(error)
            )
        self._problems[due.lane] = str(error)
        wait_ms = self._config.sink_retry_ms if error.retryable else REFUSED_RETRY_MS
        self._not_before_ms[due.lane] = self._clock.monotonic_ms() + wait_ms
        self._under_way.discard(due.lane)

    def _publication_noted(self, due: PublicationDue, outcome: RocketqError | None) -> None:
        """Let the next batch go to this participant; if the log refused, tell it once more."""
        with self._lock:
            self._published.discard((due.sink, due.batch, due.broker))
            self._under_way.discard(due.lane)
        if outcome is None:
            self.wake()

    # --- quiet stages -------------------------------------------------------------------

    def _decide_stage(self, due: CheckDue | DropDue) -> None:
        stage = due.stage
        if isinstance(due, DropDue):
            self._drop(stage)
            return
        request = CheckBatchRequest(stage.run, self._config.name, due.abandon)
        if due.coordinator == self._config.name:
            self._store.sinks.check_batch(stage.sink, stage.batch, request, partial(self._checked, stage))
        else:
            self._pool.submit(self._check_there, due, request)

    def _check_there(self, due: CheckDue, request: CheckBatchRequest) -> None:
        stage = due.stage
        outcome: CheckBatchAnswer | RocketqError = InternalError("of the sink publisher")
        try:
            outcome = self._api(due.coordinator).check_batch(stage.sink, stage.batch, request)
        except RocketqError as error:
            outcome = error
            if isinstance(error, MOVED):
                self._addresses.forget(due.coordinator)
        finally:
            self._checked(stage, outcome)

    def _checked(self, stage: Stage, outcome: CheckBatchAnswer | RocketqError) -> None:
        """Do what the coordinator answered; without an answer, keep the stage and ask again later."""
        if isinstance(outcome, RocketqError):
            self._stage_ended(stage, outcome)
        elif outcome.verdict is StageVerdict.DROP:
            self._drop(stage)
        elif outcome.verdict is StageVerdict.PUBLISH:
            request = PublishBatchRequest(stage.batch, stage.run, outcome.frames, outcome.messages)
            self._store.sinks.publish(stage.sink, request, partial(self._stage_ended, stage))
        else:
            self._stage_ended(stage, None)

    def _drop(self, stage: Stage) -> None:
        log.info("stage_dropped", sink=stage.sink, batch=stage.batch, run=stage.run, messages=stage.messages)
        self._store.sinks.drop(stage, partial(self._stage_ended, stage))

    def _stage_ended(self, stage: Stage, outcome: RocketqError | None) -> None:
        with self._lock:
            self._asking.discard(stage.number)
            self._asked_ms[stage.number] = self._clock.now_us() // 1000
        if outcome is not None and not isinstance(outcome, Closed):
            log.warning("stage_kept", sink=stage.sink, batch=stage.batch, run=stage.run, why=str(outcome))
