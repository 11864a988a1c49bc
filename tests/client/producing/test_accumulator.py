"""The accumulator: when a lane is due, what a batch holds, and what a failure takes with it."""

from __future__ import annotations

from concurrent.futures import Future

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rocketq.model import Message, MessageQueue
from rocketq.producing.accumulator import Accumulator, Batch, Destination, Waiting

FREE = Destination("t")
ORDERED = Destination("t", MessageQueue("t", "a", 0))
KEYED = Destination("t", MessageQueue("t", "a", 0), is_keyed=True)
KEYED_ELSEWHERE = Destination("t", MessageQueue("t", "b", 0), is_keyed=True)


def waiting(size: int = 10, order: bytes | None = None, body: bytes = b"") -> Waiting:
    return Waiting(Message(body), Future(), size, order)


def accumulator(linger_ms: int = 5, batch_bytes: int = 100, batch_messages: int = 4) -> Accumulator:
    return Accumulator(linger_ms=linger_ms, batch_bytes=batch_bytes, batch_messages=batch_messages)


def test_a_message_waits_for_others_no_longer_than_the_linger_time() -> None:
    lanes = accumulator()
    lanes.add(FREE, waiting(), now_ms=100)
    lanes.add(FREE, waiting(), now_ms=104)
    assert lanes.next_due_ms() == 105
    assert lanes.due(104) == []
    (batch,) = lanes.due(105)
    assert len(batch.messages) == 2


def test_a_full_lane_is_due_at_once_by_count_and_by_bytes() -> None:
    by_count = accumulator()
    for _ in range(4):
        by_count.add(FREE, waiting(), 0)
    assert len(by_count.due(0)) == 1
    by_bytes = accumulator()
    by_bytes.add(FREE, waiting(60), 0)
    by_bytes.add(FREE, waiting(60), 0)
    (batch,) = by_bytes.due(0)
    assert [w.size for w in batch.messages] == [60], "the second would overfill the batch"


def test_a_message_larger_than_a_batch_is_a_batch_of_its_own() -> None:
    lanes = accumulator()
    lanes.add(FREE, waiting(500), 0)
    (batch,) = lanes.due(0)
    assert batch.size == 500


def test_add_says_when_somebody_should_look() -> None:
    lanes = accumulator()
    assert lanes.add(FREE, waiting(), 0), "the lane is new: its linger begins"
    assert not lanes.add(FREE, waiting(), 0)
    assert not lanes.add(FREE, waiting(), 0)
    assert lanes.add(FREE, waiting(), 0), "the lane is full"


def test_a_flush_makes_everything_due() -> None:
    lanes = accumulator()
    lanes.add(FREE, waiting(), 0)
    lanes.add(ORDERED, waiting(), 0)
    assert len(lanes.due(0, flushing=True)) == 2


def test_an_ordered_lane_has_one_batch_under_way_a_free_lane_any_number() -> None:
    lanes = accumulator()
    for destination in (ORDERED, FREE):
        for _ in range(8):
            lanes.add(destination, waiting(), 0)
    due = lanes.due(0)
    assert [b.destination for b in due] == [ORDERED, FREE, FREE]
    assert lanes.next_due_ms() is None, "what waits behind a batch is woken by its outcome"
    assert lanes.done(due[0], ()) == []
    assert [b.destination for b in lanes.due(0)] == [ORDERED]


def test_a_failed_ordered_batch_fails_only_what_waits_behind_it_in_order() -> None:
    lanes = accumulator(batch_messages=1)
    first, same, other = waiting(order=b"k"), waiting(order=b"k"), waiting(order=b"other")
    for message in (first, same, other):
        lanes.add(ORDERED, message, 0)
    (batch,) = lanes.due(0)
    assert batch.messages == (first,)
    assert lanes.done(batch, batch.messages) == [same]
    (after,) = lanes.due(0)
    assert after.messages == (other,)


def test_a_failed_batch_to_an_explicit_queue_fails_all_behind_it() -> None:
    lanes = accumulator(batch_messages=1)
    for _ in range(3):
        lanes.add(ORDERED, waiting(), 0)
    (batch,) = lanes.due(0)
    assert len(lanes.done(batch, batch.messages)) == 2
    assert lanes.is_empty
    assert lanes.buffered_bytes == 0


def test_a_key_keeps_its_lane_while_any_of_its_messages_has_no_outcome() -> None:
    lanes = accumulator(batch_messages=1)
    lanes.add(KEYED, waiting(order=b"k"), 0)
    (first,) = lanes.due(0)
    lanes.add(KEYED_ELSEWHERE, waiting(order=b"k"), 0)
    assert lanes.due(0) == [], "it would overtake the first"
    assert lanes.done(first, ()) == []
    (second,) = lanes.due(0)
    assert second.destination == KEYED
    assert lanes.done(second, ()) == []
    lanes.add(KEYED_ELSEWHERE, waiting(order=b"k"), 0)
    (third,) = lanes.due(0)
    assert third.destination == KEYED_ELSEWHERE


def test_a_failed_batch_without_an_order_fails_no_other() -> None:
    lanes = accumulator(batch_messages=1)
    lanes.add(FREE, waiting(), 0)
    lanes.add(FREE, waiting(), 0)
    first, second = lanes.due(0)
    assert lanes.done(first, first.messages) == []
    assert lanes.done(second, ()) == []
    assert lanes.is_empty


class AccumulatorMachine(RuleBasedStateMachine):
    """Any interleaving: every message has one outcome, orders hold, bytes add up."""

    def __init__(self) -> None:
        super().__init__()
        self.lanes = accumulator(linger_ms=3, batch_bytes=50, batch_messages=3)
        self.now_ms = 0
        self.sent: dict[Destination, list[tuple[bytes | None, int]]] = {}
        self.open: dict[int, Waiting] = {}
        self.under_way: list[Batch] = []
        self.number = 0

    @rule(
        destination=st.sampled_from([FREE, ORDERED, KEYED, KEYED_ELSEWHERE]),
        size=st.integers(1, 60),
        key=st.sampled_from([b"x", b"y"]),
    )
    def add(self, destination: Destination, size: int, key: bytes) -> None:
        self.number += 1
        message = waiting(size, key if destination.is_keyed else None, str(self.number).encode())
        self.open[self.number] = message
        self.lanes.add(destination, message, self.now_ms)

    @rule(ms=st.integers(0, 4))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms

    @rule(flushing=st.booleans())
    def take(self, flushing: bool) -> None:
        for batch in self.lanes.due(self.now_ms, flushing):
            assert 0 < len(batch.messages) <= 3
            assert len(batch.messages) == 1 or batch.size <= 50
            self.under_way.append(batch)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        batch = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        failed = data.draw(st.lists(st.sampled_from(batch.messages), unique_by=id))
        doomed = self.lanes.done(batch, failed)
        for message in (*batch.messages, *doomed):
            del self.open[int(message.message.body)]
        done = self.sent.setdefault(batch.destination, [])
        done += [(w.order, int(w.message.body)) for w in batch.messages if w not in failed]
        if batch.destination.is_keyed:
            of_failed = {w.order for w in failed}
            assert not any(w.order in of_failed for w in self.open.values())

    @invariant()
    def the_buffer_counts_exactly_what_has_no_outcome(self) -> None:
        assert self.lanes.buffered_bytes == sum(w.size for w in self.open.values())
        assert self.lanes.is_empty == (not self.open)

    @invariant()
    def an_ordered_lane_is_sent_in_the_order_of_submission(self) -> None:
        numbers = [number for _, number in self.sent.get(ORDERED, [])]
        assert numbers == sorted(numbers)
        assert sum(b.destination == ORDERED for b in self.under_way) <= 1

    @invariant()
    def a_key_is_sent_in_the_order_of_submission_whatever_its_queue(self) -> None:
        for key in (b"x", b"y"):
            assert sum(any(w.order == key for w in batch.messages) for batch in self.under_way) <= 1
        for destination in (KEYED, KEYED_ELSEWHERE):
            for key in (b"x", b"y"):
                numbers = [number for order, number in self.sent.get(destination, []) if order == key]
                assert numbers == sorted(numbers)


AccumulatorMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAccumulator = AccumulatorMachine.TestCase
