"""The power goes at any operation of the disk, again and again, also during recovery."""

from __future__ import annotations

import pytest

from rocketq.model import FlushMode
from tests.support.workload import Lives

CUTS_A_RUN = 3


def run(seed: int, flush: FlushMode) -> Lives:
    lives = Lives(seed, flush)
    for _ in range(CUTS_A_RUN):
        written = lives.live_until_cut()
        lives.restart_and_check(written)
    return lives


@pytest.mark.parametrize("seed", range(60))
def test_sync_flush_loses_nothing_acknowledged_in_a_power_cut(seed: int) -> None:
    run(seed, FlushMode.SYNC)


@pytest.mark.parametrize("seed", range(60))
def test_async_flush_loses_nothing_flushed_and_keeps_a_beginning_of_the_log(seed: int) -> None:
    run(seed, FlushMode.ASYNC)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("flush", "first"),
    [(FlushMode.SYNC, first) for first in range(1000, 3000, 100)]
    + [(FlushMode.ASYNC, first) for first in range(3000, 4000, 100)],
)
def test_three_thousand_runs_of_power_cuts_break_no_promise(flush: FlushMode, first: int) -> None:
    promised = sum(run(seed, flush).worker.ledger.promised for seed in range(first, first + 100))
    assert promised > 500, "the runs must promise something to be worth anything"


def test_the_runs_meet_torn_tails_clean_starts_and_retention() -> None:
    lives = [run(seed, FlushMode.ASYNC) for seed in range(30)]
    reports = [report for each in lives for report in each.reports]
    assert any(each.worker.segments_removed for each in lives)
    assert any(report.torn_bytes for report in reports)
    assert any(report.clean and report.log_end for report in reports)
    assert any(report.replayed_from and report.frames_replayed for report in reports)
