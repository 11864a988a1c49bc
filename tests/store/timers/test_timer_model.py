"""Delayed messages against a plain model, in any order of calls, restarts, kills, power cuts and damage.

Everything is answered, and what is due is delivered, before the next step. So the model is exact: each queue
must hold precisely the messages that the model delivered, in their order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from rocketq.clock import ManualClock
from rocketq.errors import Conflict
from rocketq.model import FlushMode, MessageQueue, TimerId, TimerStatus
from rocketq_broker.store.config import RetentionPolicy
from rocketq_broker.store.store import MessageStore
from rocketq_broker.store.timers.entries import last_tick
from tests.support.crashing_files import CrashingFiles
from tests.support.disk import Disk
from tests.support.lives import Lives
from tests.support.store_driver import answer, batch, config
from tests.support.timed_store import Timed, delayed
from tests.support.workload import end_life

TOPICS = st.sampled_from(["alpha", "beta"])
#: From the past over ticks and windows to days ahead; in milliseconds.
DELAYS = st.sampled_from([-5_000, 0, 1, 50, 99, 100, 101, 250, 1_000, 60_000, 599_950, 1_200_000, 90_000_000])
STEPS = st.sampled_from([1, 50, 100, 1_000, 61_000, 600_000, 5_000_000, 100_000_000])


@dataclass
class Held:
    """A message that the model has not delivered."""

    topic: str
    queue: int
    body: bytes
    due_ms: int
    #: Its place among messages that are due at the same time.
    number: tuple[int, int, int]
    #: Its id, if it was sent alone.
    timer: TimerId | None
    cancelled: bool = False


@dataclass
class Topic:
    rows: dict[int, list[bytes]] = field(default_factory=dict)


class TimersAndModel(Lives):
    """`self.held` and `self.topics` are what must be; `self.driver` is what is."""

    driver: Timed

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.topics: dict[str, Topic] = {}
        self.held: list[Held] = []
        self.past: list[TimerId] = []
        self.sends = 0

    @initialize(
        flush=st.sampled_from(list(FlushMode)), segment=st.sampled_from([4096, 20_000]),
        merge=st.sampled_from([0, 2000]), copies=st.sampled_from([1, 2_000, 1 << 20]),
        seed=st.integers(0, 1 << 32),
    )  # fmt: skip
    def begin(self, flush: FlushMode, segment: int, merge: int, copies: int, seed: int) -> None:
        self.disk = Disk(seed)
        self.flush = flush
        self.settings = config(
            flush=flush, segment_bytes=segment, merge_bytes=merge, publish_bytes_max=copies,
            open_files_max=8, retention=RetentionPolicy(retention_bytes=1 << 40),
        )  # fmt: skip
        self._start()

    def _start(self) -> None:
        store = MessageStore.open(self.settings, files=CrashingFiles(self.disk), clock=self.clock)
        self.driver = Timed(store, self.clock)

    @rule(name=TOPICS)
    def create_or_delete(self, name: str) -> None:
        if name not in self.topics:
            self.driver.create(name, 2)
            self.topics[name] = Topic()
            return
        self.driver.delete(name)
        del self.topics[name]
        self.held = [each for each in self.held if each.topic != name]

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), queue=st.integers(0, 1), delays=st.lists(DELAYS, min_size=1, max_size=6))
    def schedule(self, data: st.DataObject, queue: int, delays: list[int]) -> None:
        name = data.draw(st.sampled_from(sorted(self.topics)))
        now = self.driver.now_ms
        bodies = self._bodies([10] * len(delays))
        timed = [(body, now + delay) for body, delay in zip(bodies, delays, strict=True)]
        outcome = self.driver.append(name, delayed(queue, *timed))
        alone = None
        if len(delays) == 1:
            place = outcome.timers[0]
            assert place is not None
            alone = TimerId(MessageQueue(name, self.driver.store.broker, queue), *place)
        self.sends += 1
        # A frame is sorted by delivery time, also where times are past and due at once.
        self.held += [
            Held(name, queue, body, max(at, last_tick(now)), (self.sends, at, row), alone)
            for row, (body, at) in enumerate(timed)
        ]
        self._deliver()

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), queue=st.integers(0, 1))
    def append(self, data: st.DataObject, queue: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.topics)))
        bodies = self._bodies([10, 300])
        self.driver.append(name, [batch(queue, bodies)])
        self.topics[name].rows.setdefault(queue, []).extend(bodies)

    @rule(step=STEPS)
    def pass_time(self, step: int) -> None:
        self.driver.pass_time(step)
        self._deliver()

    def _deliver(self) -> None:
        self.driver.settle()
        due = [each for each in self.held if each.due_ms <= last_tick(self.driver.now_ms)]
        for each in sorted(due, key=lambda held: (held.due_ms, held.number)):
            if not each.cancelled:
                self.topics[each.topic].rows.setdefault(each.queue, []).append(each.body)
            if each.timer is not None:
                self.past.append(each.timer)
            self.held.remove(each)

    @precondition(lambda self: any(each.timer for each in self.held))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        timers = self.driver.store.timers
        chosen = data.draw(st.sampled_from([each for each in self.held if each.timer]))
        assert chosen.timer is not None
        found = timers.find(chosen.timer)
        assert found.message.column("body")[0].as_py() == chosen.body
        assert found.status is (TimerStatus.CANCELLED if chosen.cancelled else TimerStatus.PENDING)
        answer(lambda done: timers.cancel(found, done))
        chosen.cancelled = True
        assert timers.find(chosen.timer).status is TimerStatus.CANCELLED

    @precondition(lambda self: self.past)
    @rule()
    def cancel_too_late(self) -> None:
        timers = self.driver.store.timers
        found = timers.find(self.past[-1])
        assert found.status is TimerStatus.PAST
        with pytest.raises(Conflict):
            answer(lambda done: timers.cancel(found, done))

    @rule()
    def retain(self) -> None:
        self.driver.store.retain()

    @rule()
    def power_cut(self) -> None:
        if self.flush is FlushMode.ASYNC:
            self.driver.store.flush()
        self.disk.cut_power()
        end_life(self.driver.store)
        self.disk.restart()
        self._start()

    @rule(data=st.data())
    def damage_a_file_of_the_index(self, data: st.DataObject) -> None:
        """While nobody looks: the next start finds it, when it needs the window."""
        self.driver.store.close()
        paths = self.disk.paths("timers")
        if paths:
            path = data.draw(st.sampled_from(paths))
            content = bytearray(self.disk.bytes_of(path))
            kind = data.draw(st.sampled_from(["cut", "flip"]))
            if kind == "flip" and content:
                content[len(content) // 2] ^= 0x40
            self.disk.overwrite(path, bytes(content[: len(content) // 2] if kind == "cut" else content))
        self._start()

    @invariant()
    def everything_is_as_it_must_be(self) -> None:
        if not hasattr(self, "driver"):
            return
        for name, topic in self.topics.items():
            assert self.driver.ends(name) == [len(topic.rows.get(queue, [])) for queue in range(2)]
        of_topics = sum(not each.cancelled for each in self.held)
        assert self.driver.store.timers.table.outstanding >= of_topics

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        self.pass_time(200_000_000)
        for name, topic in self.topics.items():
            for queue in range(2):
                assert self.driver.bodies(name, queue) == topic.rows.get(queue, [])
        table = self.driver.store.timers.table
        assert (table.outstanding, table.cancelled_count, table.floor) == (0, 0, None)
        self.driver.store.close()


_RELAXED = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
TestTimersAndModel = TimersAndModel.TestCase
TestTimersAndModel.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=_RELAXED
)


class Longer(TimersAndModel):
    """The same, for the slow suite."""


TestLonger = pytest.mark.slow(pytest.mark.timeout(1800)(Longer.TestCase))
TestLonger.settings = settings(
    max_examples=1000, stateful_step_count=60, deadline=None, suppress_health_check=_RELAXED
)
