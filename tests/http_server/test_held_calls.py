"""HeldCalls against a plain list of who waits for what."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rocketq.http_server.longpoll.held_calls import HeldCall, HeldCalls

KEYS = ["orders 0", "orders 1", "payments 0", "any of orders"]
CALLS_MAX = 12


def waiters(calls: list[HeldCall[str, str]]) -> set[str]:
    return {call.waiter for call in calls}


def test_a_change_wakes_the_calls_that_wait_for_it_and_no_other() -> None:
    held: HeldCalls[str, str] = HeldCalls(10)
    held.hold(("orders 0",), 1000, "first")
    held.hold(("orders 0", "any of orders"), 2000, "second")
    held.hold(("orders 1",), 1000, "other queue")
    assert waiters(held.changed(["orders 0", "unknown"])) == {"first", "second"}
    assert len(held) == 1
    assert held.changed(["orders 0", "any of orders"]) == []


def test_a_call_that_waits_for_two_changes_is_woken_once() -> None:
    held: HeldCalls[str, str] = HeldCalls(10)
    held.hold(("orders 0", "orders 1"), 1000, "both")
    assert [call.waiter for call in held.changed(["orders 0", "orders 1"])] == ["both"]


def test_calls_expire_in_time_and_not_before() -> None:
    held: HeldCalls[str, str] = HeldCalls(10)
    held.hold(("orders 0",), 2000, "later")
    held.hold(("orders 0",), 1000, "sooner")
    assert held.next_deadline_ms() == 1000
    assert held.expired(999) == []
    assert waiters(held.expired(1000)) == {"sooner"}
    assert held.next_deadline_ms() == 2000


def test_a_call_is_refused_when_all_places_are_taken() -> None:
    held: HeldCalls[str, str] = HeldCalls(1)
    call = held.hold(("orders 0",), 1000, "first")
    assert call is not None
    assert held.hold(("orders 0",), 1000, "second") is None
    assert held.release(call)
    assert not held.release(call)
    assert held.hold(("orders 0",), 1000, "second") is not None


def test_after_a_release_of_all_nothing_is_held_any_more() -> None:
    held: HeldCalls[str, str] = HeldCalls(10)
    held.hold(("orders 0",), 1000, "first")
    held.hold(("orders 1", "any of orders"), 1000, "second")
    assert waiters(held.release_all()) == {"first", "second"}
    assert held.closed
    assert held.hold(("orders 0",), 1000, "third") is None
    assert len(held) == 0
    assert held.next_deadline_ms() is None


def test_calls_answered_early_do_not_pile_up_behind_their_deadlines() -> None:
    held: HeldCalls[str, int] = HeldCalls(10)
    for number in range(10_000):
        held.hold(("orders 0",), 60_000 + number, number)
        assert len(held.changed(["orders 0"])) == 1
    assert held.deadlines_kept <= 100


class HeldCallsMachine(RuleBasedStateMachine):
    """Any sequence of calls leaves the table equal to the plain set of waiting calls."""

    def __init__(self) -> None:
        super().__init__()
        self.held: HeldCalls[str, int] = HeldCalls(CALLS_MAX)
        self.model: dict[int, HeldCall[str, int]] = {}
        self.now_ms = 0
        self.made = 0

    def forget(self, woken: list[HeldCall[str, int]], expected: set[int]) -> None:
        assert {call.waiter for call in woken} == expected
        assert len(woken) == len(expected)
        for number in expected:
            del self.model[number]

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, unique=True), wait_ms=st.integers(0, 50))
    def hold_a_call(self, keys: list[str], wait_ms: int) -> None:
        call = self.held.hold(tuple(keys), self.now_ms + wait_ms, self.made)
        assert (call is None) == (len(self.model) >= CALLS_MAX)
        if call is not None:
            self.model[self.made] = call
        self.made += 1

    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=3, unique=True))
    def something_changes(self, keys: list[str]) -> None:
        expected = {number for number, call in self.model.items() if set(call.keys) & set(keys)}
        self.forget(self.held.changed(keys), expected)

    @rule(ms=st.integers(0, 60))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        expected = {number for number, call in self.model.items() if call.deadline_ms <= self.now_ms}
        self.forget(self.held.expired(self.now_ms), expected)

    @rule(pick=st.integers(0, 1000))
    def a_client_goes_away(self, pick: int) -> None:
        if self.model:
            number = sorted(self.model)[pick % len(self.model)]
            assert self.held.release(self.model.pop(number))

    @invariant()
    def the_table_knows_how_many_wait_and_until_when(self) -> None:
        assert len(self.held) == len(self.model)
        deadlines = [call.deadline_ms for call in self.model.values()]
        assert self.held.next_deadline_ms() == (min(deadlines) if deadlines else None)


TestHeldCallsMachine = HeldCallsMachine.TestCase
TestHeldCallsMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
