"""The prefetch buffer: bounded, fair, in order, and deaf to pulls from before a seek."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rocketq.consuming.fetching.fetch_buffer import Fetch, Prefetch
from rocketq.consuming.records import as_arrow, as_messages
from rocketq.errors import CorruptFrame
from rocketq.model import Message, MessageQueue
from rocketq.protocol.frame_slices import FrameSlice, open_frames
from rocketq.protocol.message_schema import from_messages
from tests.protocol.strategies import messages_frame

A, B = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1)


def part(queue: MessageQueue, offset: int, rows: int) -> FrameSlice:
    messages = [Message(b"%d" % (offset + n), b"k", "tag", {"p": "q"}, 7) for n in range(rows)]
    frame = messages_frame(from_messages(messages), offset, queue=queue.queue, stored_at_us=1_000_000)
    [opened] = open_frames(frame, offset)
    return opened


def filled(*queues: tuple[MessageQueue, int], bytes_max: int = 1 << 20) -> Prefetch:
    prefetch = Prefetch(bytes_max)
    for queue, rows in queues:
        prefetch.add(queue, 0, rows, "i")
    for _ in range(sum(rows > 0 for _, rows in queues)):
        fetch = prefetch.next_fetch("a", 1, 0)
        assert fetch is not None
        rows = dict(queues)[fetch.queue]
        prefetch.store(fetch, [part(fetch.queue, 0, rows)], rows, rows)
        prefetch.release(fetch)
    return prefetch


def test_each_queue_gets_its_share_and_what_is_left_is_filled_up() -> None:
    prefetch = filled((A, 100), (B, 3))
    taken = prefetch.take(10)
    assert [(queue, piece.rows) for queue, piece in taken] == [(A, 5), (B, 3), (A, 2)]
    assert [m.offset for m in as_messages(taken) if m.queue == A] == list(range(7))


def test_the_queue_that_comes_first_changes_from_take_to_take() -> None:
    prefetch = filled((A, 100), (B, 100))
    assert [prefetch.take(1)[0][0] for _ in range(4)] == [A, B, A, B]


def test_positions_are_of_what_was_handed_out_not_of_what_is_fetched() -> None:
    prefetch = filled((A, 10))
    prefetch.take(4)
    state = prefetch.state(A)
    assert state is not None
    assert (state.position, state.fetch) == (4, 10)


def test_a_pull_is_admitted_while_it_fits_or_the_buffer_is_empty() -> None:
    prefetch = Prefetch(100)
    prefetch.add(A, 0, 10, "i")
    first = prefetch.next_fetch("a", 1_000, 0)
    assert first == Fetch(A, 0, 1, 1_000)
    assert prefetch.next_fetch("a", 1_000, 0) is None
    prefetch.release(first)
    assert prefetch.next_fetch("a", 1_000, 0) is not None


def test_the_answer_to_a_pull_before_a_seek_is_dropped() -> None:
    prefetch = Prefetch(1 << 20)
    prefetch.add(A, 0, 10, "i")
    fetch = prefetch.next_fetch("a", 1, 0)
    assert fetch is not None
    prefetch.seek(A, 5)
    assert not prefetch.store(fetch, [part(A, 0, 3)], 3, 10)
    assert not prefetch.resume_at(fetch, 9, 10, "i")
    assert not prefetch.has_messages()
    assert prefetch.next_fetch("a", 1, 0) == Fetch(A, 5, 2, 1)


def test_a_seek_is_followed_by_a_pull_even_where_nothing_is_known_to_be() -> None:
    prefetch = filled((A, 10))
    prefetch.take(10)
    assert prefetch.is_caught_up("t", "a", 1)
    prefetch.seek(A, 1_000)
    assert not prefetch.is_caught_up("t", "a", 1)
    assert prefetch.next_fetch("a", 1, 0) == Fetch(A, 1_000, 2, 1)


def test_an_error_follows_the_messages_before_it_and_a_seek_clears_it() -> None:
    prefetch = Prefetch(1 << 20)
    prefetch.add(A, 0, 10, "i")
    fetch = prefetch.next_fetch("a", 1, 0)
    assert fetch is not None
    prefetch.store(fetch, [part(A, 0, 3)], 3, 10)
    prefetch.fail(fetch, CorruptFrame(0, "bad"))
    assert prefetch.error() is None
    prefetch.take(10)
    assert isinstance(prefetch.error(), CorruptFrame)
    assert prefetch.next_fetch("a", 1, 0) is None
    prefetch.seek(A, 4)
    assert prefetch.error() is None


def test_a_recreated_or_cut_topic_is_noticed_without_new_messages() -> None:
    prefetch = filled((A, 10))
    prefetch.take(10)
    prefetch.note_max("t", "a", [4], "i")
    assert not prefetch.is_caught_up("t", "a", 1), "the queue ends before the position"
    renewed = filled((A, 10))
    renewed.note_max("t", "a", [10], "another incarnation")
    assert not renewed.is_caught_up("t", "a", 1)


def test_a_paused_queue_is_left_alone_until_its_time() -> None:
    prefetch = Prefetch(1 << 20)
    prefetch.add(A, 0, 10, "i")
    prefetch.pause([A], until_ms=50)
    assert prefetch.next_fetch("a", 1, 49) is None
    assert prefetch.next_fetch("a", 1, 50) is not None


def test_what_is_handed_out_as_arrow_and_as_values_is_the_same() -> None:
    parts = [(A, part(A, 5, 2)), (B, part(B, 0, 1))]
    values = as_messages(parts)
    table = as_arrow(parts).to_pylist()
    assert [(m.queue.queue, m.offset, m.body, m.key, m.tag) for m in values] == [
        (row["queue"], row["offset"], row["body"], row["key"], row["tag"]) for row in table
    ]
    assert values[0].properties == {"p": "q"} == dict(table[0]["properties"])
    assert (values[0].born_at_us, values[0].stored_at_us) == (7, 1_000_000)
    assert as_arrow([]).num_rows == 0
    assert as_arrow([]).schema == as_arrow(parts).schema


class PrefetchMachine(RuleBasedStateMachine):
    """Any interleaving of pulls, takes and seeks hands out each queue in order and without holes."""

    LENGTH = 40

    def __init__(self) -> None:
        super().__init__()
        self.prefetch = Prefetch(3_000)
        for queue in (A, B):
            self.prefetch.add(queue, 0, self.LENGTH, "i")
        self.expected = {A: 0, B: 0}
        self.pulls: list[Fetch] = []

    @rule()
    def begin_pull(self) -> None:
        fetch = self.prefetch.next_fetch("a", 500, 0)
        if fetch is not None:
            self.pulls.append(fetch)

    @precondition(lambda self: self.pulls)
    @rule(data=st.data(), rows=st.integers(1, 9))
    def end_pull(self, data: st.DataObject, rows: int) -> None:
        fetch = self.pulls.pop(data.draw(st.integers(0, len(self.pulls) - 1)))
        state = self.prefetch.state(fetch.queue)
        assert state is not None
        rows = min(rows, self.LENGTH - fetch.offset)
        if state.generation != fetch.generation or state.fetch == fetch.offset:
            parts = [part(fetch.queue, fetch.offset, rows)] if rows > 0 else []
            self.prefetch.store(fetch, parts, fetch.offset + max(rows, 0), self.LENGTH)
        self.prefetch.release(fetch)

    @rule(count=st.integers(1, 12))
    def take(self, count: int) -> None:
        taken = self.prefetch.take(count)
        assert sum(piece.rows for _, piece in taken) <= count
        for message in as_messages(taken):
            assert message.offset == self.expected[message.queue]
            assert message.body == b"%d" % message.offset
            self.expected[message.queue] += 1

    @rule(queue=st.sampled_from([A, B]), offset=st.integers(0, LENGTH))
    def seek(self, queue: MessageQueue, offset: int) -> None:
        self.prefetch.seek(queue, offset)
        self.expected[queue] = offset

    @invariant()
    def positions_are_where_the_next_message_comes_from(self) -> None:
        for queue, offset in self.expected.items():
            state = self.prefetch.state(queue)
            assert state is not None
            assert state.position == offset


PrefetchMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPrefetch = PrefetchMachine.TestCase
