"""PullRequestHold against a plain list of who waits for what."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rocketq_broker.hold import WHOLE_TOPIC, HeldCall, PullRequestHold

TOPICS = st.sampled_from(["orders", "payments"])
QUEUES = st.integers(min_value=0, max_value=2)
CALLS_MAX = 12


def waiters(calls: list[HeldCall[str]]) -> set[str]:
    return {call.waiter for call in calls}


def test_an_arrival_wakes_only_the_calls_of_its_own_queue() -> None:
    hold: PullRequestHold[str] = PullRequestHold(10)
    hold.add("orders", 0, 1000, "first")
    hold.add("orders", 0, 2000, "second")
    hold.add("orders", 1, 1000, "other queue")
    hold.add("payments", 0, 1000, "other topic")
    assert waiters(hold.arrived([("orders", 0)])) == {"first", "second"}
    assert len(hold) == 2
    assert hold.arrived([("orders", 0)]) == []


def test_a_topic_level_call_is_woken_by_any_queue_of_its_topic_and_once() -> None:
    hold: PullRequestHold[str] = PullRequestHold(10)
    hold.add("orders", WHOLE_TOPIC, 1000, "all of orders")
    hold.add("payments", WHOLE_TOPIC, 1000, "all of payments")
    assert [call.waiter for call in hold.arrived([("orders", 1), ("orders", 2)])] == ["all of orders"]


def test_calls_expire_in_time_and_not_before() -> None:
    hold: PullRequestHold[str] = PullRequestHold(10)
    hold.add("orders", 0, 2000, "later")
    hold.add("orders", 0, 1000, "sooner")
    assert hold.next_deadline_ms() == 1000
    assert hold.expired(999) == []
    assert waiters(hold.expired(1000)) == {"sooner"}
    assert hold.next_deadline_ms() == 2000


def test_a_full_hold_takes_no_more_until_a_place_is_free() -> None:
    hold: PullRequestHold[str] = PullRequestHold(1)
    call = hold.add("orders", 0, 1000, "first")
    assert call is not None
    assert hold.add("orders", 0, 1000, "second") is None
    assert hold.remove(call)
    assert not hold.remove(call)
    assert hold.add("orders", 0, 1000, "second") is not None


def test_after_release_nothing_is_held_any_more() -> None:
    hold: PullRequestHold[str] = PullRequestHold(10)
    hold.add("orders", 0, 1000, "first")
    hold.add("orders", WHOLE_TOPIC, 1000, "second")
    assert waiters(hold.release_all()) == {"first", "second"}
    assert hold.closed
    assert hold.add("orders", 0, 1000, "third") is None
    assert len(hold) == 0
    assert hold.next_deadline_ms() is None


def test_calls_answered_early_do_not_pile_up_behind_their_deadlines() -> None:
    hold: PullRequestHold[int] = PullRequestHold(10)
    for number in range(10_000):
        hold.add("orders", 0, 60_000 + number, number)
        assert len(hold.arrived([("orders", 0)])) == 1
    assert len(hold._heap) <= 100


class HoldMachine(RuleBasedStateMachine):
    """Any sequence of calls leaves the hold equal to the plain set of waiting calls."""

    def __init__(self) -> None:
        super().__init__()
        self.hold: PullRequestHold[int] = PullRequestHold(CALLS_MAX)
        self.model: dict[int, HeldCall[int]] = {}
        self.now_ms = 0
        self.made = 0

    def forget(self, woken: list[HeldCall[int]], expected: set[int]) -> None:
        assert {call.waiter for call in woken} == expected
        assert len(woken) == len(expected)
        for number in expected:
            del self.model[number]

    @rule(topic=TOPICS, queue=st.one_of(QUEUES, st.just(WHOLE_TOPIC)), wait_ms=st.integers(0, 50))
    def hold_a_call(self, topic: str, queue: int, wait_ms: int) -> None:
        call = self.hold.add(topic, queue, self.now_ms + wait_ms, self.made)
        assert (call is None) == (len(self.model) >= CALLS_MAX)
        if call is not None:
            self.model[self.made] = call
        self.made += 1

    @rule(arrivals=st.lists(st.tuples(TOPICS, QUEUES), max_size=3, unique=True))
    def messages_arrive(self, arrivals: list[tuple[str, int]]) -> None:
        topics = {topic for topic, _ in arrivals}
        expected = {
            number
            for number, call in self.model.items()
            if (call.topic, call.queue) in arrivals or (call.queue == WHOLE_TOPIC and call.topic in topics)
        }
        self.forget(self.hold.arrived(arrivals), expected)

    @rule(topic=TOPICS)
    def a_topic_changes(self, topic: str) -> None:
        expected = {number for number, call in self.model.items() if call.topic == topic}
        self.forget(self.hold.changed(topic), expected)

    @rule(ms=st.integers(0, 60))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        expected = {number for number, call in self.model.items() if call.deadline_ms <= self.now_ms}
        self.forget(self.hold.expired(self.now_ms), expected)

    @rule(pick=st.integers(0, 1000))
    def a_client_goes_away(self, pick: int) -> None:
        if self.model:
            number = sorted(self.model)[pick % len(self.model)]
            assert self.hold.remove(self.model.pop(number))

    @invariant()
    def the_hold_knows_how_many_wait_and_until_when(self) -> None:
        assert len(self.hold) == len(self.model)
        deadlines = [call.deadline_ms for call in self.model.values()]
        assert self.hold.next_deadline_ms() == (min(deadlines) if deadlines else None)


TestHoldMachine = HoldMachine.TestCase
TestHoldMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
