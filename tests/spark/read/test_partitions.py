"""Planning: every message of every range is in exactly one partition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketq.options.options import Splitting
from pyspark_rocketq.read.partitions import QueueRange, pack, plan_partitions, split
from rocketq.model import MessageQueue


def ranges_of(bounds: list[tuple[int, int]]) -> list[QueueRange]:
    return [
        QueueRange(MessageQueue("t", "b", queue), begin, begin + size, "incarnation", "http://h:1")
        for queue, (begin, size) in enumerate(bounds)
    ]


bounds = st.lists(st.tuples(st.integers(0, 2**50), st.integers(0, 300)), max_size=8)
limits = st.none() | st.integers(1, 400)


@given(bounds, limits, limits, limits, st.floats(0.5, 500))
def test_partitions_cover_each_range_exactly_once(
    bounds: list, least: int | None, records: int | None, size: int | None, weight: float
) -> None:
    ranges = ranges_of(bounds)
    parts = split(ranges, Splitting(least, records, size), lambda queue: weight)
    for one in ranges:
        own = [part for part in parts if part.queue == one.queue]
        assert [offset for part in own for offset in range(part.begin, part.end)] == list(
            range(one.begin, one.end)
        )
        assert {(part.incarnation, part.address) for part in own} <= {(one.incarnation, one.address)}
    assert all(part.size > 0 for part in parts)


@given(bounds, st.integers(1, 50))
def test_no_partition_has_more_records_than_allowed(bounds: list, records: int) -> None:
    parts = split(ranges_of(bounds), Splitting(max_records=records), never)
    assert all(part.size <= records for part in parts)


@given(bounds, st.integers(1, 400))
def test_there_are_enough_partitions_while_there_are_messages_for_them(bounds: list, least: int) -> None:
    ranges = ranges_of(bounds)
    parts = split(ranges, Splitting(min_partitions=least), never)
    messages = sum(one.size for one in ranges)
    nonempty = sum(one.size > 0 for one in ranges)
    assert len(parts) == max(nonempty, min(least, messages))


def test_without_options_a_partition_is_a_queues_range() -> None:
    ranges = ranges_of([(0, 5), (7, 0), (9, 1)])
    assert split(ranges, Splitting(), never) == [ranges[0], ranges[2]]


def test_a_large_queue_is_cut_before_a_small_one() -> None:
    parts = split(ranges_of([(0, 100), (0, 10)]), Splitting(min_partitions=4), never)
    assert [(part.queue.queue, part.size) for part in parts] == [(0, 33), (0, 33), (0, 34), (1, 10)]


def test_a_limit_in_bytes_counts_what_messages_weigh() -> None:
    parts = split(ranges_of([(0, 100)]), Splitting(max_bytes=1000), lambda queue: 40.0)
    assert [part.size for part in parts] == [25, 25, 25, 25]


@given(bounds, st.integers(0, 400))
def test_small_ranges_share_a_partition_up_to_a_number_of_messages(bounds: list, rows_max: int) -> None:
    ranges = split(ranges_of(bounds), Splitting(), never)
    packed = pack(ranges, rows_max)
    assert [one for part in packed for one in part] == ranges, "each once, in order"
    assert all(len(part) == 1 or sum(one.size for one in part) <= rows_max for part in packed)
    sizes = [sum(one.size for one in part) for part in packed]
    fitting = [first + packed[n + 1][0].size <= rows_max for n, first in enumerate(sizes[:-1])]
    assert not any(fitting), "no neighbour would have fitted in"


def test_ranges_stay_apart_if_a_limit_says_what_a_partition_is() -> None:
    ranges = ranges_of([(0, 5), (7, 2), (9, 1)])
    assert plan_partitions(ranges, Splitting(small_rows=8), never) == [tuple(ranges)]
    assert plan_partitions(ranges, Splitting(small_rows=7), never) == [tuple(ranges[:2]), (ranges[2],)]
    alone = [(one,) for one in ranges]
    assert plan_partitions(ranges, Splitting(small_rows=0), never) == alone
    assert plan_partitions(ranges, Splitting(min_partitions=1, small_rows=8), never) == alone
    assert plan_partitions(ranges, Splitting(max_records=100, small_rows=8), never) == alone


def never(queue: MessageQueue) -> float:
    raise AssertionError("sizes are only asked for under a limit in bytes")
