"""When a message that failed is tried again, and when no more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rocketq.consuming.retries import DELAY_LEVELS_MS, GiveUp, RetryPolicy, TryAgain, after_failure


def test_the_waits_are_rocketmqs_levels_from_the_third_on() -> None:
    waits = [after_failure(attempt, RetryPolicy()) for attempt in (1, 2, 3, 15, 16, 17, 900)]
    seconds = (10, 30, 60, 3_600, 7_200, 7_200, 7_200)
    assert waits == [TryAgain(each * 1_000) for each in seconds]


def test_an_ordered_consumer_waits_as_long_as_it_is_told_each_time() -> None:
    policy = RetryPolicy(suspend_ms=250)
    assert {after_failure(attempt, policy) for attempt in range(1, 100)} == {TryAgain(250)}


def test_the_last_attempt_is_the_last() -> None:
    policy = RetryPolicy(max_attempts=16)
    assert after_failure(15, policy) == TryAgain(DELAY_LEVELS_MS[16])
    assert after_failure(16, policy) == GiveUp(16)
    assert after_failure(16, policy, delay_ms=5) == GiveUp(16)


@given(attempt=st.integers(1, 10_000), delay_ms=st.integers(0, 10**9))
def test_a_delay_that_is_asked_for_counts(attempt: int, delay_ms: int) -> None:
    assert after_failure(attempt, RetryPolicy(), delay_ms) == TryAgain(delay_ms)
