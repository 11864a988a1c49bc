"""What a member holds of a queue: no message is passed over, whatever the order of acknowledgements."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rocketq.consuming.consumed_message import ConsumedMessage, Delivery
from rocketq.consuming.fetching.process_queue import FlowLimits, ProcessQueue, Retry
from rocketq.consuming.retries import Failure
from rocketq.model import Message, MessageQueue
from rocketq.protocol.frame_slices import FrameSlice, open_frames
from rocketq.protocol.message_schema import from_messages
from tests.protocol.strategies import messages_frame

QUEUE = MessageQueue("t", "a", 0)


def part(offset: int, rows: int) -> FrameSlice:
    messages = [Message(b"%d" % (offset + n), b"k", "tag", {"p": "q"}, 7) for n in range(rows)]
    [opened] = open_frames(messages_frame(from_messages(messages), offset, stored_at_us=5), offset)
    return opened


def nothing_fails(delivery: Delivery, row: int, failure: Failure) -> None:
    raise AssertionError(f"{delivery.offsets[row]} failed")


def filled(rows: int) -> ProcessQueue:
    held = ProcessQueue(QUEUE, 0, rows, rows, "i")
    held.slices.extend([part(0, rows)])
    return held


def handed_out(held: ProcessQueue, rows: int) -> Delivery:
    delivery = held.hand_out(rows, nothing_fails)
    assert delivery is not None
    return delivery


def test_a_message_is_a_view_with_all_that_a_stored_message_has() -> None:
    message = handed_out(filled(3), 3).messages()[1]
    assert (message.body, message.key, message.tag, message.properties) == (b"1", b"k", "tag", {"p": "q"})
    assert (message.queue, message.offset, message.born_at_us, message.stored_at_us) == (QUEUE, 1, 7, 5)
    assert (message.message_id, message.attempt) == ("a:t:0:1", 1)
    assert "a:t:0:1" in repr(message)


def test_the_offset_stops_at_the_first_message_that_is_not_acknowledged() -> None:
    held = filled(10)
    first, second = handed_out(held, 4), handed_out(held, 3)
    second.acknowledge()
    for row in (3, 1, 0):
        first.messages()[row].ack()
    assert held.committable() == 2
    first.messages()[2].ack()
    assert held.committable() == 7
    assert held.is_idle


def test_acknowledging_up_to_an_offset_passes_over_gaps_in_the_offsets() -> None:
    held = filled(10)
    delivery = handed_out(held, 6)
    delivery.acknowledge_up_to(3)
    assert held.committable() == 4
    delivery.acknowledge_up_to(99)
    assert held.committable() == 6


def test_a_failed_message_comes_again_alone_and_holds_the_offset() -> None:
    held = filled(10)
    delivery = handed_out(held, 10)
    held.retry_later(delivery, 4, due_ms=1_000)
    delivery.acknowledge()
    assert held.committable() == 4
    assert held.is_idle, "nobody works on a message that waits"
    assert held.due_retry(999) is None
    again = held.due_retry(1_000)
    assert again is not None
    assert [(m.offset, m.attempt, m.body) for m in again.messages()] == [(4, 2, b"4")]
    assert not held.is_idle
    again.acknowledge()
    assert held.committable() == 10


def test_what_is_put_back_comes_again_in_order_the_failed_one_first_and_alone() -> None:
    held = filled(5)
    delivery = handed_out(held, 4)
    delivery.acknowledge(0, 1)
    held.put_back(delivery, 1, until_ms=50)
    assert held.committable() == 1
    assert not held.may_hand_out(49)
    assert held.may_hand_out(50)
    again = handed_out(held, 4)
    assert [(m.offset, m.attempt) for m in again.messages()] == [(1, 2)]
    again.acknowledge()
    assert [(m.offset, m.attempt) for m in handed_out(held, 2).messages()] == [(2, 1), (3, 1)]


def test_only_what_is_due_later_is_waited_for() -> None:
    held = filled(5)
    delivery = handed_out(held, 5)
    held.retry_later(delivery, 0, due_ms=30)
    held.retry_later(delivery, 1, due_ms=20)
    assert [held.next_due_ms(now) for now in (10, 20, 30)] == [20, 30, None]


def test_only_the_last_delivery_of_a_queue_is_recalled() -> None:
    held = filled(10)
    first, second = handed_out(held, 3), handed_out(held, 3)
    second.acknowledge(0, 1)
    held.leave()
    assert (first.is_recalled, second.is_recalled) == (False, True)
    held.take_back(second, 1)
    assert (held.is_idle, held.committable()) == (False, 0)
    first.acknowledge()
    assert (held.is_idle, held.committable()) == (True, 4)


def test_what_a_recalled_delivery_gives_back_is_not_committed() -> None:
    held = filled(10)
    delivery = handed_out(held, 6)
    delivery.acknowledge(0, 2)
    held.leave()
    assert delivery.is_recalled
    held.take_back(delivery, 2)
    assert held.is_idle
    assert held.committable() == 2


def test_the_limits_of_a_queue_count_what_is_not_acknowledged() -> None:
    held = filled(10)
    held.known_max = 100
    size = held.held_bytes
    generous = FlowLimits(100, size * 10, 100)
    assert held.admits(generous, size)
    assert not held.admits(FlowLimits(9, size * 10, 100), size)
    assert not held.admits(FlowLimits(100, size, 100), size)
    assert not held.admits(FlowLimits(100, size * 10, 9), size)
    delivery = handed_out(held, 10)
    assert not held.admits(FlowLimits(9, size * 10, 100), size)
    delivery.acknowledge()
    assert held.admits(FlowLimits(0, 1, 0), size), "with nothing held one pull is always made"


def test_queues_share_the_limits_of_a_consumer_evenly() -> None:
    each = FlowLimits(1_000, 100 << 20, 2_000).shared_by(20, messages_max=10_000, bytes_max=64 << 20)
    assert each == FlowLimits(500, (64 << 20) // 20, 2_000)
    assert FlowLimits(10, 10, None).shared_by(50, 7, 7) == FlowLimits(1, 1, None)


class OneQueue(RuleBasedStateMachine):
    """Fetching, handing out, acknowledging, failing and sending back in any order, against sets."""

    def __init__(self) -> None:
        super().__init__()
        self.held = ProcessQueue(QUEUE, 0, 0, 1_000, "i")
        self.now_ms = 0
        self.out: dict[int, ConsumedMessage] = {}
        self.waiting: set[int] = set()
        self.returning: dict[int, Retry] = {}
        self.done: set[int] = set()

    @initialize(rows=st.integers(1, 6))
    def first(self, rows: int) -> None:
        self.fetch(rows)

    @rule(rows=st.integers(1, 6))
    def fetch(self, rows: int) -> None:
        self.held.slices.extend([part(self.held.fetch, rows)])
        self.held.fetch += rows

    @rule(rows=st.integers(1, 8))
    def hand_out(self, rows: int) -> None:
        delivery = self.held.due_retry(self.now_ms) or self.held.hand_out(rows, self.failed)
        for message in [] if delivery is None else delivery.messages():
            assert message.offset not in self.done | self.out.keys() | self.returning.keys()
            self.waiting.discard(message.offset)
            self.out[message.offset] = message

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.out)))
        self.out.pop(offset).ack()
        self.done.add(offset)

    @precondition(lambda self: self.out)
    @rule(data=st.data(), delay_ms=st.integers(0, 3))
    def fail(self, data: st.DataObject, delay_ms: int) -> None:
        offset = data.draw(st.sampled_from(sorted(self.out)))
        self.out.pop(offset).nack(timedelta(milliseconds=delay_ms))
        self.waiting.add(offset)

    def failed(self, delivery: Delivery, row: int, failure: Failure) -> None:
        if failure.delay_ms is not None:
            self.held.retry_later(delivery, row, self.now_ms + failure.delay_ms)
            return
        retry = self.held.retry_later(delivery, row, None)
        retry.is_returning = True
        self.returning[delivery.offsets[row]] = retry

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def send_back(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.out)))
        self.out.pop(offset).nack()

    @precondition(lambda self: self.returning)
    @rule(data=st.data(), is_taken=st.booleans())
    def answer(self, data: st.DataObject, is_taken: bool) -> None:
        offset = data.draw(st.sampled_from(sorted(self.returning)))
        self.returning.pop(offset).returned(is_taken, self.now_ms + 1)
        (self.done if is_taken else self.waiting).add(offset)

    @rule()
    def acknowledge_all(self) -> None:
        for delivery in self.held.out():
            delivery.acknowledge()
        self.done.update(self.out)
        self.out.clear()

    @rule()
    def pass_time(self) -> None:
        self.now_ms += 1

    @invariant()
    def the_offset_is_the_first_that_is_not_handled(self) -> None:
        expected = next(offset for offset in range(self.held.fetch + 1) if offset not in self.done)
        assert self.held.committable() == expected

    @invariant()
    def everything_is_held_once(self) -> None:
        assert self.held.held_messages == self.held.fetch - len(self.done)
        assert self.held.is_idle is not bool(self.out or self.returning)


TestOneQueue = OneQueue.TestCase
TestOneQueue.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
