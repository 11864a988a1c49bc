"""What retention removes, what it leaves, and what readers see of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rocketq.clock import ManualClock
from rocketq.errors import Conflict, InvalidConfiguration, OffsetOutOfRange, StoreFull
from rocketq.protocol.documents.broker import AlterTopicRequest
from rocketq_broker.store.config import RetentionPolicy
from rocketq_broker.store.disk.files import DiskUsage, OSFiles
from rocketq_broker.store.upkeep.clock_watch import ClockNotice
from rocketq_broker.store.upkeep.retention import RetentionDecision, SegmentFacts, decide
from tests.support.store_driver import Driver, answer, config, opened

HOUR_US = 3_600_000_000
GIB = 1 << 30
ROOMY = DiskUsage(1000 * GIB, 900 * GIB)


def disk(used_percent: int) -> DiskUsage:
    """A disk so full, and too small for its free bytes to be enough."""
    return DiskUsage(100 * GIB, (100 - used_percent) * GIB)


TIGHT = RetentionPolicy(retention_ms=3_600_000, free_bytes_enough=GIB * 50)


def segments(*ages_hours: float, now_us: int = 100 * HOUR_US) -> list[SegmentFacts]:
    """One segment of 1 GiB for each age of its newest frame, oldest first."""
    return [SegmentFacts(i * GIB, GIB, int(now_us - age * HOUR_US)) for i, age in enumerate(ages_hours)]


def test_only_segments_older_than_the_age_go_and_the_last_one_never() -> None:
    assert decide(TIGHT, segments(3, 2, 0.5, 0), 100 * HOUR_US, ROOMY).remove == 2
    assert decide(TIGHT, segments(5), 100 * HOUR_US, ROOMY) == RetentionDecision(0, False)


def test_a_log_over_its_size_loses_its_oldest_segments() -> None:
    policy = RetentionPolicy(retention_bytes=2 * GIB)
    assert decide(policy, segments(0, 0, 0, 0), 100 * HOUR_US, ROOMY) == RetentionDecision(2, False, "size")


@pytest.mark.parametrize(
    ("used", "removed", "refused"), [(74, 1, False), (84, 1, False), (85, 3, False), (90, 3, True)]
)
def test_watermarks_first_ignore_age_and_then_refuse_writes(used: int, removed: int, refused: bool) -> None:
    verdict = decide(TIGHT, segments(2, 0.5, 0.2, 0), 100 * HOUR_US, disk(used))
    assert (verdict.remove, verdict.refuse_writes) == (removed, refused)


def test_no_watermark_counts_while_enough_bytes_are_free() -> None:
    policy = RetentionPolicy(free_bytes_enough=4 * GIB)
    assert decide(policy, segments(2, 1, 0), 100 * HOUR_US, disk(95)) == RetentionDecision(0, False)


def test_watermarks_that_do_not_ascend_are_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="ascend"):
        RetentionPolicy(clean_percent=90, force_percent=80)


def fill(driver: Driver, topic: str, batches: int, queues: int = 2) -> None:
    for number in range(batches):
        driver.send(topic, number % queues, [b"%06d" % number + bytes(500) for _ in range(20)])


def test_readers_are_sent_to_the_first_kept_offset_also_after_a_restart(tmp_path: Path) -> None:
    settings = config(tmp_path, segment_bytes=64 << 10, retention=RetentionPolicy(retention_bytes=200 << 10))
    with opened(settings) as driver:
        driver.create("t", queues=2)
        fill(driver, "t", 60)
        kept = driver.bodies("t", 0)
        verdict = driver.store.retain()
        assert verdict.remove > 0
        low = driver.store.offsets("t").queues[0].min
        assert low > 0
        assert driver.bodies("t", 0) == kept[low:]
        with pytest.raises(OffsetOutOfRange) as refused:
            driver.store.pull("t", 0, 0, max_bytes=4096)
        assert refused.value.corrected == low
    with opened(settings) as driver:
        assert driver.store.offsets("t").queues[0].min == low
        assert driver.bodies("t", 0) == kept[low:]


def test_the_log_alone_still_rebuilds_the_broker_after_retention(tmp_path: Path) -> None:
    settings = config(tmp_path, segment_bytes=64 << 10, retention=RetentionPolicy(retention_bytes=200 << 10))
    with opened(settings) as driver:
        driver.create("t", queues=2)
        driver.create("quiet", queues=1)
        driver.send("quiet", 0, [b"once"])
        driver.commit("g", "quiet", 0, 1)
        fill(driver, "t", 60)
        driver.store.retain()
        before = driver.store.offsets("t"), driver.progress("g"), driver.store.topics()
        ends = driver.ends("quiet")
    files = OSFiles(tmp_path)
    files.remove("state/snapshot")
    with opened(settings) as driver:
        after = driver.store.offsets("t"), driver.progress("g"), driver.store.topics()
        assert after == before
        # All its messages are gone, yet its next one does not begin again at 0.
        assert driver.ends("quiet") == ends
        assert driver.send("quiet", 0, [b"again"]) == ends[0]


def test_a_topic_may_keep_less_than_the_broker(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(config(tmp_path), clock=clock) as driver:
        driver.create("brief", queues=1)
        driver.create("long", queues=1)
        answer(lambda done: driver.store.alter_topic("brief", AlterTopicRequest(retention_ms=60_000), done))
        for name in ("brief", "long"):
            driver.send(name, 0, [b"old"] * 5)
        clock.advance(120_000)
        for name in ("brief", "long"):
            driver.send(name, 0, [b"new"] * 3)
        driver.store.retain()
        assert driver.store.offsets("brief").queues[0].min == 5
        assert driver.bodies("brief", 0) == [b"new"] * 3
        assert driver.store.offsets("long").queues[0].min == 0


def test_a_topic_may_keep_only_so_many_bytes_of_each_queue(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        driver.create("small", queues=1)
        for number in range(10):
            driver.send("small", 0, [b"%d" % number + bytes(1000)] * 4)
        keep = AlterTopicRequest(retention_bytes=15_000)
        answer(lambda done: driver.store.alter_topic("small", keep, done))
        driver.store.retain()
        low = driver.store.offsets("small").queues[0].min
        frames = driver.store.pull("small", 0, low, max_bytes=1 << 20).chunks
        assert sum(map(len, frames)) <= 15_000
        earlier = driver.bodies("small", 0, low)
        assert len(earlier) == 40 - low
        assert low % 4 == 0


class SmallDisk(OSFiles):
    """A real directory on a disk that says it is as full as the test likes."""

    usage_now = ROOMY

    def usage(self) -> DiskUsage:
        return self.usage_now


def test_at_the_last_watermark_writes_are_refused_while_reads_go_on(tmp_path: Path) -> None:
    files = SmallDisk(tmp_path)
    with opened(config(tmp_path, retention=TIGHT), files=files) as driver:
        driver.create("t", queues=1)
        driver.send("t", 0, [b"before"])
        files.usage_now = disk(93)
        driver.store.retain()
        with pytest.raises(StoreFull) as refused:
            driver.send("t", 0, [b"refused"])
        assert refused.value.facts["used_percent"] == 93
        assert driver.bodies("t", 0) == [b"before"]
        driver.commit("g", "t", 0, 1)
        files.usage_now = ROOMY
        driver.store.retain()
        assert driver.send("t", 0, [b"after"]) == 1


# --- a clock that cannot be believed -----------------------------------------------------------

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class Stepping:
    """A store with an hour of messages in segments that are small enough to go, and a clock to set."""

    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock()
        self.notices: list[ClockNotice] = []
        self.settings = config(directory, segment_bytes=16 << 10)

    @contextmanager
    def opened(self) -> Iterator[Driver]:
        with opened(self.settings, clock=self.clock, on_clock=self.notices.append) as driver:
            yield driver

    def fill(self, driver: Driver) -> None:
        driver.create("t", queues=1)
        for number in range(60):
            driver.send("t", 0, [b"%d" % number + bytes(1000)])
            self.clock.advance(60_000)

    @property
    def events(self) -> list[str]:
        return [each.event for each in self.notices]


def low(driver: Driver, topic: str = "t") -> int:
    return driver.store.offsets(topic).queues[0].min


def test_a_clock_that_steps_ten_days_forward_expires_nothing(tmp_path: Path) -> None:
    stepping = Stepping(tmp_path)
    with stepping.opened() as driver:
        stepping.fill(driver)
        assert driver.store.retain().remove == 0
        stepping.clock.step(10 * DAY_MS)
        for _ in range(3):
            assert driver.store.retain().remove == 0
            stepping.clock.advance(DAY_MS)
        assert low(driver) == 0
        assert stepping.events == ["clock_stepped"]
        assert stepping.notices[0].facts["ahead_us"] == 10 * DAY_MS * 1000
        assert driver.store.statistics().clock.doubt == "step"


def test_what_is_expired_goes_once_an_operator_agrees_to_the_clock(tmp_path: Path) -> None:
    stepping = Stepping(tmp_path)
    with stepping.opened() as driver:
        stepping.fill(driver)
        stepping.clock.step(10 * DAY_MS)
        driver.store.retain()
        with pytest.raises(Conflict, match="the call says"):
            driver.store.clock_watch.agree(stepping.clock.now_us() - 10 * DAY_MS * 1000)
        assert driver.store.retain().remove == 0
        driver.store.clock_watch.agree(stepping.clock.now_us())
        assert driver.store.retain().remove > 0
        assert low(driver) > 0
        assert stepping.events == ["clock_stepped", "clock_believed"]


def test_a_clock_that_returns_deletes_what_is_old_by_it(tmp_path: Path) -> None:
    stepping = Stepping(tmp_path)
    with stepping.opened() as driver:
        stepping.fill(driver)
        stepping.clock.step(10 * DAY_MS)
        driver.store.retain()
        driver.send("t", 0, [b"stored while the clock was wrong"])
        stepping.clock.step(-10 * DAY_MS)
        assert driver.store.retain().remove == 0
        stepping.clock.advance(73 * HOUR_MS)
        assert driver.store.retain().remove > 0
        # It bears a time that has not come yet, so it stays longer than it should, not shorter.
        assert driver.bodies("t", 0)[-1] == b"stored while the clock was wrong"


def test_a_restart_does_not_end_the_doubt(tmp_path: Path) -> None:
    stepping = Stepping(tmp_path)
    with stepping.opened() as driver:
        stepping.fill(driver)
        stepping.clock.step(10 * DAY_MS)
        driver.store.retain()
        driver.send("t", 0, [b"new"])
    with stepping.opened() as driver:
        assert driver.store.retain().remove == 0
    stepping.clock.reboot(off_ms=HOUR_MS)
    with stepping.opened() as driver:
        assert driver.store.retain().remove == 0
        driver.store.clock_watch.agree(stepping.clock.now_us())
        assert driver.store.retain().remove > 0


def test_a_machine_that_was_off_for_ten_days_deletes_after_a_day(tmp_path: Path) -> None:
    stepping = Stepping(tmp_path)
    with stepping.opened() as driver:
        stepping.fill(driver)
    stepping.clock.reboot(off_ms=10 * DAY_MS)
    with stepping.opened() as driver:
        assert stepping.events == ["time_off_unconfirmed"]
        stepping.clock.advance(23 * HOUR_MS)
        assert driver.store.retain().remove == 0
        stepping.clock.advance(HOUR_MS)
        assert driver.store.retain().remove > 0


def test_a_broker_that_was_off_on_a_running_machine_deletes_at_once(tmp_path: Path) -> None:
    stepping = Stepping(tmp_path)
    with stepping.opened() as driver:
        stepping.fill(driver)
    stepping.clock.advance(10 * DAY_MS)
    with stepping.opened() as driver:
        assert driver.store.retain().remove > 0
        assert stepping.events == []


def test_size_and_watermarks_still_count_while_the_clock_is_doubted(tmp_path: Path) -> None:
    stepping = Stepping(tmp_path)
    stepping.settings = config(
        tmp_path, segment_bytes=16 << 10, retention=RetentionPolicy(retention_bytes=32 << 10)
    )
    with stepping.opened() as driver:
        stepping.fill(driver)
        stepping.clock.step(10 * DAY_MS)
        verdict = driver.store.retain()
        assert (verdict.remove > 0, verdict.why) == (True, "size")


def test_a_topic_that_keeps_less_is_left_alone_while_the_clock_is_doubted(tmp_path: Path) -> None:
    stepping = Stepping(tmp_path)
    with stepping.opened() as driver:
        stepping.fill(driver)
        keep = AlterTopicRequest(retention_ms=2 * HOUR_MS)
        answer(lambda done: driver.store.alter_topic("t", keep, done))
        stepping.clock.step(10 * DAY_MS)
        driver.store.retain()
        assert low(driver) == 0
        stepping.clock.step(-10 * DAY_MS)
        stepping.clock.advance(2 * HOUR_MS)
        driver.store.retain()
        assert low(driver) == 60


def test_a_damaged_record_of_the_clock_is_made_anew(tmp_path: Path) -> None:
    stepping = Stepping(tmp_path)
    with stepping.opened() as driver:
        stepping.fill(driver)
    (tmp_path / "state" / "clock").write_bytes(b"{rot")
    stepping.clock.advance(5 * DAY_MS)
    with stepping.opened() as driver:
        # Without the record nothing vouches for the five days but the wall clock.
        assert stepping.events == ["time_off_unconfirmed"]
        assert driver.store.retain().remove == 0
