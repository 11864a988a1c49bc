"""How many messages a worker takes at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rocketq.consuming.worker_pace import MESSAGES_MAX, WORK_S, WorkerPace


@given(st.integers(1, 1_000), st.integers(0, 10**6), st.integers(1, 256), st.floats(0, 1e4))
def test_a_worker_takes_no_more_than_its_share_or_its_time(
    workers: int, ready: int, handled: int, elapsed_s: float
) -> None:
    pace = WorkerPace(workers)
    pace.handled(handled, elapsed_s)
    rows = pace.rows(ready)
    assert 1 <= rows <= max(1, min(MESSAGES_MAX, ready // workers))
    assert rows == 1 or rows * elapsed_s / handled <= WORK_S * (1 + 1e-9)


def test_a_quick_function_gets_many_and_a_slow_one_gets_one() -> None:
    pace = WorkerPace(2)
    assert pace.rows(10_000) == 10, "nothing is known yet"
    pace.handled(10, 0.001)
    assert (pace.rows(10_000), pace.rows(20)) == (MESSAGES_MAX, 10)
    pace.handled(2, 3.0)
    pace.handled(0, 0.0)
    assert pace.rows(10_000) == 1
