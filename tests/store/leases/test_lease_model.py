"""Leases against a plain model: taken, acknowledged, run out, changed, given up, interrupted anywhere.

The model is exact. After an interruption a change is not made, or made as a whole. Dead letters and the
settling of their leases are one: none is stored twice, and none is lost.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from rocketq.clock import ManualClock
from rocketq.errors import BrokerUnavailable, StoreFull
from rocketq.errors.lease_errors import LeasesOutstanding
from rocketq.model import FlushMode
from rocketq.protocol.documents.broker import CommitOffsetsRequest, GroupOffset
from rocketq.protocol.documents.leases import LeaseRefusal, ReceiptHandle
from rocketq.protocol.rules.reserved_names import dead_letter_topic
from rocketq_broker.store.machines.due_runs import TICK_MS
from rocketq_broker.store.machines.queue_leases import offsets_of
from rocketq_broker.store.state.state import Picture, State, decode_picture, encode
from rocketq_broker.store.store import MessageStore
from tests.support.crashing_files import CrashingFiles
from tests.support.disk import Disk
from tests.support.leasing import TOPIC, Given, acknowledge, begin, change_time, receive
from tests.support.lives import Lives
from tests.support.store_driver import Driver, answer, batch, config
from tests.support.workload import end_life

QUEUES = 2
GROUPS = ("g", "h")
ATTEMPTS_MAX = 2
LEASES_MAX = 60
MANY = 1_500


@dataclass
class Leased:
    """One leased message."""

    number: int
    until_ms: int
    attempt: int


@dataclass
class Queue:
    """A queue in one group: what is leased, and from where on nothing was."""

    next: int = 0
    leased: dict[int, Leased] = field(default_factory=dict)

    @property
    def offset(self) -> int:
        return min(self.leased, default=self.next)


class LeasesAndModel(Lives):
    """`self.queues` is what must be; `self.driver` is what is."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.ends = [0] * QUEUES
        self.queues = {(group, queue): Queue() for group in GROUPS for queue in range(QUEUES)}
        self.handles: list[tuple[str, ReceiptHandle]] = []
        self.dead = dict.fromkeys(GROUPS, 0)

    def _start(self) -> None:
        files = CrashingFiles(self.disk)
        self.driver = Driver(MessageStore.open(self.settings, files=files, clock=self.clock))

    @initialize(
        flush=st.sampled_from(list(FlushMode)), segment=st.sampled_from([4096, 20_000]),
        seed=st.integers(0, 1000),
    )  # fmt: skip
    def begin(self, flush: FlushMode, segment: int, seed: int) -> None:
        self.disk, self.flush = Disk(seed), flush
        self.settings = config(
            flush=flush, segment_bytes=segment, queue_file_units=700, merge_bytes=0,
            leased_messages_max=LEASES_MAX,
        )  # fmt: skip
        self._start()
        self.driver.create(TOPIC, QUEUES)
        for group in GROUPS:
            begin(self.driver, group, QUEUES)
            self.driver.create(dead_letter_topic(group), 1)

    @property
    def now_ms(self) -> int:
        return self.driver.store.leases.now_ms()

    # --- messages and time ---------------------------------------------------------------

    @rule(queue=st.integers(0, QUEUES - 1), count=st.sampled_from([1, 2, 7, 40, MANY]))
    def send(self, queue: int, count: int) -> None:
        self.driver.send(TOPIC, queue, [b"m"] * count)
        self.ends[queue] += count

    @rule(ms=st.sampled_from([1, 99, 100, 900, 30_000]))
    def pass_time(self, ms: int) -> None:
        before = self.now_ms
        self.clock.advance(ms)
        assert self.now_ms == before + ms

    @rule()
    def let_all_but_the_longest_leases_run_out(self) -> None:
        self.clock.advance(61_000)

    @rule(ms=st.sampled_from([-86_400_000, -5_000, 5_000, 86_400_000]))
    def set_the_wall_clock(self, ms: int) -> None:
        before = self.now_ms
        self.clock.step(ms)
        assert self.now_ms == before

    # --- receives ------------------------------------------------------------------------

    def _runs_out(self, invisible_ms: int) -> int:
        if not invisible_ms:
            return self.now_ms // TICK_MS * TICK_MS
        return -(-(self.now_ms + invisible_ms) // TICK_MS) * TICK_MS

    def _is_given(self, group: str, found: list[Given], until_ms: int) -> None:
        for handle, attempt in found:
            queue = self.queues[group, handle.queue]
            before = queue.leased.get(handle.offset)
            if before is None:
                assert attempt == 1
                assert handle.offset == queue.next < self.ends[handle.queue]
                queue.next += 1
            else:
                assert before.until_ms <= self.now_ms, "it was given to another before its time was over"
                assert attempt == before.attempt + 1
            queue.leased[handle.offset] = Leased(handle.lease, until_ms, attempt)
            self.handles.append((group, handle))

    @rule(
        group=st.sampled_from(GROUPS), queues=st.sampled_from([(0,), (1,), (0, 1)]),
        invisible_ms=st.sampled_from([1, 100, 1_000, 60_000, 12 * 3600 * 1000]),
        messages=st.sampled_from([1, 3, 50, 1_000]),
    )  # fmt: skip
    def receive(self, group: str, queues: tuple[int, ...], invisible_ms: int, messages: int) -> None:
        own = [self.queues[group, queue] for queue in queues]
        out = sum(each.until_ms <= self.now_ms for queue in own for each in queue.leased.values())
        found = receive(self.driver, group, queues, invisible_ms, messages)
        again = sum(handle.offset in self.queues[group, handle.queue].leased for handle, _ in found)
        assert len(found) <= messages
        assert again == min(out, messages) or len(queues) > 1
        self._is_given(group, sorted(found), self._runs_out(invisible_ms))
        for queue in own:
            assert len(queue.leased) <= LEASES_MAX
        if not found:
            assert not out
            assert all(
                queue.next == self.ends[number] or len(queue.leased) == LEASES_MAX
                for number, queue in zip(queues, own, strict=True)
            )

    @rule(group=st.sampled_from(GROUPS))
    def receive_what_runs_out_until_it_is_dead(self, group: str) -> None:
        """So that messages often come to their last attempt."""
        for _ in range(ATTEMPTS_MAX):
            self.receive(group, (0, 1), 1, 3)
            self.clock.advance(TICK_MS)

    @rule(group=st.sampled_from(GROUPS), how=st.sampled_from(["kill", "power"]), operations=st.integers(1, 8))
    def be_interrupted_while_receiving(self, group: str, how: str, operations: int) -> None:
        until_ms = self._runs_out(1_000)
        self._interrupt(how, operations, lambda: receive(self.driver, group, (0, 1), 1_000, 20))
        found = []
        for (topic, queue), leases in self.driver.store.leases.table.of_group(group).items():
            before = self.queues[group, queue].leased
            for (number, chunk), run in leases.runs.items():
                for offset in _offsets(chunk, run.mask):
                    if offset not in before or before[offset].number != number:
                        handle = ReceiptHandle(self.driver.store.broker, topic, queue, offset, number)
                        assert run.until_ms == until_ms
                        found.append(Given(handle, run.attempt))
        self._is_given(group, sorted(found), until_ms)

    # --- receipt handles -------------------------------------------------------------------

    def _why_refused(self, group: str, handle: ReceiptHandle) -> LeaseRefusal | None:
        queue = self.queues[group, handle.queue]
        leased = queue.leased.get(handle.offset)
        if leased is None:
            return LeaseRefusal.SETTLED if handle.offset < queue.next else LeaseRefusal.UNKNOWN
        if leased.number != handle.lease:
            return LeaseRefusal.REPLACED
        return LeaseRefusal.EXPIRED if leased.until_ms <= self.now_ms else None

    def _some(self, data: st.DataObject) -> tuple[str, list[ReceiptHandle]]:
        group = data.draw(st.sampled_from(sorted({group for group, _ in self.handles})))
        own = [handle for name, handle in self.handles if name == group]
        # The newest ones mostly: others are mostly settled.
        own = data.draw(st.sampled_from([own[-10:], own[-10:], own[-100:], own]))
        return group, data.draw(st.lists(st.sampled_from(own), min_size=1, max_size=60))

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        group, handles = self._some(data)
        wanted = {each: self._why_refused(group, each) for each in handles}
        found = acknowledge(self.driver, group, handles)
        assert dict(found.refused) == {each: why for each, why in wanted.items() if why is not None}
        assert set(found.good) == {each for each, why in wanted.items() if why is None}
        for each in found.good:
            del self.queues[group, each.queue].leased[each.offset]

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), how=st.sampled_from(["kill", "power"]), operations=st.integers(1, 8))
    def be_interrupted_while_acknowledging(self, data: st.DataObject, how: str, operations: int) -> None:
        group, handles = self._some(data)
        good = [each for each in dict.fromkeys(handles) if self._why_refused(group, each) is None]
        self._interrupt(how, operations, lambda: acknowledge(self.driver, group, handles))
        left = [each for each in good if self._is_leased(group, each)]
        assert left in ([], good), "an acknowledgement was made in part"
        for each in [] if left else good:
            del self.queues[group, each.queue].leased[each.offset]

    def _is_leased(self, group: str, handle: ReceiptHandle) -> bool:
        leases = self.driver.store.leases.table.of_queue(group, (TOPIC, handle.queue))
        return leases is not None and leases.run_at(handle.lease, handle.offset) is not None

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), invisible_ms=st.sampled_from([0, 50, 5_000]))
    def change_the_time(self, data: st.DataObject, invisible_ms: int) -> None:
        group, handles = self._some(data)
        wanted = {each: self._why_refused(group, each) for each in handles}
        found = change_time(self.driver, group, handles, invisible_ms)
        assert dict(found.refused) == {each: why for each, why in wanted.items() if why is not None}
        if found.taken is None:
            assert not found.good
            return
        for each in found.taken.queues:
            for lease in each.leases:
                for offset in offsets_of(lease.ranges):
                    leased = self.queues[group, each.queue].leased[offset]
                    assert leased.attempt == lease.attempt
                    leased.number, leased.until_ms = lease.number, self._runs_out(invisible_ms)
                    handle = ReceiptHandle(self.driver.store.broker, TOPIC, each.queue, offset, lease.number)
                    self.handles.append((group, handle))

    # --- what is given up ------------------------------------------------------------------

    def _bury(self, group: str, queue: int) -> None:
        leases = self.driver.store.leases
        standing = leases.standing(group, (TOPIC, queue), MANY)
        assert standing is not None
        for run in standing.out:
            if run.attempt >= ATTEMPTS_MAX:
                count = sum(number for _, number in run.ranges)
                letters = batch(0, [b"dead"] * count)
                # The second time as if the first answer had been lost.
                for _ in range(2):
                    answer(partial(leases.bury, group, (TOPIC, queue), run, letters))

    def _is_buried(self, group: str, queue: int) -> None:
        leased = self.queues[group, queue].leased
        for offset in [
            o for o, each in leased.items() if each.attempt >= ATTEMPTS_MAX and each.until_ms <= self.now_ms
        ]:
            del leased[offset]
            self.dead[group] += 1

    @rule()
    def bury(self) -> None:
        for group, queue in self.queues:
            self._bury(group, queue)
            self._is_buried(group, queue)

    @rule(
        group=st.sampled_from(GROUPS), queue=st.integers(0, QUEUES - 1),
        how=st.sampled_from(["kill", "power"]), operations=st.integers(1, 8),
    )  # fmt: skip
    def be_interrupted_while_burying(self, group: str, queue: int, how: str, operations: int) -> None:
        self._interrupt(how, operations, lambda: self._bury(group, queue))
        self._bury(group, queue)
        self._is_buried(group, queue)

    # --- what others do to the group -------------------------------------------------------

    @rule(group=st.sampled_from(GROUPS), queue=st.integers(0, QUEUES - 1), back=st.booleans())
    def reset(self, group: str, queue: int, back: bool) -> None:
        own = self.queues[group, queue]
        to = 0 if back else self.ends[queue]
        call = partial(self.driver.store.consumer_groups.commit_offsets, group)
        asked = (GroupOffset(TOPIC, queue, to),)
        if own.leased:
            with pytest.raises(LeasesOutstanding):
                answer(partial(call, CommitOffsetsRequest(asked, reset=True)))
        answer(partial(call, CommitOffsetsRequest(asked, reset=True, force=True)))
        self.queues[group, queue] = Queue(to)

    # --- interruptions ---------------------------------------------------------------------

    def _interrupt(self, how: str, operations: int, call: object) -> None:
        """Make a call in the midst of which the store ends, and start it again."""
        if how == "power":
            if self.flush is FlushMode.ASYNC:
                self.driver.store.flush()
            self.disk.cut_at = self.disk.operations + operations
        else:
            self.disk.fail("write", 28, nth=operations)
        with suppress(BrokerUnavailable, StoreFull):
            call()  # type: ignore[operator]
        if how == "power":
            self.disk.cut_power()
        else:
            self.disk.end_session()
        end_life(self.driver.store)
        if how == "power":
            self.disk.restart()
        self.disk.faults.clear()
        self._start()

    # --- what always holds -----------------------------------------------------------------

    @invariant()
    def leases_are_as_they_must_be(self) -> None:
        if not hasattr(self, "driver"):
            return
        table = self.driver.store.leases.table
        found = {
            (group, queue): {
                offset: (number, run.until_ms, run.attempt)
                for (number, chunk), run in leases.runs.items()
                for offset in _offsets(chunk, run.mask)
            }
            for group, own in table.groups.items()
            for (_, queue), leases in own.items()
        }
        assert found == {
            key: {o: (each.number, each.until_ms, each.attempt) for o, each in queue.leased.items()}
            for key, queue in self.queues.items()
            if queue.leased
        }
        assert table.count == sum(len(queue.leased) for queue in self.queues.values())
        for group in GROUPS:
            progress = self.driver.progress(group)
            for number in range(QUEUES):
                queue = self.queues[group, number]
                assert progress[TOPIC, number] == queue.offset
                leases = table.of_queue(group, (TOPIC, number))
                assert leases is None or (leases.next, leases.begin) == (queue.next, queue.offset)
            assert self.driver.ends(dead_letter_topic(group)) == [self.dead[group]]
        whole = Picture.of(State(leases=table), {}, 0)
        assert decode_picture(encode(whole)).state().leases == table

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.store.close()


def _offsets(chunk: int, mask: int) -> list[int]:
    return [chunk * 1024 + bit for bit in range(1024) if mask >> bit & 1]


_RELAXED = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
TestLeasesAndModel = pytest.mark.timeout(300)(LeasesAndModel.TestCase)
TestLeasesAndModel.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=_RELAXED
)


class Longer(LeasesAndModel):
    """The same, for the slow suite."""


TestLonger = pytest.mark.slow(pytest.mark.timeout(1800)(Longer.TestCase))
TestLonger.settings = settings(
    max_examples=1500, stateful_step_count=50, deadline=None, suppress_health_check=_RELAXED
)
