"""Reading ahead: ranges come in turn, the next ones have begun, and nothing runs on once the reader left."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pytest

from pyspark_rocketq.read.read_ahead import PREFETCHED, TOGETHER, in_turn

#: Longer than any machine needs.
WAIT_S = 60.0


def batch(value: int) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([value])})


def values(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [one.column("value")[0].as_py() for one in batches]


def count_to(last: int, first: int = 0) -> Iterator[pa.RecordBatch]:
    return (batch(first + n) for n in range(last))


def test_ranges_come_one_after_the_other_each_in_order() -> None:
    ranges = [partial(count_to, 3, 10 * n) for n in range(3 * TOGETHER)]
    assert values(in_turn(ranges)) == [10 * n + value for n in range(3 * TOGETHER) for value in range(3)]


def test_the_next_ranges_begin_before_their_turn() -> None:
    """Each range waits for the last that runs beside it; had that not begun, it would wait for ever."""
    last_began = threading.Event()

    def waiting(number: int) -> Iterator[pa.RecordBatch]:
        if number == TOGETHER - 1:
            last_began.set()
        assert last_began.wait(WAIT_S)
        yield batch(number)

    assert values(in_turn([partial(waiting, n) for n in range(TOGETHER)])) == list(range(TOGETHER))


def test_a_failure_comes_in_its_turn_after_the_rows_before_it() -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield batch(7)
        raise ValueError("broken")

    found = in_turn([partial(count_to, 1), failing, partial(count_to, 1)])
    assert values(next(found) for _ in range(2)) == [0, 7]
    with pytest.raises(ValueError, match="broken"):
        next(found)


def test_a_reader_that_leaves_ends_the_threads_and_they_never_ran_far_ahead() -> None:
    made: list[int] = []
    ended = [threading.Event() for _ in range(2)]

    def endless(number: int) -> Iterator[pa.RecordBatch]:
        try:
            while True:
                made.append(number)
                yield batch(number)
        finally:
            ended[number].set()

    found = in_turn([partial(endless, 0), partial(endless, 1)])
    assert values(next(found) for _ in range(2)) == [0, 0]
    found.close()
    assert all(each.wait(WAIT_S) for each in ended)
    # What was read, what waits, the one that had no room, and what the thread made while it was taken.
    assert made.count(1) <= PREFETCHED + 2
    assert made.count(0) <= 2 + PREFETCHED + 2
