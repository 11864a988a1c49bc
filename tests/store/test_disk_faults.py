"""The disk is full, refuses a write, fails a sync: nothing is acknowledged that is not so."""

from __future__ import annotations

import errno

import pytest

from rocketq.errors import BrokerUnavailable, StoreFull
from rocketq.protocol.model import FlushMode
from rocketq_broker.store.errors import LogFailed, StoreError
from tests.testbed.crashing_files import CrashingFiles
from tests.testbed.disk import Disk
from tests.testbed.driver import Driver, config, opened
from tests.testbed.workload import Lives, end_life

SMALL = {"segment_bytes": 8192, "queue_file_units": 16}


@pytest.mark.parametrize("flush", list(FlushMode))
@pytest.mark.parametrize("first", range(0, 30, 10))
def test_no_single_fault_of_the_disk_breaks_a_promise(flush: FlushMode, first: int) -> None:
    assert sum(_run_with_faults(seed, flush) for seed in range(first, first + 10)) > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("flush", list(FlushMode))
@pytest.mark.parametrize("first", range(1000, 2000, 100))
def test_a_thousand_runs_of_faults_break_no_promise(flush: FlushMode, first: int) -> None:
    assert sum(_run_with_faults(seed, flush) for seed in range(first, first + 100)) > 100


def _run_with_faults(seed: int, flush: FlushMode) -> int:
    """Live three times with a fault each; return how many of them struck."""
    lives = Lives(seed, flush)
    struck = 0
    for _ in range(3):
        struck += lives.live_with_fault().struck
        lives.restart_and_check()
    return struck


class Faulty:
    """A store on a disk that will fail, and what it told its owner."""

    def __init__(self, **settings: object) -> None:
        self.disk = Disk()
        self.settings = config(**{**SMALL, **settings})
        self.faults: list[StoreError] = []

    def opened(self) -> object:
        return opened(self.settings, CrashingFiles(self.disk), on_fault=self.faults.append)
