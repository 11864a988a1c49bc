"""Stages against a plain model: staged, published, dropped, interrupted anywhere.

The model is exact. After an interruption a publication is either not begun, and its stage is as
it was, or begun, and then it is completed without being asked for again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from rocketq.errors import BrokerUnavailable, StoreFull
from rocketq.errors.sink_errors import StageNotFound
from rocketq.model import FlushMode
from rocketq.protocol.documents.sinks import Staged, StageName
from rocketq_broker.store.sinks.table import SinkPicture
from rocketq_broker.store.state.state import Picture, decode_picture, encode
from tests.support.disk import Disk
from tests.support.lives import Lives
from tests.support.staging import publish, request_for
from tests.support.store_driver import answer, batch, config
from tests.support.workload import end_life

QUEUES = 2
TOPICS = st.sampled_from(["t", "u"])
SINKS = st.sampled_from(["etl", "copy"])
SIZES = st.lists(st.sampled_from([0, 30, 700, 3000]), min_size=1, max_size=4)


@dataclass
class StagedPart:
    """A staged frame: its name, its place, its bodies; `topic` is a creation of that topic."""

    frame: Staged
    topic: tuple[str, int]
    bodies: list[bytes]


@dataclass
class ModelStage:
    name: StageName
    parts: list[StagedPart] = field(default_factory=list)


class StagesAndModel(Lives):
    """`self.rows` and `self.stages` are what must be; `self.driver` is what is."""

    def __init__(self) -> None:
        super().__init__()
        self.creations = {"t": 0, "u": 0}
        self.rows: dict[tuple[str, int], list[bytes]] = {}
        self.stages: list[ModelStage] = []
        self.batches = 0

    @initialize(
        flush=st.sampled_from(list(FlushMode)), segment=st.sampled_from([4096, 20_000]),
        chunk=st.sampled_from([1, 2000, 1 << 20]), seed=st.integers(0, 1000),
    )  # fmt: skip
    def begin(self, flush: FlushMode, segment: int, chunk: int, seed: int) -> None:
        self.disk, self.flush = Disk(seed), flush
        self.settings = config(
            flush=flush, segment_bytes=segment, publish_bytes_max=chunk, queue_file_units=7, merge_bytes=0
        )
        self._start()
        for topic in self.creations:
            self.driver.create(topic, QUEUES)

    # --- writing -----------------------------------------------------------------------

    @rule(topic=TOPICS, queue=st.integers(0, QUEUES - 1), sizes=SIZES)
    def send(self, topic: str, queue: int, sizes: list[int]) -> None:
        bodies = self._bodies(sizes)
        self.driver.send(topic, queue, bodies)
        self.rows.setdefault((topic, queue), []).extend(bodies)

    @rule(
        sink=SINKS,
        topic=TOPICS,
        parts=st.lists(st.tuples(st.integers(0, QUEUES - 1), SIZES), min_size=1, max_size=3),
    )
    def stage_a_new_batch(self, sink: str, topic: str, parts: list[tuple[int, list[int]]]) -> None:
        self.batches += 1
        made = ModelStage(StageName(sink, self.batches, "run", "broker-a"))
        self.stages.append(made)
        self._stage(made, topic, parts)

    @precondition(lambda self: self.stages)
    @rule(data=st.data(), topic=TOPICS, sizes=SIZES)
    def stage_more(self, data: st.DataObject, topic: str, sizes: list[int]) -> None:
        self._stage(data.draw(st.sampled_from(self.stages)), topic, [(0, sizes), (1, sizes[:1])])

    def _stage(self, into: ModelStage, topic: str, parts: list[tuple[int, list[int]]]) -> None:
        bodies = [(queue, self._bodies(sizes)) for queue, sizes in parts]
        batches = [batch(queue, some) for queue, some in bodies]
        outcome = answer(lambda done: self.driver.store.append(topic, batches, done, stage=into.name))
        for frame, (_, some) in zip(outcome.staged, bodies, strict=True):
            into.parts.append(StagedPart(frame, (topic, self.creations[topic]), some))

    # --- what becomes of stages ----------------------------------------------------------

    def _drawn(self, data: st.DataObject) -> tuple[ModelStage, list[StagedPart]]:
        """A stage, and those of its frames that count."""
        some = data.draw(st.sampled_from(self.stages))
        chosen = data.draw(
            st.lists(st.integers(0, len(some.parts) - 1), min_size=1, unique=True, max_size=len(some.parts))
        )
        return some, [some.parts[at] for at in chosen]

    def _is_published(self, some: ModelStage, counted: list[StagedPart]) -> None:
        self.stages.remove(some)
        for part in sorted(counted, key=lambda each: each.frame.log_offset):
            name, creation = part.topic
            if self.creations[name] == creation:
                self.rows.setdefault((name, part.frame.queue), []).extend(part.bodies)

    @precondition(lambda self: self.stages)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        some, counted = self._drawn(data)
        frames = [part.frame for part in counted]
        publish(self.driver, frames, some.name)
        self._is_published(some, counted)
        publish(self.driver, frames, some.name)

    @precondition(lambda self: self.stages)
    @rule(data=st.data(), how=st.sampled_from(["kill", "power"]), operations=st.integers(1, 12))
    def be_interrupted_while_publishing(self, data: st.DataObject, how: str, operations: int) -> None:
        some, counted = self._drawn(data)
        frames = [part.frame for part in counted]
        if how == "power":
            if self.flush is FlushMode.ASYNC:
                self.driver.store.flush()
            self.disk.cut_at = self.disk.operations + operations
        else:
            self.disk.fail("write", 28, nth=operations)
        with suppress(BrokerUnavailable, StoreFull):
            publish(self.driver, frames, some.name)
        if how == "power":
            self.disk.cut_power()
        else:
            self.disk.end_session()
        end_life(self.driver.store)
        if how == "power":
            self.disk.restart()
        self.disk.faults.clear()
        self._start()
        table = self.driver.store.sinks.table
        if (some.name.sink, some.name.batch, some.name.run) in table.open:
            return
        answer(partial(self._until_published, some.name, frames))
        self._is_published(some, counted)

    def _until_published(self, name: StageName, frames: list[Staged], done: object) -> None:
        self.driver.store.sinks.publish(name.sink, request_for(frames, name), done)  # type: ignore[arg-type]

    @precondition(lambda self: self.stages)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        some = data.draw(st.sampled_from(self.stages))
        self.stages.remove(some)
        table = self.driver.store.sinks.table
        there = table.stages[table.open[some.name.sink, some.name.batch, some.name.run]]
        answer(partial(self.driver.store.sinks.drop, there))
        with pytest.raises(StageNotFound):
            publish(self.driver, [part.frame for part in some.parts], some.name)

    @precondition(lambda self: self.stages)
    @rule(data=st.data())
    def be_asked_for_what_is_not_there(self, data: st.DataObject) -> None:
        some, counted = self._drawn(data)
        stranger = Staged(0, 8, 1)
        with pytest.raises(StageNotFound):
            publish(self.driver, [*(part.frame for part in counted), stranger], some.name)

    @rule(topic=TOPICS)
    def delete_and_create_anew(self, topic: str) -> None:
        self.driver.delete(topic)
        self.driver.create(topic, QUEUES)
        self.creations[topic] += 1
        for queue in range(QUEUES):
            self.rows.pop((topic, queue), None)

    # --- files -------------------------------------------------------------------------

    # --- what always holds -----------------------------------------------------------------

    @invariant()
    def queues_and_stages_are_as_they_must_be(self) -> None:
        if not hasattr(self, "driver"):
            return
        for topic in self.creations:
            ends = [len(self.rows.get((topic, queue), [])) for queue in range(QUEUES)]
            assert self.driver.ends(topic) == ends
        table = self.driver.store.sinks.table
        found = {
            (each.sink, each.batch): [frame.log_offset for frame in each.frames]
            for each in table.stages.values()
        }
        assert found == {
            (each.name.sink, each.name.batch): [part.frame.log_offset for part in each.parts]
            for each in self.stages
        }
        assert not table.publishing
        lowest = [part.frame.log_offset for each in self.stages for part in each.parts]
        assert table.floor == min(lowest, default=None)
        pictured = SinkPicture.of(table)
        whole = Picture((), {}, 0, self.driver.store.data_version, {}, 0, pictured)
        assert decode_picture(encode(whole)).sinks.table() == table

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            for topic in self.creations:
                for queue in range(QUEUES):
                    assert self.driver.bodies(topic, queue) == self.rows.get((topic, queue), [])
            self.driver.store.close()


_RELAXED = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
TestStagesAndModel = StagesAndModel.TestCase
TestStagesAndModel.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=_RELAXED
)


class Longer(StagesAndModel):
    """The same, for the slow suite."""


TestLonger = pytest.mark.slow(pytest.mark.timeout(1800)(Longer.TestCase))
TestLonger.settings = settings(
    max_examples=1500, stateful_step_count=50, deadline=None, suppress_health_check=_RELAXED
)
