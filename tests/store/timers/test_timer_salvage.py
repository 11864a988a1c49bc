"""Salvage of a log with delayed messages: what is lost is named, the rest is delivered once, in time."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocketq.clock import ManualClock
from rocketq.model import MessageQueue, TimerId, TimerStatus
from rocketq.protocol.arrow.stream_reader import read_stored
from rocketq.protocol.frame import Frame, FrameKind
from rocketq.protocol.frame_slices import FrameSlice, open_frames
from rocketq.protocol.rules.delivery_time import stored_times
from rocketq_broker.store.machines.timer_table import TimersDelivered
from rocketq_broker.store.recovery.salvage import LostDelayed
from rocketq_broker.store.state.state import decode_change
from rocketq_broker.store.timer_operations import TimerCursor
from tests.support.log_damage import damage, frames_of, salvaged
from tests.support.store_driver import answer, config
from tests.support.timed_store import MINUTE_MS, Timed, delayed, timed

#: No two sends share a frame, and no segment ends, so that a test can name the frame that it damages.
ALONE = {"merge_bytes": 0}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def kind_of(kind: FrameKind) -> Callable[[Frame], bool]:
    return lambda frame: frame.header.kind == kind


def change_of(kind: type) -> Callable[[Frame], bool]:
    def is_one(frame: Frame) -> bool:
        return frame.header.kind == FrameKind.CHANGE and isinstance(
            decode_change(frame.body.to_pybytes()), kind
        )

    return is_one


def found(directory: Path, is_one: Callable[[Frame], bool]) -> list[Frame]:
    return [frame for frame in frames_of(directory) if is_one(frame)]


def readable(driver: Timed, topic: str, queue: int) -> Iterator[FrameSlice]:
    """The messages of a queue that can be read, in order; lost offsets are passed over."""
    at, end = 0, driver.store.offsets(topic).queues[queue].max
    while at < end:
        result = driver.store.pull(topic, queue, at, max_bytes=1 << 20)
        yield from open_frames(b"".join(result.chunks), at)
        at = result.next_offset


def test_what_a_lost_delayed_frame_held_is_named_and_the_rest_is_delivered(
    tmp_path: Path, clock: ManualClock
) -> None:
    with timed(tmp_path, clock, **ALONE) as driver:
        driver.create("orders", 2)
        now = driver.now_ms
        for number in range(3):
            pair = [(b"%d-%d" % (number, row), now + MINUTE_MS + number * 1_000 + row) for row in range(2)]
            driver.append("orders", delayed(1, *pair))
    damage(tmp_path, [found(tmp_path, kind_of(FrameKind.DELAYED))[1].header])
    report = salvaged(config(tmp_path))
    lost = LostDelayed("orders", 1, 2, now + MINUTE_MS + 1_000, now + MINUTE_MS + 1_001)
    assert report.delayed == (lost,)
    assert report.gaps[0].claims == "2 delayed messages for queue 1"
    with timed(tmp_path, clock, **ALONE) as driver:
        assert driver.store.timers.table.outstanding == 4
        driver.pass_time(MINUTE_MS - 1)
        assert driver.bodies("orders", 1) == []
        driver.pass_time(10_000)
        assert driver.bodies("orders", 1) == [b"0-0", b"0-1", b"2-0", b"2-1"]
        assert driver.store.timers.table.outstanding == 0


def test_a_lost_frame_that_was_delivered_before_is_no_loss(tmp_path: Path, clock: ManualClock) -> None:
    with timed(tmp_path, clock, **ALONE) as driver:
        driver.create("orders", 1)
        driver.append("orders", delayed(0, (b"early", driver.now_ms + 1_000)))
        driver.pass_time(MINUTE_MS)
    damage(tmp_path, [found(tmp_path, kind_of(FrameKind.DELAYED))[0].header])
    assert salvaged(config(tmp_path)).delayed == ()
    with timed(tmp_path, clock, **ALONE) as driver:
        driver.pass_time(MINUTE_MS)
        assert driver.bodies("orders", 0) == [b"early"]


def test_a_delivery_whose_change_is_lost_is_not_made_again(tmp_path: Path, clock: ManualClock) -> None:
    with timed(tmp_path, clock, **ALONE) as driver:
        driver.create("orders", 2)
        for number in range(6):
            driver.append("orders", delayed(number % 2, (b"%d" % number, driver.now_ms + 1_000 + number)))
        driver.append("orders", delayed(0, (b"last", driver.now_ms + MINUTE_MS)))
        driver.pass_time(2_000)
    damage(tmp_path, [found(tmp_path, change_of(TimersDelivered))[-1].header])
    salvaged(config(tmp_path))
    for _ in range(2):
        # The second start replays the whole log again, and comes to the same.
        with timed(tmp_path, clock, **ALONE) as driver:
            driver.settle()
            assert driver.bodies("orders", 0) == [b"0", b"2", b"4"]
            assert driver.bodies("orders", 1) == [b"1", b"3", b"5"]
            assert driver.store.timers.table.outstanding == 1
        (tmp_path / "state" / "snapshot").unlink()
    with timed(tmp_path, clock, **ALONE) as driver:
        driver.pass_time(MINUTE_MS)
        assert driver.bodies("orders", 0) == [b"0", b"2", b"4", b"last"]


def test_a_part_of_a_delivery_whose_change_is_lost_is_not_made_again(
    tmp_path: Path, clock: ManualClock
) -> None:
    """Each commit delivers a part of what is due: the cursor lies in the midst of it."""
    with timed(tmp_path, clock, publish_bytes_max=1, **ALONE) as driver:
        driver.create("orders", 1)
        for number in range(6):
            driver.append("orders", delayed(0, (b"%d" % number, driver.now_ms + 1_000)))
        driver.pass_time(2_000)
    deliveries = found(tmp_path, change_of(TimersDelivered))
    # As if the store had ended with the third delivery, and without a snapshot.
    third, fourth = deliveries[2].header, deliveries[3].header
    shutil.rmtree(tmp_path / "state")
    (segment,) = (tmp_path / "commitlog").iterdir()
    with segment.open("r+b") as file:
        file.truncate(fourth.log_offset)
    damage(tmp_path, [third])
    salvaged(config(tmp_path))
    with timed(tmp_path, clock, **ALONE) as driver:
        driver.settle()
        assert driver.bodies("orders", 0) == [b"%d" % number for number in range(6)]


def test_a_delivery_that_is_lost_as_a_whole_is_made_again(tmp_path: Path, clock: ManualClock) -> None:
    with timed(tmp_path, clock, **ALONE) as driver:
        driver.create("orders", 1)
        driver.append("orders", delayed(0, (b"again", driver.now_ms + 1_000)))
        driver.pass_time(2_000)
    lost = [
        *found(tmp_path, change_of(TimersDelivered)),
        *found(tmp_path, kind_of(FrameKind.MESSAGES)),
    ]
    damage(tmp_path, [each.header for each in lost])
    salvaged(config(tmp_path))
    with timed(tmp_path, clock, **ALONE) as driver:
        driver.settle()
        assert driver.bodies("orders", 0) == [b"again"]


def test_a_message_stays_cancelled_and_one_that_is_lost_is_forgotten(
    tmp_path: Path, clock: ManualClock
) -> None:
    with timed(tmp_path, clock, **ALONE) as driver:
        driver.create("orders", 1)
        timers = []
        for number in range(3):
            outcome = driver.append("orders", delayed(0, (b"%d" % number, driver.now_ms + MINUTE_MS)))
            timers.append(TimerId(MessageQueue("orders", driver.store.broker, 0), *outcome.timers[0]))
        for timer in timers[:2]:
            held = driver.store.timers.find(timer)
            answer(lambda done, held=held: driver.store.timers.cancel(held, done))
    damage(tmp_path, [found(tmp_path, kind_of(FrameKind.DELAYED))[0].header])
    salvaged(config(tmp_path))
    with timed(tmp_path, clock, **ALONE) as driver:
        table = driver.store.timers.table
        assert (table.outstanding, table.cancelled_count) == (1, 1)
        assert driver.store.timers.find(timers[1]).status is TimerStatus.CANCELLED
        assert [each.id for each in driver.store.timers.page("orders", TimerCursor(), 10)] == [timers[2]]
        driver.pass_time(MINUTE_MS)
        assert driver.bodies("orders", 0) == [b"2"]
        table = driver.store.timers.table
        assert (table.outstanding, table.cancelled_count, table.floor) == (0, 0, None)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.data())
def test_whatever_frame_is_lost_nothing_is_early_or_twice(
    seed: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any frames but the topic's are damaged; what the report does not name comes once, at its time."""
    directory, clock = tmp_path_factory.mktemp("store"), ManualClock()
    sent: dict[bytes, int] = {}
    with timed(directory, clock, publish_bytes_max=400, **ALONE) as driver:
        driver.create("orders", 2)
        for number in range(12):
            body, at = b"%d" % number, driver.now_ms + seed.draw(st.sampled_from([500, 1_500, 700_000]))
            sent[body] = at
            driver.append("orders", delayed(number % 2, (body, at)))
            driver.pass_time(seed.draw(st.sampled_from([0, 400, 2_000])))
        delivered = {body for queue in range(2) for body in driver.bodies("orders", queue)}
    frames = frames_of(directory)[2:]
    lost = seed.draw(st.lists(st.sampled_from(frames), min_size=1, max_size=3, unique_by=id))
    damage(directory, [each.header for each in lost])
    in_lost = {
        body
        for each in lost
        if each.header.kind in (FrameKind.DELAYED, FrameKind.MESSAGES)
        for body in read_stored(each.body).column("body").to_pylist()
    }
    report = salvaged(config(directory))
    with timed(directory, clock, **ALONE) as driver:
        driver.settle()
        driver.pass_time(1_000_000)
        assert driver.store.timers.table.outstanding == 0
        seen: list[bytes] = []
        for queue in range(2):
            for each in readable(driver, "orders", queue):
                seen += each.batch.column("body").to_pylist()
                assert (each.header.stored_at_us // 1000 >= stored_times(each.batch)).all()
    assert len(seen) == len(set(seen))
    assert set(sent) - set(seen) <= in_lost
    never_came = set(sent) - set(seen) - delivered
    assert len(never_came) == sum(each.messages for each in report.delayed)
