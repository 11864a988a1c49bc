"""The power goes at any operation of the disk while messages are scheduled, cancelled and delivered."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from rocketq.clock import ManualClock
from rocketq.errors import RocketqError
from rocketq.model import FlushMode, MessageQueue, TimerId
from rocketq_broker.store.store import MessageStore
from tests.support.crashing_files import CrashingFiles
from tests.support.disk import Disk
from tests.support.store_driver import answer, config
from tests.support.timed_store import MINUTE_MS, Timed, delayed
from tests.support.workload import end_life

#: From when on the scenario's disk operations are cut: what comes before is the making of the topic.
WINDOWS = 25
#: More than the scenario does.
OPERATIONS_MAX = 400


@dataclass
class Scenario:
    """Schedules, cancels and delivers; `acknowledged` and `cancelled` are what the store has confirmed."""

    disk: Disk
    clock: ManualClock
    flush: FlushMode
    acknowledged: dict[bytes, int] = field(default_factory=dict)
    cancelled: set[bytes] = field(default_factory=set)
    #: Bodies whose cancelling was asked for and not answered.
    in_doubt: set[bytes] = field(default_factory=set)

    def open(self) -> Timed:
        settings = config(flush=self.flush, segment_bytes=4096, merge_bytes=0, publish_bytes_max=1_000)
        store = MessageStore.open(settings, files=CrashingFiles(self.disk), clock=self.clock)
        return Timed(store, self.clock)

    def run(self, driver: Timed) -> None:
        driver.create("orders", 1)
        for number in range(12):
            body, at = b"%d" % number, driver.now_ms + (number % 4) * WINDOWS * MINUTE_MS + number
            outcome = driver.append("orders", delayed(0, (body, at)))
            self.acknowledged[body] = at
            if number % 5 == 4:
                place = outcome.timers[0]
                assert place is not None
                found = driver.store.timers.find(
                    TimerId(MessageQueue("orders", driver.store.broker, 0), *place)
                )
                self.in_doubt.add(body)
                answer(lambda done, found=found: driver.store.timers.cancel(found, done))
                self.in_doubt.discard(body)
                self.cancelled.add(body)
            if number % 3 == 2:
                driver.store.take_snapshot()
                driver.pass_time(number * MINUTE_MS)
        driver.pass_time(WINDOWS * MINUTE_MS)
        driver.store.take_snapshot()


def run_until_cut(flush: FlushMode, cut_at: int | None) -> tuple[Scenario, bool]:
    """Run a scenario whose power goes at one operation; return whether it was over before that."""
    scenario = Scenario(Disk(seed=cut_at or 0), ManualClock(), flush)
    scenario.disk.cut_at = cut_at
    try:
        driver = scenario.open()
    except RocketqError:
        return scenario, False
    try:
        scenario.run(driver)
    except (OSError, RocketqError):
        end_life(driver.store)
        return scenario, False
    end_life(driver.store)
    return scenario, scenario.disk.is_on


@pytest.mark.parametrize("flush", list(FlushMode))
def test_after_a_power_cut_each_message_is_delivered_once(flush: FlushMode) -> None:
    for cut_at in range(1, OPERATIONS_MAX):
        scenario, is_over = run_until_cut(flush, cut_at)
        if is_over:
            assert cut_at > WINDOWS
            return
        scenario.disk.restart()
        driver = scenario.open()
        assert not driver.store.timers.damaged, "what a snapshot vouches for was on disk"
        driver.pass_time(10 * WINDOWS * MINUTE_MS)
        assert not driver.store.timers.damaged
        bodies = driver.bodies("orders", 0) if driver.store.topics() else []
        assert len(bodies) == len(set(bodies))
        if flush is FlushMode.SYNC:
            # Async flush may lose the end of the log, and with it what was acknowledged or cancelled last.
            missing = scenario.acknowledged.keys() - set(bodies)
            assert scenario.cancelled <= missing <= scenario.cancelled | scenario.in_doubt
        assert driver.store.timers.table.outstanding == 0
        driver.store.close()
    pytest.fail("the scenario has more operations than were cut")
