"""One sink on two brokers against a model: seeded steps of honest writers and of mistaken ones.

After every step readers see exactly the frames of the decided batches, in the order of the decisions. A
mistake is a commit of another number, of other rows or of a broker that does not exist, or a call to
publish what is not decided: each must be refused, and change nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rocketq.errors import RemoteError
from rocketq.errors.sink_errors import BatchAlreadyDecided, BatchDiffers, BatchNotDecided, ParticipantUnknown
from rocketq.protocol.documents.sinks import (
    CommitBatchRequest,
    CommitOutcome,
    OnDecided,
    Participant,
    PublishBatchRequest,
    StagedAnswer,
)
from tests.support.conditions import wait_until
from tests.support.sink_cluster import SinkCluster, known_address, participants, stage

STEPS = 60


@dataclass
class Course:
    """What a seed does to the sink, and what must come of it; `a` coordinates."""

    cluster: SinkCluster
    rng: random.Random
    runs: int = 0
    numbers: int = 0
    #: Rows of each decided batch; its number is its place.
    decided: list[int] = field(default_factory=list)
    staged: list[tuple[StagedAnswer, list[bytes]]] = field(default_factory=list)
    seen: dict[str, list[bytes]] = field(default_factory=lambda: {"a": [], "b": []})
    refusals: int = 0

    @property
    def run(self) -> str:
        return f"run-{self.runs}"

    def request(
        self, *parts: Participant, rows: int | None = None, **fields: OnDecided
    ) -> CommitBatchRequest:
        total = sum(part.messages for part in parts) if rows is None else rows
        return CommitBatchRequest(self.run, parts, "query-1", {"t": total} if total else {}, **fields)

    def refused(self, why: type[RemoteError], batch: int, request: CommitBatchRequest) -> None:
        with pytest.raises(why):
            self.cluster.coordinator.commit_batch("etl", batch, request)
        self.refusals += 1

    # --- writers -----------------------------------------------------------------------

    def begin(self) -> None:
        self.runs += 1
        self.staged = []
        self.cluster.begin(run=self.run)

    def stage(self) -> None:
        bodies = []
        for _ in range(self.rng.randint(1, 3)):
            self.numbers += 1
            bodies.append(b"%d" % self.numbers)
        node = self.rng.choice(self.cluster.nodes)
        self.staged.append((stage(node, bodies, len(self.decided), self.run), bodies))

    def commit(self) -> None:
        """Decide the next batch: some of what is staged for it counts."""
        listed = self.rng.sample(self.staged, self.rng.randint(0, len(self.staged)))
        request = self.request(*participants(*(answer for answer, _ in listed)))
        for _ in range(self.rng.choice((1, 2))):
            self.cluster.coordinator.commit_batch("etl", len(self.decided), request)
        for answer, bodies in sorted(listed, key=lambda each: each[0].staged[0].log_offset):
            self.seen[answer.broker] += bodies
        self.decided.append(sum(len(bodies) for _, bodies in listed))
        self.staged = []

    def repeat(self) -> None:
        """The last batch again by a new run, as after a driver that died before Spark's commit log."""
        if self.decided:
            self.begin()
            last = len(self.decided) - 1
            request = self.request(rows=self.decided[last])
            answer = self.cluster.coordinator.commit_batch("etl", last, request)
            assert answer.outcome is CommitOutcome.ALREADY_COMMITTED

    def restart(self) -> None:
        node = self.rng.choice(self.cluster.nodes)
        node.stop()
        node.start()
        name = node.config.name
        wait_until(lambda: known_address(self.cluster, name) == node.api.address)

    # --- mistakes ----------------------------------------------------------------------

    def repeat_with_other_rows(self) -> None:
        if self.decided:
            self.begin()
            last = len(self.decided) - 1
            self.refused(BatchDiffers, last, self.request(rows=self.decided[last] + 1))

    def go_back(self) -> None:
        """A checkpoint that was set back by two batches or more; its rows are staged anew."""
        if len(self.decided) > 1:
            batch = self.rng.randrange(len(self.decided) - 1)
            self.begin()
            late = stage(self.rng.choice(self.cluster.nodes), [b"late"], batch, self.run)
            request = self.request(*participants(late))
            self.refused(BatchAlreadyDecided, batch, request)
            skip = self.request(*participants(late), on_decided=OnDecided.SKIP)
            skipped = self.cluster.coordinator.commit_batch("etl", batch, skip)
            assert (skipped.outcome, skipped.decided) == (CommitOutcome.SKIPPED, len(self.decided) - 1)

    def name_a_stranger(self) -> None:
        parts = participants(*(answer for answer, _ in self.staged))
        request = self.request(*parts, Participant("nobody", (8,), 1))
        self.refused(ParticipantUnknown, len(self.decided), request)

    def publish_too_early(self) -> None:
        if self.staged:
            answer, _ = self.rng.choice(self.staged)
            [part] = participants(answer)
            request = PublishBatchRequest(
                len(self.decided),
                self.run,
                part.frames,
                part.messages,
                coordinator=self.rng.choice(("", "a")),
            )
            node = next(each for each in self.cluster.nodes if each.config.name == answer.broker)
            with pytest.raises(BatchNotDecided):
                node.api.publish_batch("etl", request)
            self.refusals += 1

    # --- what always holds -----------------------------------------------------------------

    def check(self) -> None:
        wait_until(lambda: not self.cluster.coordinator.sink("etl").pending)
        assert self.cluster.bodies() == [self.seen["a"], self.seen["b"]]
        last = self.cluster.coordinator.sink("etl").decided
        assert last == (len(self.decided) - 1 if self.decided else None)


STEPS_OF: tuple[tuple[Callable[[Course], None], int], ...] = (
    (Course.begin, 1), (Course.stage, 6), (Course.commit, 3), (Course.repeat, 1), (Course.restart, 1),
    (Course.repeat_with_other_rows, 1), (Course.go_back, 1), (Course.name_a_stranger, 1),
    (Course.publish_too_early, 2),
)  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_readers_see_decided_batches_whatever_mistaken_callers_do(tmp_path: Path, seed: int) -> None:
    with SinkCluster(tmp_path, 2) as cluster:
        course = Course(cluster, random.Random(seed))
        course.begin()
        actions, weights = zip(*STEPS_OF, strict=True)
        for action in course.rng.choices(actions, weights, k=STEPS):
            action(course)
            course.check()
        assert len(course.decided) > 3
        assert course.refusals > 3
