"""BatchLimits: limits are shared by backlog, nobody starves, and small batches are held back in time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketq.options.options import BatchLimits
from pyspark_rocketq.stream.batch_limits import BatchDelay, Limit, admit
from rocketq.model import MessageQueue

Q = [MessageQueue("t", "b", n) for n in range(6)]

backlogs = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=6).map(
    lambda pairs: {Q[i]: (first, first + size) for i, (first, size) in enumerate(pairs)}
)


def never(queue: MessageQueue) -> float:
    raise AssertionError("sizes are only asked for under a limit in bytes")


@given(backlogs)
def test_without_limits_everything_is_read(backlogs: dict) -> None:
    assert admit(backlogs, Limit(), never) == {queue: last for queue, (_, last) in backlogs.items()}


@given(backlogs, st.integers(1, 500))
def test_a_limit_in_rows_is_exceeded_by_a_message_a_queue_at_most(backlogs: dict, rows: int) -> None:
    ends = admit(backlogs, Limit(rows=rows), never)
    lagging = [queue for queue, (first, last) in backlogs.items() if first < last]
    taken = {queue: ends[queue] - backlogs[queue][0] for queue in backlogs}
    assert sum(taken.values()) <= rows + len(lagging)
    assert all(taken[queue] >= 1 for queue in lagging)
    assert all(backlogs[queue][0] <= ends[queue] <= backlogs[queue][1] for queue in backlogs)


def test_a_limit_is_shared_in_proportion_to_backlog() -> None:
    ends = admit({Q[0]: (0, 900), Q[1]: (100, 200), Q[2]: (5, 5)}, Limit(rows=100), never)
    assert ends == {Q[0]: 90, Q[1]: 110, Q[2]: 5}


def test_a_small_queue_beside_a_large_one_does_not_starve() -> None:
    ends = admit({Q[0]: (0, 1_000_000), Q[1]: (0, 1)}, Limit(rows=10), never)
    assert ends[Q[1]] == 1


def test_a_limit_in_bytes_counts_what_messages_of_each_queue_weigh() -> None:
    weights = {Q[0]: 10.0, Q[1]: 1000.0}
    ends = admit({Q[0]: (0, 100), Q[1]: (0, 100)}, Limit(bytes=10_100), weights.__getitem__)
    assert ends == {Q[0]: 10, Q[1]: 10}


def test_the_tighter_of_two_limits_holds() -> None:
    backlog = {Q[0]: (0, 1000)}
    assert admit(backlog, Limit(rows=500, bytes=1000), lambda queue: 10.0) == {Q[0]: 100}
    assert admit(backlog, Limit(rows=50, bytes=1000), lambda queue: 10.0) == {Q[0]: 50}


def test_one_message_is_always_admitted() -> None:
    assert admit({Q[0]: (3, 9)}, Limit(bytes=1), lambda queue: 5_000.0) == {Q[0]: 4}


@given(backlogs, st.integers(1, 200))
def test_batch_after_batch_everything_is_read_once(backlogs: dict, rows: int) -> None:
    read = dict.fromkeys(backlogs, 0)
    for _ in range(10_000):
        if all(first == last for first, last in backlogs.values()):
            break
        ends = admit(backlogs, Limit(rows=rows), never)
        for queue, (first, last) in backlogs.items():
            read[queue] += ends[queue] - first
            backlogs[queue] = (ends[queue], last)
    assert all(first == last for first, last in backlogs.values())


def test_a_small_batch_waits_for_more_or_for_the_delay() -> None:
    delay = BatchDelay(BatchLimits(min_rows=10, max_delay_ms=1000))
    assert delay.is_due(1, now_ms=0), "the first batch of a run is not held"
    assert not delay.is_due(9, now_ms=500)
    assert delay.due_in_ms(now_ms=500) == 500
    assert delay.is_due(10, now_ms=600), "enough"
    assert not delay.is_due(9, now_ms=1599)
    assert delay.is_due(9, now_ms=1600), "overdue"


def test_nothing_is_never_a_batch() -> None:
    delay = BatchDelay(BatchLimits(min_rows=10, max_delay_ms=0))
    assert not delay.is_due(0, now_ms=0)
    assert not BatchDelay(BatchLimits()).is_due(0, now_ms=5)


def test_without_a_minimum_nothing_is_held() -> None:
    delay = BatchDelay(BatchLimits())
    assert delay.is_due(1, now_ms=0)
    assert delay.is_due(1, now_ms=0)
    assert delay.due_in_ms(0) is None
