"""The small values under the table of leases: bitmaps, the map of times, and the clock."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rocketq.clock import ManualClock
from rocketq.protocol.documents.broker import GroupOffset
from rocketq_broker.store.leases.lease_clock import LeaseClock
from rocketq_broker.store.machines.due_runs import TICK_MS, DueRuns, end_of_lease
from rocketq_broker.store.machines.queue_leases import masks, offsets_of, ranges_of, ranges_of_offsets
from tests.support.store_driver import answer, config, opened

OFFSETS = st.sets(st.integers(0, 5_000), max_size=60)
TIMES = st.integers(0, 200_000).map(lambda tick: tick * TICK_MS)
RUNS = st.dictionaries(st.tuples(st.integers(0, 50), st.integers(0, 3)), TIMES, max_size=40)
DAY_MS = 86_400_000


@given(OFFSETS)
def test_offsets_are_the_same_as_ranges_and_as_bitmaps(offsets: set[int]) -> None:
    ranges = ranges_of_offsets(sorted(offsets))
    assert list(offsets_of(ranges)) == sorted(offsets)
    found = {offset for chunk, mask in masks(ranges).items() for offset in offsets_of(ranges_of(chunk, mask))}
    assert found == offsets


@given(RUNS, st.data(), TIMES)
def test_runs_come_in_the_order_of_their_times(
    runs: dict[tuple[int, int], int], data: st.DataObject, at_ms: int
) -> None:
    due = DueRuns()
    for key, until_ms in runs.items():
        due = due.with_run(until_ms, key)
    gone = data.draw(st.sets(st.sampled_from(sorted(runs)))) if runs else set()
    for key in gone:
        due = due.without(runs[key], key)
    left = {key: until_ms for key, until_ms in runs.items() if key not in gone}
    assert due.first_ms == min(left.values(), default=None)
    wanted = sorted((until_ms, key) for key, until_ms in left.items() if until_ms <= at_ms)
    assert list(due.out(at_ms)) == [key for _, key in wanted]
    assert (due == DueRuns()) == (not left)


@given(st.integers(0, 10**13), st.integers(1, 10**8))
def test_a_lease_ends_at_a_tick_and_never_too_early(at_ms: int, invisible_ms: int) -> None:
    until_ms = end_of_lease(at_ms, invisible_ms)
    assert until_ms % TICK_MS == 0
    assert at_ms + invisible_ms <= until_ms < at_ms + invisible_ms + TICK_MS
    assert end_of_lease(at_ms, 0) <= at_ms


def test_of_two_first_receives_one_decides_where_the_group_begins(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        driver.create("t", 2)
        leases, groups = driver.store.leases, driver.store.consumer_groups
        answer(partial(groups.create, "g"))
        number = leases.topic_number("t")
        for offset in (3, 5):
            driver.send("t", 0, [b"m"] * 3)
            some = tuple(GroupOffset("t", queue, offset) for queue in (0, 1))
            answer(partial(leases.begin, "g", number, some))
            assert driver.progress("g") == {("t", 0): 3, ("t", 1): 3}
        driver.delete("t")
        driver.create("t", 2)
        answer(partial(leases.begin, "g", number, some))
        assert driver.progress("g") == {}


def test_the_clock_of_leases_does_not_notice_that_the_wall_clock_is_set() -> None:
    wall = ManualClock()
    clock = LeaseClock(wall, 0)
    began_ms = clock.now_ms()
    for step in (DAY_MS, -3 * DAY_MS, 5):
        wall.step(step)
    wall.advance(70)
    assert clock.now_ms() == began_ms + 70


def test_the_clock_of_leases_goes_on_from_the_log_if_the_wall_clock_was_set_back() -> None:
    wall = ManualClock()
    newest_ms = LeaseClock(wall, 0).now_ms()
    wall.step(-DAY_MS)
    assert LeaseClock(wall, newest_ms).now_ms() == newest_ms
    wall.step(2 * DAY_MS)
    assert LeaseClock(wall, newest_ms).now_ms() == newest_ms + DAY_MS
