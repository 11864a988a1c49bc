"""What follows when a message fails, and when no attempt follows any more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rocketq.consuming.retries import GiveBack, GiveUp, Keeping, RetryPolicy, TryAgain, after_failure
from rocketq.protocol.rules.retry_properties import back_off_ms


def test_the_waits_are_rocketmqs_levels_from_the_third_on() -> None:
    waits = [back_off_ms(failures) for failures in (1, 2, 3, 15, 16, 17, 900)]
    assert waits == [each * 1_000 for each in (10, 30, 60, 3_600, 7_200, 7_200, 7_200)]


@given(attempt=st.integers(1, 10_000), most=st.none() | st.integers(1, 100))
def test_the_broker_decides_about_messages_of_shared_queues(attempt: int, most: int | None) -> None:
    policy = RetryPolicy(Keeping.SHARED, most)
    assert after_failure(attempt, policy) == after_failure(attempt, policy, 5) == GiveBack()
    assert policy.retries_max == (None if most is None else most - 1)


def test_an_ordered_consumer_waits_as_long_as_it_is_told_each_time() -> None:
    policy = RetryPolicy(Keeping.ORDERED, suspend_ms=250)
    assert {after_failure(attempt, policy) for attempt in range(1, 100)} == {TryAgain(250)}


def test_the_last_attempt_in_order_makes_a_dead_letter() -> None:
    policy = RetryPolicy(Keeping.ORDERED, max_attempts=3)
    assert [after_failure(attempt, policy, 0) for attempt in (1, 2, 3, 4)] == [
        TryAgain(0), TryAgain(0), GiveBack(), GiveBack(),
    ]  # fmt: skip


def test_a_broadcasting_member_keeps_its_messages() -> None:
    policy = RetryPolicy(Keeping.BROADCAST, max_attempts=16)
    assert after_failure(15, policy) == TryAgain(back_off_ms(15))
    assert after_failure(16, policy) == after_failure(16, policy, delay_ms=5) == GiveUp(16)


@given(attempt=st.integers(1, 10_000), delay_ms=st.integers(0, 10**9))
def test_a_delay_that_is_asked_for_counts(attempt: int, delay_ms: int) -> None:
    for keeping in (Keeping.ORDERED, Keeping.BROADCAST):
        assert after_failure(attempt, RetryPolicy(keeping), delay_ms) == TryAgain(delay_ms)
