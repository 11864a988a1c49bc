"""Fault avoidance: RocketMQ's LatencyFaultToleranceImplTest and MQFaultStrategy's tables, as sentences."""

from __future__ import annotations

import pytest

from rocketq.producing.selection.fault_avoidance import FaultTolerance, unavailable_ms


@pytest.mark.parametrize(
    ("latency_ms", "pause_ms"),
    [
        (0, 0), (49, 0), (50, 0), (100, 0), (549, 0), (550, 2_000), (1_799, 2_000), (1_800, 5_000),
        (3_000, 6_000), (5_000, 10_000), (10_000, 10_000), (14_999, 10_000), (15_000, 30_000),
        (10**9, 30_000),
    ],
)  # fmt: skip
def test_the_latency_table_is_rocketmqs(latency_ms: int, pause_ms: int) -> None:
    assert unavailable_ms(latency_ms) == pause_ms


def test_an_unknown_broker_is_available_and_reachable() -> None:
    fault = FaultTolerance()
    assert fault.is_available("a", 0)
    assert fault.is_reachable("a")


def test_a_slow_broker_is_avoided_and_comes_back_in_time() -> None:
    fault = FaultTolerance()
    fault.record("a", 600, now_ms=1_000)
    assert not fault.is_available("a", 2_999)
    assert fault.is_available("a", 3_000)


def test_a_failed_broker_counts_as_ten_seconds_slow_until_it_answers() -> None:
    fault = FaultTolerance()
    fault.record("a", 3, now_ms=0, isolation=True)
    assert not fault.is_available("a", 9_999)
    assert fault.is_available("a", 10_000)
    assert not fault.is_reachable("a")
    fault.record("a", 3, now_ms=11_000)
    assert fault.is_reachable("a")
    assert fault.is_available("a", 11_000)


def test_a_quick_answer_does_not_shorten_the_time_of_avoidance() -> None:
    fault = FaultTolerance()
    fault.record("a", 20_000, now_ms=0)
    fault.record("a", 3, now_ms=1_000)
    fault.record("a", 600, now_ms=2_000)
    assert not fault.is_available("a", 29_999)
    assert fault.is_available("a", 30_000)


def test_a_later_slow_answer_extends_the_time_of_avoidance() -> None:
    fault = FaultTolerance()
    fault.record("a", 600, now_ms=0)
    fault.record("a", 3_000, now_ms=1_000)
    assert not fault.is_available("a", 6_999)
    assert fault.is_available("a", 7_000)


def test_a_failed_broker_that_answers_is_reachable_and_still_avoided() -> None:
    fault = FaultTolerance()
    fault.record("a", 0, now_ms=0, isolation=True)
    fault.record("a", 3, now_ms=1_000)
    assert fault.is_reachable("a")
    assert not fault.is_available("a", 9_999)


def test_the_available_are_preferred_then_the_reachable_then_all() -> None:
    fault = FaultTolerance()
    fault.record("slow", 20_000, now_ms=0)
    fault.record("dead", 0, now_ms=0, isolation=True)
    assert fault.preferred(["slow", "dead", "fine"], 1) == ["fine"]
    assert fault.preferred(["slow", "dead"], 1) == ["slow"]
    fault.record("slow", 0, now_ms=0, isolation=True)
    assert fault.preferred(["slow", "dead"], 1) == ["slow", "dead"]
