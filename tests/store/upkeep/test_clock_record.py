"""When the wall clock is believed: decided from two clocks, held against every way they may part."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketq.clock import SystemClock
from rocketq_broker.store.upkeep.clock_trust import (
    DAY_US,
    DRIFT_PPM,
    STEP_US_MIN,
    ClockRecord,
    Doubt,
    Reading,
    agree,
    observe,
    resume,
)

SECOND_US = 1_000_000
START = Reading("boot-1", 1_700_000_000 * SECOND_US, 5_000)
TEN_DAYS_US = 10 * DAY_US

#: What an operator would call a step, and time that passes between two looks.
STEPS = st.integers(2 * STEP_US_MIN, 5_000 * DAY_US)
ELAPSED = st.integers(0, 30 * DAY_US // 1000)


def later(now: Reading, ms: int, step_us: int = 0) -> Reading:
    """Return a reading after `ms`, with the wall clock set by `step_us` meanwhile."""
    return replace(now, wall_us=now.wall_us + ms * 1000 + step_us, boottime_ms=now.boottime_ms + ms)


def booted(now: Reading, off_us: int) -> Reading:
    """Return a reading shortly after the machine was off for a while."""
    return Reading(now.boot + "+", now.wall_us + off_us, 20_000)


@given(st.lists(st.tuples(ELAPSED, st.integers(-DRIFT_PPM, DRIFT_PPM)), max_size=20))
def test_a_clock_that_drifts_as_ntp_slews_is_always_believed(steps: list[tuple[int, int]]) -> None:
    record, now = agree(START), START
    for ms, ppm in steps:
        now = later(now, ms, ms * 1000 * ppm // 1_000_000)
        record = observe(record, now)
        assert record.doubt is Doubt.NONE


@given(ELAPSED.filter(lambda ms: ms < DAY_US // 1000), STEPS, st.lists(ELAPSED, max_size=5))
def test_a_step_forward_is_doubted_until_somebody_agrees(ms: int, step_us: int, more: list[int]) -> None:
    now = later(START, ms, step_us)
    record = observe(agree(START), now)
    assert record.doubt is Doubt.STEP
    assert abs(record.ahead_us - step_us) <= STEP_US_MIN
    for each in more:
        now = later(now, each)
        record = observe(record, now)
        assert record.doubt is Doubt.STEP
    assert observe(agree(now), later(now, 10_000)).doubt is Doubt.NONE


@given(STEPS, ELAPSED, st.integers(-30, 30))
def test_a_clock_that_returns_is_believed_again(step_us: int, ms: int, about_s: int) -> None:
    now = later(START, 10_000, step_us)
    record = observe(agree(START), now)
    now = later(now, ms, about_s * SECOND_US - step_us)
    assert observe(record, now).doubt is Doubt.NONE


@given(STEPS, STEPS)
def test_a_clock_set_back_is_believed_and_its_return_is_a_step(back_us: int, forth_us: int) -> None:
    now = later(START, 10_000, -min(back_us, START.wall_us // 2))
    record = observe(agree(START), now)
    assert record.doubt is Doubt.NONE
    assert record.wall_us == now.wall_us
    assert observe(record, later(now, 10_000, forth_us)).doubt is Doubt.STEP


@given(STEPS, st.lists(ELAPSED, max_size=3))
def test_many_small_steps_are_a_step_in_the_end(step_us: int, more: list[int]) -> None:
    record, now, total = agree(START), START, 0
    while total < 3 * STEP_US_MIN:
        now = later(now, 10_000, SECOND_US)
        total += SECOND_US
        record = observe(record, now)
    assert record.doubt is Doubt.STEP


@given(st.integers(0, 400 * DAY_US // 1000))
def test_a_broker_that_was_off_while_its_machine_ran_believes_the_clock(ms: int) -> None:
    assert resume(agree(START), later(START, ms), START.wall_us).doubt is Doubt.NONE


@given(STEPS, ELAPSED)
def test_a_restart_of_the_broker_ends_no_doubt(step_us: int, ms: int) -> None:
    now = later(START, 10_000, step_us)
    held = observe(agree(START), now)
    # Messages were stored by the wrong clock meanwhile.
    assert resume(held, later(now, ms), now.wall_us).doubt is Doubt.STEP
    # Also a step that came while the broker was down is seen.
    assert resume(agree(START), now, START.wall_us).doubt is Doubt.STEP


@given(STEPS, st.integers(0, 100 * DAY_US))
def test_a_restart_of_the_machine_ends_no_doubt_about_a_step(step_us: int, off_us: int) -> None:
    now = later(START, 10_000, step_us)
    held = observe(agree(START), now)
    again = booted(now, off_us)
    record = resume(held, again, now.wall_us)
    assert record.doubt is Doubt.STEP
    returned = observe(record, later(again, 10_000, -step_us))
    assert returned.doubt is Doubt.NONE


def test_a_clock_that_was_set_back_while_the_machine_was_off_is_believed() -> None:
    now = later(START, 10_000, TEN_DAYS_US)
    held = observe(agree(START), now)
    assert resume(held, booted(now, 3600 * SECOND_US - TEN_DAYS_US), now.wall_us).doubt is Doubt.NONE


@given(st.integers(0, DAY_US))
def test_a_night_in_which_the_machine_was_off_is_believed(off_us: int) -> None:
    assert resume(agree(START), booted(START, off_us), START.wall_us).doubt is Doubt.NONE


@pytest.mark.parametrize("newest_us", [0, START.wall_us, START.wall_us + 100 * DAY_US])
def test_ten_days_off_count_after_a_day(newest_us: int) -> None:
    again = booted(START, TEN_DAYS_US)
    record = resume(agree(START), again, newest_us)
    assert record.doubt is Doubt.OFF
    assert record.seen_us == START.wall_us
    almost = later(again, (DAY_US - SECOND_US) // 1000)
    assert observe(record, almost).doubt is Doubt.OFF
    assert observe(record, later(almost, 1000)).doubt is Doubt.NONE


def test_a_wrong_clock_at_boot_stays_doubted_through_the_next_boot() -> None:
    wrong = booted(START, TEN_DAYS_US)
    record = resume(agree(START), wrong, START.wall_us)
    again = booted(wrong, 600 * SECOND_US)
    assert resume(record, again, wrong.wall_us).doubt is Doubt.OFF
    # Corrected at boot, or while the broker runs: nothing is left to doubt.
    right = booted(START, 3600 * SECOND_US)
    assert resume(record, right, wrong.wall_us).doubt is Doubt.NONE
    assert observe(record, later(wrong, 60_000, -TEN_DAYS_US)).doubt is Doubt.NONE


def test_without_a_record_the_newest_message_says_when_time_was_last_seen() -> None:
    assert resume(None, START, 0) == ClockRecord(START.boot, START.wall_us, START.boottime_ms)
    assert resume(None, START, START.wall_us - 3600 * SECOND_US).doubt is Doubt.NONE
    assert resume(None, START, START.wall_us - TEN_DAYS_US).doubt is Doubt.OFF


def test_a_system_without_a_name_for_its_boots_treats_each_start_as_one() -> None:
    nameless = replace(START, boot="")
    assert resume(agree(nameless), later(nameless, 1000), START.wall_us).doubt is Doubt.NONE
    assert resume(agree(nameless), later(nameless, 1000, TEN_DAYS_US), START.wall_us).doubt is Doubt.OFF


def test_the_clocks_of_this_machine_are_believed() -> None:
    clock = SystemClock()
    looks = [Reading(clock.boot_id(), clock.now_us(), clock.boottime_ms()) for _ in range(2)]
    assert looks[0].boot == looks[1].boot
    assert 0 < looks[0].boottime_ms <= looks[1].boottime_ms
    assert observe(agree(looks[0]), looks[1]).doubt is Doubt.NONE
