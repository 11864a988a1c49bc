"""The accumulator: when a lane is due, what a batch holds, and what a failure takes with it."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import CancelledError

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rocketq.errors import SendFailed
from rocketq.model import MessageQueue, SendResult, SendStatus
from rocketq.producing.accumulation.accumulator import (
    MESSAGE_OVERHEAD_BYTES,
    NO_FIELDS,
    Accumulator,
    Batch,
    Destination,
    Fields,
)

FREE = Destination("t")
ORDERED = Destination("t", MessageQueue("t", "a", 0))
KEYED = Destination("t", MessageQueue("t", "a", 0), is_keyed=True)
KEYED_ELSEWHERE = Destination("t", MessageQueue("t", "b", 0), is_keyed=True)
FAILED = SendFailed("t", ["a: no"], 1)


def add(
    lanes: Accumulator,
    destination: Destination,
    now_ms: int = 0,
    size: int = 10,
    order: bytes | None = None,
    fields: Fields = NO_FIELDS,
) -> tuple[Batch, int, bool]:
    return lanes.add(destination, b"x" * size, fields, order, 0, lambda: now_ms)


def accumulator(linger_ms: int = 5, batch_bytes: int = 100, batch_messages: int = 4) -> Accumulator:
    return Accumulator(linger_ms=linger_ms, batch_bytes=batch_bytes, batch_messages=batch_messages)


def taken(lanes: Accumulator, now_ms: int = 0) -> Batch:
    batch = lanes.due(now_ms)
    assert batch is not None
    return batch


def settle(lanes: Accumulator, batch: Batch, failed: Collection[int] = ()) -> None:
    """Give a batch its outcome: the rows in `failed` have failed."""
    error = FAILED if failed else None
    lanes.done(batch, failed, error)
    stored = [row for row in batch.live_rows() or range(len(batch)) if row not in failed]
    result = SendResult(SendStatus.SEND_OK, MessageQueue("t", "a", 0), 0, len(stored))
    batch.outcome.settle(len(batch), [(np.array(stored, np.int64), result)], error)


def test_a_message_waits_for_others_no_longer_than_the_linger_time() -> None:
    lanes = accumulator()
    add(lanes, FREE, now_ms=100)
    add(lanes, FREE, now_ms=104)
    assert lanes.next_due_ms() == 105
    assert lanes.due(104) is None
    assert len(taken(lanes, 105)) == 2


def test_a_batch_is_due_at_once_when_it_has_enough_messages_or_bytes() -> None:
    by_count = accumulator()
    for _ in range(4):
        add(by_count, FREE)
    assert len(taken(by_count)) == 4
    by_bytes = accumulator()
    add(by_bytes, FREE, size=60)
    add(by_bytes, FREE, size=60)
    assert taken(by_bytes).size == 60, "the second would overfill the batch"
    assert by_bytes.due(0) is None


def test_a_message_larger_than_a_batch_is_a_batch_of_its_own() -> None:
    lanes = accumulator()
    add(lanes, FREE)
    add(lanes, FREE, size=500)
    add(lanes, FREE)
    assert [taken(lanes).size, taken(lanes).size] == [10, 500]
    assert lanes.due(0) is None


def test_add_says_when_somebody_should_look() -> None:
    lanes = accumulator()
    news = [add(lanes, FREE)[2] for _ in range(5)]
    assert news == [True, False, False, True, True], "a new batch, a full one, and the next new one"


def test_key_tag_and_properties_count_as_bytes() -> None:
    lanes = accumulator()
    batch, _, is_news = add(lanes, FREE, size=1, fields=Fields(b"key", "tag", {"name": "x" * 90}))
    assert batch.size == 101
    assert is_news
    assert lanes.buffered_bytes == 101 + MESSAGE_OVERHEAD_BYTES


def test_a_flush_makes_everything_due() -> None:
    lanes = accumulator()
    add(lanes, FREE)
    add(lanes, ORDERED)
    lanes.hurry()
    assert {taken(lanes).destination, taken(lanes).destination} == {FREE, ORDERED}


def test_lanes_take_turns() -> None:
    lanes = accumulator(batch_messages=1)
    others = [Destination(name) for name in "ab"]
    for destination in others * 3:
        add(lanes, destination)
    assert [taken(lanes).destination for _ in range(6)] == others * 3


def test_an_ordered_lane_has_one_batch_under_way_a_free_lane_any_number() -> None:
    lanes = accumulator()
    for destination in (ORDERED, FREE):
        for _ in range(8):
            add(lanes, destination)
    due = [taken(lanes) for _ in range(3)]
    assert [b.destination for b in due] == [ORDERED, FREE, FREE]
    assert lanes.due(0) is None
    assert lanes.next_due_ms() is None, "what waits behind a batch is woken by its outcome"
    settle(lanes, due[0])
    assert taken(lanes).destination == ORDERED


def test_a_failed_ordered_message_takes_out_only_what_waits_behind_it_in_order() -> None:
    lanes = accumulator(batch_messages=2, linger_ms=0)
    for order in (b"k", b"kept", b"k", b"other", b"k"):
        add(lanes, KEYED, order=order)
    settle(lanes, taken(lanes), failed=[0])
    second = taken(lanes)
    assert second.live_rows() == [1]
    assert second.outcome.taken_out == {0: FAILED}
    settle(lanes, second)
    last = taken(lanes)
    assert last.live_rows() == []
    settle(lanes, last)
    assert lanes.is_empty
    assert lanes.buffered_bytes == 0


def test_a_failed_batch_to_an_explicit_queue_takes_out_all_behind_it() -> None:
    lanes = accumulator(batch_messages=1)
    for _ in range(3):
        add(lanes, ORDERED)
    settle(lanes, taken(lanes), failed=[0])
    assert [taken(lanes).live_rows() for _ in range(1)] == [[]]


def test_a_failed_batch_without_an_order_fails_no_other() -> None:
    lanes = accumulator(batch_messages=1)
    add(lanes, FREE)
    add(lanes, FREE)
    settle(lanes, taken(lanes), failed=[0])
    second = taken(lanes)
    assert second.live_rows() is None
    settle(lanes, second)
    assert lanes.is_empty


def test_a_key_keeps_its_lane_while_any_of_its_messages_has_no_outcome() -> None:
    lanes = accumulator(batch_messages=1)
    add(lanes, KEYED, order=b"k")
    first = taken(lanes)
    add(lanes, KEYED_ELSEWHERE, order=b"k")
    assert lanes.due(0) is None, "it would overtake the first"
    settle(lanes, first)
    second = taken(lanes)
    assert second.destination == KEYED
    settle(lanes, second)
    add(lanes, KEYED_ELSEWHERE, order=b"k")
    assert taken(lanes).destination == KEYED_ELSEWHERE


def test_a_message_under_way_cannot_be_taken_out() -> None:
    lanes = accumulator()
    batch, row, _ = add(lanes, FREE)
    lanes.hurry()
    assert taken(lanes) is batch
    assert not lanes.take_out(batch, row, FAILED)
    assert batch.live_rows() is None


class AccumulatorMachine(RuleBasedStateMachine):
    """Any interleaving: every message has one outcome, orders hold, bytes add up."""

    def __init__(self) -> None:
        super().__init__()
        self.lanes = accumulator(linger_ms=3, batch_bytes=50, batch_messages=3)
        self.now_ms = 0
        #: The number of the message at each place; the numbers stored at each destination, in order.
        self.numbers: dict[tuple[Batch, int], int] = {}
        self.sizes: dict[tuple[Batch, int], int] = {}
        self.sent: dict[Destination, list[tuple[bytes | None, int]]] = {}
        self.under_way: list[Batch] = []
        self.number = 0

    def open(self) -> list[tuple[Batch, int]]:
        """Return the places of messages without an outcome."""
        return [
            (batch, row)
            for batch, row in self.numbers
            if not batch.outcome.is_known and row not in batch.outcome.taken_out
        ]

    @rule(
        destination=st.sampled_from([FREE, ORDERED, KEYED, KEYED_ELSEWHERE]),
        size=st.integers(1, 60),
        key=st.sampled_from([b"x", b"y"]),
    )
    def add(self, destination: Destination, size: int, key: bytes) -> None:
        self.number += 1
        order = key if destination.is_keyed else None
        batch, row, _ = add(self.lanes, destination, self.now_ms, size, order)
        assert batch not in self.under_way
        self.numbers[batch, row], self.sizes[batch, row] = self.number, size

    @rule(ms=st.integers(0, 4))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms

    @rule(flushing=st.booleans())
    def take(self, flushing: bool) -> None:
        if flushing:
            self.lanes.hurry()
        while (batch := self.lanes.due(self.now_ms)) is not None:
            assert 0 < len(batch) <= 3
            assert len(batch) == 1 or batch.size <= 50
            self.under_way.append(batch)
        due_ms = self.lanes.next_due_ms()
        assert due_ms is None or due_ms > self.now_ms

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if places := self.open():
            batch, row = data.draw(st.sampled_from(places))
            assert self.lanes.take_out(batch, row, CancelledError()) == (batch not in self.under_way)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        batch = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        live = batch.live_rows()
        rows = list(range(len(batch))) if live is None else live
        failed = data.draw(st.lists(st.sampled_from(rows), unique=True)) if rows else []
        settle(self.lanes, batch, failed)
        done = self.sent.setdefault(batch.destination, [])
        done += [
            (batch.orders[row] if batch.orders else None, self.numbers[batch, row])
            for row in rows
            if row not in failed
        ]
        if failed and batch.destination.queue is not None:
            orders = {batch.orders[row] for row in failed}
            behind = [place for place in self.open() if place[0].destination == batch.destination]
            assert not any(other.orders[row] in orders for other, row in behind)

    @invariant()
    def the_buffer_counts_exactly_what_has_no_outcome(self) -> None:
        counted = sum(self.sizes[place] + MESSAGE_OVERHEAD_BYTES for place in self.open())
        assert self.lanes.buffered_bytes == counted
        assert not (self.lanes.is_empty and self.open())

    @invariant()
    def an_ordered_lane_is_sent_in_the_order_of_submission(self) -> None:
        numbers = [number for _, number in self.sent.get(ORDERED, [])]
        assert numbers == sorted(numbers)
        assert sum(b.destination == ORDERED for b in self.under_way) <= 1

    @invariant()
    def a_key_is_sent_in_the_order_of_submission_whatever_its_queue(self) -> None:
        for key in (b"x", b"y"):
            assert sum(key in batch.orders for batch in self.under_way) <= 1
        for destination in (KEYED, KEYED_ELSEWHERE):
            for key in (b"x", b"y"):
                numbers = [number for order, number in self.sent.get(destination, []) if order == key]
                assert numbers == sorted(numbers)


AccumulatorMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAccumulator = AccumulatorMachine.TestCase
