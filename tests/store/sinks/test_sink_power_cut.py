"""The power goes at any operation of the disk while a sink's batches are staged and published."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from rocketq.errors import RocketqError
from rocketq.errors.sink_errors import BatchAlreadyDecided, BatchDiffers
from rocketq.model import FlushMode
from rocketq.protocol.documents.sinks import (
    CommitBatchAnswer,
    CommitBatchRequest,
    CommitOutcome,
    Participant,
    Staged,
    StageName,
)
from rocketq_broker.store.commit.waiting_operations import StagedOutcome
from rocketq_broker.store.errors import LogFailed
from rocketq_broker.store.store import MessageStore
from tests.support.crashing_files import CrashingFiles
from tests.support.disk import Disk
from tests.support.staging import request_for
from tests.support.store_driver import Call, Driver, answer, batch, burst, config
from tests.support.workload import end_life

QUEUES = 2
CUTS_A_RUN = 3


@dataclass
class Batch:
    """One batch of the sink: what was staged and acknowledged, and what of it was to be published."""

    name: StageName
    staged: list[tuple[Staged, list[bytes]]] = field(default_factory=list)
    listed: list[tuple[Staged, list[bytes]]] = field(default_factory=list)
    is_answered: bool = False
    is_promised: bool = False


@dataclass
class Run:
    """One disk, and a store that lives on it again and again."""

    seed: int
    flush: FlushMode
    sent: list[bytes] = field(default_factory=list)
    promised: int = 0
    batches: list[Batch] = field(default_factory=list)
    numbers: int = 0
    completed_by_recovery: int = 0
    #: Rows by topic of each batch that was to be decided, and the last one whose decision is promised.
    decisions: list[dict[str, int]] = field(default_factory=list)
    decision_promised: int = -1

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.disk = Disk(self.seed)
        self.settings = config(
            flush=self.flush,
            segment_bytes=self.rng.choice((4096, 20_000)),
            publish_bytes_max=self.rng.choice((1, 1500, 1 << 20)),
            merge_bytes=self.rng.choice((0, 4096)),
            queue_file_units=self.rng.choice((3, 1000)),
        )

    def open(self) -> Driver:
        store = MessageStore.open(self.settings, files=CrashingFiles(self.disk))
        return Driver(store)

    def _bodies(self) -> list[bytes]:
        made = []
        for _ in range(self.rng.choice((1, 2, 5))):
            self.numbers += 1
            made.append(b"%d." % self.numbers + bytes(self.rng.choice((0, 100, 900))))
        return made

    # --- a life --------------------------------------------------------------------------

    def live_until_cut(self, operations_max: int = 150) -> None:
        """Work until the power goes at a random operation."""
        self.disk.cut_at = self.disk.operations + self.rng.randint(1, operations_max)
        try:
            driver = self.open()
        except (OSError, LogFailed):
            return
        try:
            if not driver.store.topics():
                driver.create("t", QUEUES)
            answer(partial(driver.store.sinks.register, "decided", "broker-a"))
            answer(partial(driver.store.sinks.begin_run, "decided", "run", ""))
            for _ in range(12):
                self._work(driver)
        except (OSError, RocketqError):
            pass
        self.disk.cut_power()
        end_life(driver.store)

    def _work(self, driver: Driver) -> None:
        if self.rng.random() < 0.15:
            driver.store.take_snapshot()
            self._promise_all()
        kinds = (self._send, self._stage, self._stage, self._publish, self._decide)
        calls = [self.rng.choice(kinds)(driver) for _ in range(self.rng.choice((1, 2, 4)))]
        outcomes = burst(driver.store, [call for call, _ in calls])
        for (_, note), outcome in zip(calls, outcomes, strict=True):
            if note is not None and not isinstance(outcome, RocketqError):
                note(outcome)
        if self.flush is FlushMode.SYNC:
            self._promise_all()
        if any(isinstance(outcome, RocketqError) for outcome in outcomes):
            raise next(each for each in outcomes if isinstance(each, RocketqError))

    def _send(self, driver: Driver) -> tuple[Call, Any]:
        bodies = self._bodies()
        self.sent += bodies
        made = [batch(0, bodies)]
        return lambda done: driver.store.append("t", made, done), None

    def _stage(self, driver: Driver) -> tuple[Call, Any]:
        if not self.batches or self.rng.random() < 0.4:
            self.batches.append(Batch(StageName("etl", len(self.batches), "run", "broker-a")))
        into = self.batches[-1]
        bodies = self._bodies()
        made = [batch(self.rng.randrange(QUEUES), bodies)]

        def note(outcome: StagedOutcome) -> None:
            into.staged.append((outcome.staged[0], bodies))

        return lambda done: driver.store.append("t", made, done, stage=into.name), note

    def _publish(self, driver: Driver) -> tuple[Call, Any]:
        ready = [each for each in self.batches[:-1] if each.staged and not each.listed]
        if not ready:
            return self._send(driver)
        chosen = self.rng.choice(ready)
        count = self.rng.randint(1, len(chosen.staged))
        chosen.listed = self.rng.sample(chosen.staged, count)
        asked = request_for([frame for frame, _ in chosen.listed], chosen.name)

        def note(outcome: None) -> None:
            chosen.is_answered = True
            chosen.is_promised = self.flush is FlushMode.SYNC

        return partial(driver.store.sinks.publish, "etl", asked), note

    def _decide(self, driver: Driver) -> tuple[Call, Any]:
        """Decide a batch of a sink whose participant is another broker, and which has rows for two topics."""
        number = len(self.decisions)
        rows = {"t": self.rng.randint(1, 9), "u": self.rng.randint(1, 9)}
        self.decisions.append(rows)
        part = Participant("broker-b", (8,), sum(rows.values()))
        request = CommitBatchRequest("run", (part,), "", rows)

        def note(outcome: CommitBatchAnswer) -> None:
            assert outcome.outcome is CommitOutcome.COMMITTED
            if self.flush is FlushMode.SYNC:
                self.decision_promised = number

        return partial(driver.store.sinks.decide_batch, "decided", number, request), note

    def _promise_all(self) -> None:
        self.promised = len(self.sent)

    # --- and what is left of it -------------------------------------------------------------

    def restart_and_check(self) -> None:
        self.disk.restart()
        driver = self.open()
        if not driver.store.topics():
            assert not any(each.is_promised for each in self.batches)
            assert self.decision_promised < 0
            self.batches, self.sent, self.decisions = [], [], []
            driver.store.close()
            return
        for publication in driver.store.sinks.table.publishing:
            begun = self.batches[publication.batch]
            asked = request_for([frame for frame, _ in begun.listed], begun.name)
            answer(partial(driver.store.sinks.publish, "etl", asked))
        found = [driver.bodies("t", queue) for queue in range(QUEUES)]
        self._check(driver, found)
        self._check_decisions(driver)
        self._adopt(driver, found)
        driver.store.close()

    def _check(self, driver: Driver, found: list[list[bytes]]) -> None:
        there = Counter(body for row in found for body in row)
        assert not [body for body, times in there.items() if times > 1], "something is there twice"
        listed = {body for each in self.batches for _, bodies in each.listed for body in bodies}
        assert not set(there) - listed - set(self.sent), "something is there that was never to be seen"
        sent = [body for body in found[0] if body not in listed]
        assert sent == [body for body in self.sent if body in there], "sends are out of order"
        if self.flush is FlushMode.SYNC:
            stages = driver.store.sinks.table.open
            for each in self.batches:
                is_open = ("etl", each.name.batch, "run") in stages
                assert is_open or each.listed or not each.staged, "a stage is lost"
        for each in self.batches:
            bodies = [body for _, some in each.listed for body in some]
            present = [body for body in bodies if body in there]
            assert present in ([], bodies), "a batch is there in part"
            assert present or not each.is_promised, "a published batch is lost"
            self.completed_by_recovery += bool(present) and not each.is_answered
            for queue, row in enumerate(found):
                parts = sorted(each.listed, key=lambda part: part[0].log_offset)
                here = [some for frame, some in parts if frame.queue == queue]
                wanted = [body for some in here for body in some if present]
                assert [body for body in row if body in set(bodies)] == wanted, "a batch is out of order"

    def _check_decisions(self, driver: Driver) -> None:
        """What is decided has the rows it was decided with, so a checkpoint that was set back is noticed."""
        entry = driver.store.sinks.table.sinks.get("decided")
        last = -1 if entry is None or entry.decided is None else entry.decided
        assert self.decision_promised <= last < len(self.decisions)
        del self.decisions[last + 1 :]
        if last < 0:
            return

        def commit(number: int, rows: dict[str, int]) -> CommitBatchAnswer:
            request = CommitBatchRequest("another", (), "", rows)
            made: CommitBatchAnswer = answer(
                partial(driver.store.sinks.decide_batch, "decided", number, request)
            )
            return made

        assert commit(last, self.decisions[last]).outcome is CommitOutcome.ALREADY_COMMITTED
        with pytest.raises(BatchDiffers):
            commit(last, {"t": sum(self.decisions[last].values())})
        if last > 0:
            with pytest.raises(BatchAlreadyDecided):
                commit(last - 1, self.decisions[last - 1])

    def _adopt(self, driver: Driver, found: list[list[bytes]]) -> None:
        """Go on from what the store has: under async flush, staged frames may be gone."""
        there = {body for row in found for body in row}
        self.sent = [body for body in self.sent if body in there]
        for each in self.batches:
            stage = driver.store.sinks.table.stage_of(("etl", each.name.batch, "run"))
            kept = {frame.log_offset for frame in stage.frames} if stage is not None else set()
            if each.listed and each.listed[0][1][0] in there:
                each.is_promised = each.is_answered = True
                continue
            each.listed, each.is_answered = [], False
            if self.flush is FlushMode.SYNC:
                assert {frame.log_offset for frame, _ in each.staged} <= kept, "a staged frame is lost"
            each.staged = [(frame, bodies) for frame, bodies in each.staged if frame.log_offset in kept]


def run(seed: int, flush: FlushMode) -> Run:
    this = Run(seed, flush)
    for _ in range(CUTS_A_RUN):
        this.live_until_cut()
        this.restart_and_check()
    return this


@pytest.mark.parametrize("flush", FlushMode)
def test_what_is_published_is_whole_and_there_once_whenever_the_power_goes(flush: FlushMode) -> None:
    runs = [run(seed, flush) for seed in range(30)]
    assert sum(each.completed_by_recovery for each in runs) > 3, "cuts that meet no publication prove little"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("flush", "first"), [(flush, first) for flush in FlushMode for first in range(1000, 3000, 200)]
)
def test_four_thousand_runs_publish_nothing_twice_or_in_part(flush: FlushMode, first: int) -> None:
    assert sum(run(seed, flush).completed_by_recovery for seed in range(first, first + 200)) > 20
