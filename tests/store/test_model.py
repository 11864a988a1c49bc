"""The store against a plain model, in any order of calls, restarts, kills and power cuts.

Everything is answered before the next step, so the model is exact: under sync
flush, and after kill -9 under either, the store must hold precisely this.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from rocketq.errors import Conflict, OffsetOutOfRange, QueueNotFound, TopicNotFound
from rocketq.model import FlushMode, PullStatus
from rocketq.protocol.documents.broker import AlterTopicRequest
from rocketq.protocol.frame_slices import open_frames
from tests.support.disk import Disk
from tests.support.lives import Lives
from tests.support.store_driver import answer, batch, burst, config
from tests.support.workload import end_life

TOPICS = st.sampled_from(["alpha", "beta"])
QUEUES = st.integers(0, 3)
SIZES = st.sampled_from([0, 1, 30, 400, 3000])
BATCHES = st.lists(st.tuples(QUEUES, st.lists(SIZES, min_size=1, max_size=6)), min_size=1, max_size=4)


@dataclass
class Topic:
    incarnation: str
    queues: int
    #: The most queues it ever had: fewer take none away.
    ever: int
    rows: dict[int, list[bytes]] = field(default_factory=dict)

    def row(self, queue: int) -> list[bytes]:
        return self.rows.setdefault(queue, [])


class StoreAndModel(Lives):
    """`self.topics` and `self.groups` are what must be; `self.driver` is what is."""

    def __init__(self) -> None:
        super().__init__()
        self.topics: dict[str, Topic] = {}
        self.groups: dict[tuple[str, str, int], int] = {}
        self.old_incarnations: set[str] = set()
        self.last_stored_at_us = 0

    @initialize(
        flush=st.sampled_from(list(FlushMode)), units=st.sampled_from([2, 7, 1000]),
        segment=st.sampled_from([4096, 10_000]), merge=st.sampled_from([0, 2000]),
        seed=st.integers(0, 1 << 32),
    )  # fmt: skip
    def begin(self, flush: FlushMode, units: int, segment: int, merge: int, seed: int) -> None:
        self.disk = Disk(seed)
        self.flush = flush
        self.settings = config(
            flush=flush, queue_file_units=units, segment_bytes=segment, merge_bytes=merge, open_files_max=8
        )
        self._start()

    # --- topics -----------------------------------------------------------------------

    @rule(name=TOPICS, queues=st.integers(1, 3))
    def create(self, name: str, queues: int) -> None:
        if name in self.topics:
            with pytest.raises(Conflict):
                self.driver.create(name, queues)
            return
        made = self.driver.create(name, queues)
        assert made.incarnation not in self.old_incarnations
        self.old_incarnations.add(made.incarnation)
        self.topics[name] = Topic(made.incarnation, queues, queues)

    @rule(name=TOPICS, queues=st.integers(1, 4))
    def alter(self, name: str, queues: int) -> None:
        change = partial(
            self.driver.store.alter_topic,
            name,
            AlterTopicRequest(read_queues=queues, write_queues=queues, force=True),
        )
        if name not in self.topics:
            with pytest.raises(TopicNotFound):
                answer(change)
            return
        answer(change)
        topic = self.topics[name]
        topic.queues, topic.ever = queues, max(topic.ever, queues)

    @rule(name=TOPICS)
    def delete(self, name: str) -> None:
        if name not in self.topics:
            with pytest.raises(TopicNotFound):
                self.driver.delete(name)
            return
        self.driver.delete(name)
        del self.topics[name]
        self.groups = {place: offset for place, offset in self.groups.items() if place[1] != name}

    # --- messages ---------------------------------------------------------------------

    @rule(name=TOPICS, parts=BATCHES)
    def append(self, name: str, parts: list[tuple[int, list[int]]]) -> None:
        bodies = [(queue, self._bodies(sizes)) for queue, sizes in parts]
        batches = [batch(queue, some) for queue, some in bodies]
        if name not in self.topics:
            with pytest.raises(TopicNotFound):
                self.driver.append(name, batches)
            return
        topic = self.topics[name]
        if any(queue >= topic.queues for queue, _ in bodies):
            with pytest.raises(QueueNotFound):
                self.driver.append(name, batches)
            return
        for (queue, some), where in zip(bodies, self.driver.append(name, batches).appended, strict=True):
            assert (where.queue, where.offset, where.count) == (queue, len(topic.row(queue)), len(some))
            topic.row(queue).extend(some)

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), sizes=st.lists(SIZES, min_size=2, max_size=12))
    def append_many_at_once(self, data: st.DataObject, sizes: list[int]) -> None:
        """Small sends that share a group, and frames."""
        name = data.draw(st.sampled_from(sorted(self.topics)))
        topic = self.topics[name]
        sends = [(number % topic.queues, self._bodies([size])) for number, size in enumerate(sizes)]
        calls = [partial(self.driver.store.append, name, [batch(queue, some)]) for queue, some in sends]
        for (queue, some), outcome in zip(sends, burst(self.driver.store, calls), strict=True):
            assert outcome.appended[0].offset == len(topic.row(queue))
            topic.row(queue).extend(some)

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), max_bytes=st.sampled_from([1, 600, 1 << 20]), limit=st.sampled_from([None, 1, 4]))
    def pull(self, data: st.DataObject, max_bytes: int, limit: int | None) -> None:
        name = data.draw(st.sampled_from(sorted(self.topics)))
        topic = self.topics[name]
        queue = data.draw(st.integers(0, topic.queues - 1))
        row = topic.row(queue)
        offset = data.draw(st.integers(-1, len(row) + 1))
        pull = partial(self.driver.store.pull, name, queue, offset, max_bytes=max_bytes, max_messages=limit)
        if not 0 <= offset <= len(row):
            with pytest.raises(OffsetOutOfRange):
                pull()
            return
        result = pull()
        assert (result.min_offset, result.max_offset) == (0, len(row))
        assert result.incarnation == topic.incarnation
        got = [
            body
            for piece in open_frames(b"".join(result.chunks), offset)
            for body in piece.batch.column("body").to_pylist()
        ]
        assert got == row[offset : result.next_offset]
        assert bool(got) == (offset < len(row)) == (result.status is PullStatus.FOUND)

    # --- groups -----------------------------------------------------------------------

    @rule(
        group=st.sampled_from(["g", "h"]),
        name=TOPICS,
        queue=QUEUES,
        share=st.floats(0, 1),
        reset=st.booleans(),
    )
    def commit(self, group: str, name: str, queue: int, share: float, reset: bool) -> None:
        topic = self.topics.get(name)
        if topic is None:
            with pytest.raises(TopicNotFound):
                self.driver.commit(group, name, queue, 0, reset)
            return
        if queue >= topic.queues:
            return
        offset = round(share * len(topic.row(queue)))
        self.driver.commit(group, name, queue, offset, reset)
        if reset or offset > self.groups.get((group, name, queue), -1):
            self.groups[group, name, queue] = offset

    # --- files ------------------------------------------------------------------------

    @rule()
    def write_back(self) -> None:
        self.driver.store.flush()

    @rule()
    def power_cut(self) -> None:
        if self.flush is FlushMode.ASYNC:
            self.driver.store.flush()
        self.disk.cut_power()
        end_life(self.driver.store)
        self.disk.restart()
        self._start()

    # --- what always holds --------------------------------------------------------------

    @invariant()
    def everything_is_as_it_must_be(self) -> None:
        if not hasattr(self, "driver"):
            return
        store = self.driver.store
        assert {each.name: each.incarnation for each in store.topics()} == {
            name: topic.incarnation for name, topic in self.topics.items()
        }
        for name, topic in self.topics.items():
            assert self.driver.ends(name) == [len(topic.row(queue)) for queue in range(topic.ever)]
        found = {
            (group, *place): offset
            for group in store.groups()
            for place, offset in self.driver.progress(group).items()
        }
        assert found == self.groups

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self._check_all_messages()
            self.driver.store.close()

    def _check_all_messages(self) -> None:
        for name, topic in self.topics.items():
            for queue in range(topic.queues):
                assert self.driver.bodies(name, queue) == topic.row(queue)
                times = [piece.header.stored_at_us for piece in self.driver.slices(name, queue)]
                assert times == sorted(times)


_RELAXED = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
TestStoreAndModel = StoreAndModel.TestCase
TestStoreAndModel.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=_RELAXED
)


class Longer(StoreAndModel):
    """The same, for the slow suite."""


TestLonger = pytest.mark.slow(pytest.mark.timeout(1800)(Longer.TestCase))
TestLonger.settings = settings(
    max_examples=1500, stateful_step_count=60, deadline=None, suppress_health_check=_RELAXED
)
