"""Numbered sends against a plain model: sent, repeated, late, together, interrupted anywhere.

The model is exact: each send is in its queues once, however often it came, and every repetition has the first
answer. After an interruption a send is stored or not; its repetition stores it if it was not.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from rocketq.errors import BrokerUnavailable, StoreFull
from rocketq.errors.sending_errors import SendOutdated
from rocketq.model import FlushMode, Message
from rocketq_broker.store.commit.small_batches import Addressed, QueueMessage
from rocketq_broker.store.machines.slot_table import SlotTable
from rocketq_broker.store.state.state import Picture, State, decode_picture, encode
from rocketq_broker.store.store import AppendOutcome
from tests.support.disk import Disk
from tests.support.lives import Lives
from tests.support.numbered_sends import numbered, send_numbered
from tests.support.store_driver import answer, batch, burst, config
from tests.support.workload import end_life

QUEUES = 2
SLOTS = st.sampled_from([1, 2, 3])
#: Of each batch: its queue, and the sizes of its messages. A batch of one message comes without Arrow.
BATCHES = st.lists(
    st.tuples(
        st.integers(0, QUEUES - 1), st.lists(st.sampled_from([0, 30, 700, 3000]), min_size=1, max_size=3)
    ),
    min_size=1,
    max_size=3,
)
HOW = st.sampled_from(["kill", "power"])


@dataclass
class Sent:
    """The last send of a slot: its sequence, its batches and its answer."""

    sequence: int
    batches: list[Addressed]
    outcome: AppendOutcome


class NumbersAndModel(Lives):
    """`self.rows` and `self.last` are what must be; `self.driver` is what is."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[int, list[bytes]] = {queue: [] for queue in range(QUEUES)}
        self.last: dict[int, Sent] = {}
        self.sequence = 0

    @initialize(
        flush=st.sampled_from(list(FlushMode)), segment=st.sampled_from([4096, 20_000]),
        merge=st.sampled_from([0, 1 << 14]), seed=st.integers(0, 1000),
    )  # fmt: skip
    def begin(self, flush: FlushMode, segment: int, merge: int, seed: int) -> None:
        self.disk, self.flush = Disk(seed), flush
        self.settings = config(flush=flush, segment_bytes=segment, queue_file_units=7, merge_bytes=merge)
        self._start()
        self.driver.create("t", QUEUES)

    def _made(self, shape: list[tuple[int, list[int]]]) -> list[Addressed]:
        made: list[Addressed] = []
        for queue, sizes in shape:
            bodies = self._bodies(sizes)
            made.append(QueueMessage(queue, Message(bodies[0])) if len(bodies) == 1 else batch(queue, bodies))
        return made

    def _is_stored(self, slot: int, sequence: int, batches: list[Addressed], outcome: AppendOutcome) -> None:
        """Hold the answer to a send against what is in the queues, and note both."""
        for each, place in zip(batches, outcome.appended, strict=True):
            assert isinstance(each, QueueMessage) or hasattr(each, "batch")
            bodies = each.batch.column("body").to_pylist()  # type: ignore[union-attr]
            assert place.queue == each.queue
            assert place.offset == len(self.rows[each.queue])
            self.rows[each.queue].extend(bodies)
        self.last[slot] = Sent(sequence, batches, outcome)

    # --- what happens ------------------------------------------------------------------

    @rule(slot=SLOTS, shape=BATCHES, skipped=st.integers(0, 3))
    def send(self, slot: int, shape: list[tuple[int, list[int]]], skipped: int) -> None:
        self.sequence += 1 + skipped
        made = self._made(shape)
        self._is_stored(slot, self.sequence, made, send_numbered(self.driver, (slot, self.sequence), made))

    @precondition(lambda self: self.last)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.last)))
        before = self.last[slot]
        again = send_numbered(self.driver, (slot, before.sequence), before.batches)
        assert again == before.outcome

    @precondition(lambda self: self.last)
    @rule(data=st.data(), shape=BATCHES)
    def come_late(self, data: st.DataObject, shape: list[tuple[int, list[int]]]) -> None:
        slot = data.draw(st.sampled_from(sorted(self.last)))
        with pytest.raises(SendOutdated):
            send_numbered(self.driver, (slot, self.last[slot].sequence - 1), self._made(shape))

    @rule(shapes=st.lists(st.tuples(SLOTS, BATCHES), min_size=1, max_size=3, unique_by=lambda each: each[0]))
    def send_all_at_once_and_twice(self, shapes: list[tuple[int, list[tuple[int, list[int]]]]]) -> None:
        """One commit group with new sends of several slots, each of them twice."""
        self.sequence += 1
        made = [(slot, self._made(shape)) for slot, shape in shapes]
        calls = [numbered(self.driver, (slot, self.sequence), batches) for slot, batches in [*made, *made]]
        outcomes = burst(self.driver.store, calls)
        assert outcomes[: len(made)] == outcomes[len(made) :]
        for (slot, batches), outcome in zip(made, outcomes, strict=False):
            self.last[slot] = Sent(self.sequence, batches, outcome)
            for each, place in zip(batches, outcome.appended, strict=True):
                rows = self.rows[each.queue]
                rows.extend([b""] * (place.offset + place.count - len(rows)))
                bodies = each.batch.column("body").to_pylist()  # type: ignore[union-attr]
                rows[place.offset : place.offset + place.count] = bodies

    @rule(slot=SLOTS, shape=BATCHES, how=HOW, operations=st.integers(1, 8))
    def be_interrupted(
        self, slot: int, shape: list[tuple[int, list[int]]], how: str, operations: int
    ) -> None:
        """Have the answer lost with the broker; then send again, twice."""
        self.sequence += 1
        made = self._made(shape)
        if how == "power":
            if self.flush is FlushMode.ASYNC:
                self.driver.store.flush()
            self.disk.cut_at = self.disk.operations + operations
        else:
            self.disk.fail("write", 28, nth=operations)
        with suppress(BrokerUnavailable, StoreFull):
            answer(numbered(self.driver, (slot, self.sequence), made))
        if how == "power":
            self.disk.cut_power()
        else:
            self.disk.end_session()
        end_life(self.driver.store)
        if how == "power":
            self.disk.restart()
        self.disk.faults.clear()
        self._start()
        self._is_stored(slot, self.sequence, made, send_numbered(self.driver, (slot, self.sequence), made))
        assert send_numbered(self.driver, (slot, self.sequence), made) == self.last[slot].outcome

    # --- what always holds -----------------------------------------------------------------

    @invariant()
    def each_send_is_stored_once_and_known(self) -> None:
        if not hasattr(self, "driver"):
            return
        assert self.driver.ends("t") == [len(self.rows[queue]) for queue in range(QUEUES)]
        table: SlotTable = self.driver.store.slots
        for slot, sent in self.last.items():
            known = table.find(slot)
            assert known is not None
            assert (known.sequence, known.appended) == (sent.sequence, sent.outcome.appended)
        read = decode_picture(encode(Picture.of(State(slots=table), {}, 0))).state().slots
        assert read == table

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            for queue in range(QUEUES):
                assert self.driver.bodies("t", queue) == self.rows[queue]
            self.driver.store.close()


_RELAXED = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
TestNumbersAndModel = pytest.mark.timeout(300)(NumbersAndModel.TestCase)
TestNumbersAndModel.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=_RELAXED
)


class Longer(NumbersAndModel):
    """The same, for the slow suite."""


TestLonger = pytest.mark.slow(pytest.mark.timeout(1800)(Longer.TestCase))
TestLonger.settings = settings(
    max_examples=1500, stateful_step_count=50, deadline=None, suppress_health_check=_RELAXED
)
