"""Transactions against a plain model: begun, continued, checked, parked, decided, interrupted anywhere.

The model is exact. After an interruption a decision is either not made, and the transaction is as it was, or
made, and then its messages come to their queues without being asked for again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from rocketq.errors import BrokerUnavailable, StoreFull
from rocketq.errors.transaction_errors import NotTransactionOwner, TransactionDecidedOtherwise
from rocketq.model import FlushMode, TransactionState
from rocketq.protocol.documents.transactions import HalfName
from rocketq_broker.store.config import TransactionPolicy
from rocketq_broker.store.state.state import Picture, State, decode_picture, encode
from rocketq_broker.store.transactions.parked_batches import PARKING_TOPIC
from tests.support.disk import Disk
from tests.support.half_messages import decide, hand_out, send_half
from tests.support.lives import Lives
from tests.support.store_driver import answer, batch, config
from tests.support.workload import end_life

QUEUES = 2
TOPICS = st.sampled_from(["t", "u"])
GROUPS = st.sampled_from(["g", "h"])
SIZES = st.lists(st.sampled_from([0, 30, 700, 3000]), min_size=1, max_size=4)
OUTCOMES = st.sampled_from([TransactionState.COMMIT, TransactionState.ROLLBACK])
POLICY = TransactionPolicy(timeout_ms=1_000, check_interval_ms=1_000, checks_max=2, kept_ms=1_000_000_000)


@dataclass
class Part:
    """A half frame: for which creation of which topic, for which queue, and its bodies."""

    topic: tuple[str, int]
    queue: int
    bodies: list[bytes]


@dataclass
class Open:
    """An undecided transaction, as it must be."""

    id: str
    group: str
    parts: list[Part] = field(default_factory=list)
    checks: int = 0
    is_parked: bool = False


class TransactionsAndModel(Lives):
    """`self.rows`, `self.open` and `self.decided` are what must be; `self.driver` is what is."""

    def __init__(self) -> None:
        super().__init__()
        self.creations = {"t": 0, "u": 0}
        self.rows: dict[tuple[str, int], list[bytes]] = {}
        self.open: list[Open] = []
        self.decided: dict[str, tuple[str, TransactionState]] = {}
        self.parked_messages = 0
        self.begun = 0
        self.now_ms = 0

    @initialize(
        flush=st.sampled_from(list(FlushMode)), segment=st.sampled_from([4096, 20_000]),
        chunk=st.sampled_from([1, 2000, 1 << 20]), seed=st.integers(0, 1000),
    )  # fmt: skip
    def begin(self, flush: FlushMode, segment: int, chunk: int, seed: int) -> None:
        self.disk, self.flush = Disk(seed), flush
        self.settings = config(
            flush=flush, segment_bytes=segment, publish_bytes_max=chunk, queue_file_units=7, merge_bytes=0,
            transactions=POLICY,
        )  # fmt: skip
        self._start()
        for topic in self.creations:
            self.driver.create(topic, QUEUES)
        self.driver.create(PARKING_TOPIC, 1)

    # --- writing -----------------------------------------------------------------------

    @rule(topic=TOPICS, queue=st.integers(0, QUEUES - 1), sizes=SIZES)
    def send(self, topic: str, queue: int, sizes: list[int]) -> None:
        bodies = self._bodies(sizes)
        self.driver.send(topic, queue, bodies)
        self.rows.setdefault((topic, queue), []).extend(bodies)

    @rule(group=GROUPS, topic=TOPICS, queue=st.integers(0, QUEUES - 1), sizes=SIZES)
    def begin_a_transaction(self, group: str, topic: str, queue: int, sizes: list[int]) -> None:
        self.begun += 1
        made = Open(f"tx-{self.begun}", group)
        self.open.append(made)
        self._send_part(made, topic, queue, sizes)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), topic=TOPICS, queue=st.integers(0, QUEUES - 1), sizes=SIZES)
    def send_a_further_part(self, data: st.DataObject, topic: str, queue: int, sizes: list[int]) -> None:
        self._send_part(data.draw(st.sampled_from(self.open)), topic, queue, sizes)

    def _send_part(self, into: Open, topic: str, queue: int, sizes: list[int]) -> None:
        bodies = self._bodies(sizes)
        number = len(into.parts)
        for _ in range(2):
            # The second time as if the first answer had been lost.
            send_half(self.driver, into.id, queue, bodies, part=number, topic=topic, group=into.group)
        into.parts.append(Part((topic, self.creations[topic]), queue, bodies))

    # --- decisions ---------------------------------------------------------------------

    def _is_decided(self, some: Open, outcome: TransactionState) -> None:
        self.open.remove(some)
        self.decided[some.id] = (some.group, outcome)
        if outcome is TransactionState.ROLLBACK:
            return
        for part in some.parts:
            name, creation = part.topic
            if self.creations[name] == creation:
                self.rows.setdefault((name, part.queue), []).extend(part.bodies)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), outcome=OUTCOMES)
    def decide(self, data: st.DataObject, outcome: TransactionState) -> None:
        some = data.draw(st.sampled_from(self.open))
        with pytest.raises(NotTransactionOwner):
            decide(self.driver, some.id, outcome, "thief")
        decide(self.driver, some.id, outcome, some.group)
        self._is_decided(some, outcome)

    @precondition(lambda self: self.decided)
    @rule(data=st.data(), outcome=OUTCOMES)
    def decide_again(self, data: st.DataObject, outcome: TransactionState) -> None:
        name = data.draw(st.sampled_from(sorted(self.decided)))
        group, before = self.decided[name]
        if outcome is before:
            assert decide(self.driver, name, outcome, group).messages == {}
            return
        with pytest.raises(TransactionDecidedOtherwise):
            decide(self.driver, name, outcome, group)

    @precondition(lambda self: self.open)
    @rule(
        data=st.data(),
        outcome=OUTCOMES,
        how=st.sampled_from(["kill", "power"]),
        operations=st.integers(1, 12),
    )
    def be_interrupted_while_deciding(
        self, data: st.DataObject, outcome: TransactionState, how: str, operations: int
    ) -> None:
        some = data.draw(st.sampled_from(self.open))
        self._interrupt(how, operations, lambda: decide(self.driver, some.id, outcome, some.group))
        if self.driver.store.transactions.table.find(some.id) is None:
            decide(self.driver, some.id, outcome, some.group)
            self._is_decided(some, outcome)

    @rule(
        group=GROUPS, topic=TOPICS, sizes=SIZES, how=st.sampled_from(["kill", "power"]),
        operations=st.integers(1, 8),
    )  # fmt: skip
    def be_interrupted_while_beginning(
        self, group: str, topic: str, sizes: list[int], how: str, operations: int
    ) -> None:
        self.begun += 1
        made, bodies = Open(f"tx-{self.begun}", group), self._bodies(sizes)
        name = HalfName(made.id, group, 0)
        self._interrupt(
            how,
            operations,
            lambda: answer(
                lambda done: self.driver.store.append(topic, [batch(0, bodies)], done, stage=name)
            ),
        )
        found = self.driver.store.transactions.table.find(made.id)
        if found is not None:
            made.parts.append(Part((topic, self.creations[topic]), 0, bodies))
            self.open.append(made)

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

    # --- checks ------------------------------------------------------------------------

    @rule(group=GROUPS, count=st.integers(1, 3))
    def check(self, group: str, count: int) -> None:
        """All that is open is due, some for the first time and some for the second."""
        table = self.driver.store.transactions.table
        times = [max(each.begun_at_ms, each.checked_at_ms) for each in table.open.values()]
        self.now_ms = max([self.now_ms, *times]) + 1_000
        may_be = {each.id for each in self.open if each.group == group and each.checks < POLICY.checks_max}
        handed = hand_out(self.driver, self.now_ms, count, group)
        assert len(handed) == min(count, len(may_be - self._parked()))
        for name in handed:
            assert name in may_be
            next(each for each in self.open if each.id == name).checks += 1

    def _parked(self) -> set[str]:
        return {each.id for each in self.open if each.is_parked}

    @rule()
    def park(self) -> None:
        operations = self.driver.store.transactions
        self.now_ms += 1_000
        due = operations.to_park(self.now_ms, 10)
        wanted = {each.id for each in self.open if each.checks == POLICY.checks_max and not each.is_parked}
        assert {each.id for each in due} == wanted
        for each in due:
            batches = operations.parked_batches(each)
            self.parked_messages += sum(one.rows for one in batches)
            answer(partial(operations.park, each, batches))
            answer(partial(operations.park, each, batches))
            next(one for one in self.open if one.id == each.id).is_parked = True

    @rule(topic=TOPICS)
    def delete_and_create_anew(self, topic: str) -> None:
        self.driver.delete(topic)
        self.driver.create(topic, QUEUES)
        self.creations[topic] += 1
        for queue in range(QUEUES):
            self.rows.pop((topic, queue), None)

    # --- what always holds -----------------------------------------------------------------

    @invariant()
    def queues_and_transactions_are_as_they_must_be(self) -> None:
        if not hasattr(self, "driver"):
            return
        for topic in self.creations:
            ends = [len(self.rows.get((topic, queue), [])) for queue in range(QUEUES)]
            assert self.driver.ends(topic) == ends
        assert self.driver.ends(PARKING_TOPIC) == [self.parked_messages]
        table = self.driver.store.transactions.table
        found = {
            each.id: (each.group, [frame.messages for frame in each.frames], each.checks, each.is_parked)
            for each in table.open.values()
        }
        assert found == {
            each.id: (each.group, [len(part.bodies) for part in each.parts], each.checks, each.is_parked)
            for each in self.open
        }
        assert table.half_messages == sum(len(part.bodies) for each in self.open for part in each.parts)
        assert dict(table.decided.items()) == {
            name: outcome is TransactionState.COMMIT for name, (_, outcome) in self.decided.items()
        }
        assert not len(table.copying)
        waiting = sorted((each for each in self.open if not each.is_parked), key=lambda each: each.group)
        assert {name: len(group) for name, group in table.groups.items()} == {
            name: len(list(each)) for name, each in groupby(waiting, key=lambda each: each.group)
        }
        whole = Picture.of(State(transactions=table), {}, 0)
        assert decode_picture(encode(whole)).state().transactions == table

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            for topic in self.creations:
                for queue in range(QUEUES):
                    assert self.driver.bodies(topic, queue) == self.rows.get((topic, queue), [])
            self.driver.store.close()


_RELAXED = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
TestTransactionsAndModel = TransactionsAndModel.TestCase
TestTransactionsAndModel.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=_RELAXED
)


class Longer(TransactionsAndModel):
    """The same, for the slow suite."""


TestLonger = pytest.mark.slow(pytest.mark.timeout(1800)(Longer.TestCase))
TestLonger.settings = settings(
    max_examples=1500, stateful_step_count=50, deadline=None, suppress_health_check=_RELAXED
)
