"""Delayed messages in a store: when they are delivered, in what order, and how a start goes on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rocketq.clock import ManualClock
from rocketq.errors import NotFound, QueueNotFound, StoreFull, TopicNotFound
from rocketq.model import NO_OFFSET, Message, MessageQueue, TimerId
from rocketq.protocol.frame import FrameKind, encode
from rocketq.protocol.rules.delivery_time import DELIVER_MS
from rocketq_broker.store.config import RetentionPolicy
from rocketq_broker.store.store import MessageStore
from rocketq_broker.store.timer_operations import TimerCursor
from rocketq_broker.store.timers import timer_index
from rocketq_broker.store.timers.window_files import WindowFiles
from tests.support.crashing_files import CrashingFiles
from tests.support.disk import Disk
from tests.support.store_driver import batch, burst, config
from tests.support.timed_store import Timed, delayed, timed

MINUTE_MS = 60_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def driver(tmp_path: Path, clock: ManualClock) -> Iterator[Timed]:
    with timed(tmp_path, clock) as made:
        made.create("orders", 2)
        yield made


def test_a_delayed_message_is_delivered_when_its_time_has_come(driver: Timed) -> None:
    outcome = driver.append("orders", delayed(1, (b"later", driver.now_ms + 10_000)))
    assert (outcome.appended[0].queue, outcome.appended[0].offset) == (1, NO_OFFSET)
    driver.pass_time(9_999)
    assert driver.bodies("orders", 1) == []
    driver.pass_time(1)
    assert driver.bodies("orders", 1) == [b"later"]
    driver.pass_time(MINUTE_MS)
    assert driver.bodies("orders", 1) == [b"later"]


def test_a_message_is_never_early_and_at_most_one_tick_late(driver: Timed) -> None:
    at = driver.now_ms + 1_234
    driver.append("orders", delayed(0, (b"odd", at)))
    late = 0
    while not driver.bodies("orders", 0):
        driver.pass_time(1)
        late = driver.now_ms - at
        assert late <= 100
    assert late >= 0


def test_a_time_in_the_past_is_delivered_at_once(driver: Timed) -> None:
    driver.append("orders", delayed(0, (b"old", 5)))
    driver.settle()
    assert driver.bodies("orders", 0) == [b"old"]


def test_messages_leave_in_the_order_of_their_times(driver: Timed) -> None:
    now, rng = driver.now_ms, random.Random(7)
    times = [now + rng.randrange(0, 30 * MINUTE_MS) for _ in range(500)]
    for first in range(0, 500, 50):
        driver.append("orders", delayed(0, *((b"%d" % at, at) for at in times[first : first + 50])))
    while driver.store.timers.table.outstanding:
        driver.pass_time(97_000)
    assert driver.bodies("orders", 0) == [b"%d" % at for at in sorted(times)]


def test_a_delivered_message_says_when_it_was_to_be_delivered(driver: Timed) -> None:
    at = driver.now_ms + 50
    driver.append("orders", delayed(0, (Message(b"x", b"k", "t", {"region": "eu", "DELAY": "1"}), at)))
    driver.pass_time(100)
    (piece,) = driver.slices("orders", 0)
    (row,) = piece.batch.to_pylist()
    assert (row["key"], row["tag"], dict(row["properties"])) == (
        b"k",
        "t",
        {"region": "eu", DELIVER_MS: str(at)},
    )
    assert piece.header.stored_at_us // 1000 == driver.now_ms


def test_many_small_sends_of_one_queue_share_a_frame(driver: Timed) -> None:
    now = driver.now_ms
    calls = [
        lambda done, at=at: driver.store.append("orders", delayed(0, (b"%d" % at, now + at)), done)
        for at in (300, 100, 200)
    ]
    outcomes = burst(driver.store, calls)
    places = [outcome.timers[0] for outcome in outcomes]
    assert len({place.log_offset for place in places}) == 1
    assert [place.row for place in places] == [2, 0, 1]
    driver.pass_time(300)
    assert driver.bodies("orders", 0) == [b"100", b"200", b"300"]


def test_an_append_may_have_delayed_and_other_batches(driver: Timed) -> None:
    parts = [batch(0, [b"now"]), *delayed(0, (b"later", driver.now_ms + 1_000))]
    offsets = [each.offset for each in driver.append("orders", parts).appended]
    assert offsets == [0, NO_OFFSET]
    assert driver.bodies("orders", 0) == [b"now"]
    driver.pass_time(1_000)
    assert driver.bodies("orders", 0) == [b"now", b"later"]


def test_a_delayed_append_to_a_wrong_place_is_refused_as_a_whole(driver: Timed) -> None:
    later = driver.now_ms + 1_000
    with pytest.raises(QueueNotFound):
        driver.append("orders", [*delayed(0, (b"a", later)), *delayed(9, (b"b", later))])
    with pytest.raises(TopicNotFound):
        driver.append("nowhere", delayed(0, (b"a", later)))
    assert driver.store.timers.table.outstanding == 0


def test_messages_for_a_deleted_topic_are_dropped(driver: Timed) -> None:
    driver.append("orders", delayed(0, (b"a", driver.now_ms + 1_000)))
    driver.delete("orders")
    driver.create("orders", 2)
    driver.pass_time(1_000)
    assert driver.bodies("orders", 0) == []
    assert driver.store.timers.table.outstanding == 0


@pytest.mark.parametrize("end", ["close", "snapshot, then close"])
def test_a_start_goes_on_where_the_store_ended(tmp_path: Path, clock: ManualClock, end: str) -> None:
    now = clock.now_us() // 1000
    with timed(tmp_path, clock) as driver:
        driver.create("orders", 1)
        driver.append("orders", delayed(0, *((b"%d" % n, now + 1_000 * n) for n in range(1, 6))))
        driver.pass_time(2_000)
        if end != "close":
            driver.store.take_snapshot()
    clock.advance(1_000)
    with timed(tmp_path, clock) as driver:
        driver.settle()
        assert driver.bodies("orders", 0) == [b"1", b"2", b"3"]
        driver.pass_time(2_000)
        assert driver.bodies("orders", 0) == [b"1", b"2", b"3", b"4", b"5"]


def test_a_commit_delivers_no_more_than_its_bound(tmp_path: Path, clock: ManualClock) -> None:
    with timed(tmp_path, clock, publish_bytes_max=1, merge_bytes=0) as driver:
        driver.create("orders", 1)
        for number in range(5):
            driver.append("orders", delayed(0, (b"%d" % number, driver.now_ms + 1_000)))
        commits = driver.store.statistics().commits
        driver.pass_time(1_000)
        assert driver.store.statistics().commits >= commits + 5
        assert driver.bodies("orders", 0) == [b"%d" % number for number in range(5)]


def test_nothing_delayed_costs_no_file(driver: Timed, tmp_path: Path) -> None:
    driver.send("orders", 0, [b"plain"])
    driver.store.take_snapshot()
    assert not (tmp_path / "timers").exists()


def test_files_of_windows_that_are_over_are_removed(driver: Timed, tmp_path: Path) -> None:
    for minutes in (1, 15, 35):
        driver.append("orders", delayed(0, (b"%d" % minutes, driver.now_ms + minutes * MINUTE_MS)))
    assert len(list((tmp_path / "timers").iterdir())) == 3
    driver.pass_time(35 * MINUTE_MS)
    driver.store.take_snapshot()
    assert len(list((tmp_path / "timers").iterdir())) == 1


def test_bytes_of_a_body_that_look_like_a_delayed_frame_are_none(driver: Timed, tmp_path: Path) -> None:
    """A body with a sound frame for just the place where it comes to lie."""
    (log,) = (tmp_path / "commitlog").iterdir()
    timed_batch = delayed(0, (b"fake", driver.now_ms + MINUTE_MS))[0]

    def frame(log_offset: int) -> bytes:
        parts = encode(
            kind=FrameKind.DELAYED, topic=b"orders", body=timed_batch.encapsulated, count=1,
            log_offset=log_offset, stored_at_us=driver.clock.now_us(), durable_end=0,
        )  # fmt: skip
        return b"".join(bytes(part) for part in parts)

    first = log.stat().st_size
    driver.send("orders", 0, [frame(0)])
    second = log.stat().st_size
    place = second + log.read_bytes().index(frame(0)) - first
    driver.send("orders", 0, [frame(place)])
    assert log.read_bytes()[place:].startswith(frame(place))
    with pytest.raises(NotFound):
        driver.store.timers.find(TimerId(MessageQueue("orders", driver.store.broker, 0), place, 0))


def test_a_damaged_file_of_the_index_delays_nothing(tmp_path: Path, clock: ManualClock) -> None:
    with timed(tmp_path, clock) as driver:
        driver.create("orders", 1)
        for number in range(3):
            driver.append("orders", delayed(0, (b"%d" % number, driver.now_ms + MINUTE_MS)))
    (path,) = (tmp_path / "timers").iterdir()
    path.write_bytes(bytes(path.stat().st_size))
    with timed(tmp_path, clock) as driver:
        assert len(driver.store.timers.page("orders", TimerCursor(), 10)) == 3
        assert "timer index" in driver.store.troubles()["timers"]
        driver.pass_time(MINUTE_MS)
        assert driver.bodies("orders", 0) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("step", ["is_sound", "read"])
def test_a_file_that_goes_while_a_list_is_read_is_no_damage(
    driver: Timed, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """All is delivered, and a snapshot removes the files, just before the list takes a step."""
    for minutes in (1, 15, 35):
        driver.append("orders", delayed(0, (b"%d" % minutes, driver.now_ms + minutes * MINUTE_MS)))
    usual = getattr(WindowFiles, step)

    def late(*arguments: Any) -> Any:
        monkeypatch.setattr(WindowFiles, step, usual)
        driver.pass_time(36 * MINUTE_MS)
        driver.store.take_snapshot()
        return usual(*arguments)

    monkeypatch.setattr(WindowFiles, step, late)
    # The last window's file is there, and the list is as of its beginning.
    assert len(driver.store.timers.page("orders", TimerCursor(), 10)) == 1
    assert driver.store.troubles() == {}


def test_the_log_is_kept_while_a_delayed_message_lies_in_it(tmp_path: Path, clock: ManualClock) -> None:
    policy = RetentionPolicy(retention_bytes=1)
    with timed(tmp_path, clock, segment_bytes=4096, retention=policy) as driver:
        driver.create("orders", 1)
        driver.append("orders", delayed(0, (b"kept", driver.now_ms + MINUTE_MS)))
        for _ in range(10):
            driver.send("orders", 0, [bytes(3000)])
        assert driver.store.retain().remove == 0
        driver.pass_time(MINUTE_MS)
        assert driver.bodies("orders", 0)[-1] == b"kept"
        assert driver.store.retain().remove > 0


def test_a_later_window_is_loaded_piece_by_piece(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for three entries in memory, order and completeness are the same."""
    monkeypatch.setattr(timer_index, "HEAD_ENTRIES", 3)
    now, rng = clock.now_us() // 1000, random.Random(3)
    times = [now + 20 * MINUTE_MS + rng.randrange(0, 9 * MINUTE_MS) for _ in range(60)]
    with timed(tmp_path, clock, merge_bytes=0, publish_bytes_max=2_000) as driver:
        driver.create("orders", 1)
        for at in times:
            driver.append("orders", delayed(0, (b"%d" % at, at)))
    with timed(tmp_path, clock) as driver:
        driver.pass_time(20 * MINUTE_MS)
        for at in range(100):
            driver.append("orders", delayed(0, (b"%d" % (now + at), driver.now_ms + at)))
            times.append(driver.now_ms + at)
            driver.pass_time(6_000)
        assert driver.store.timers.table.outstanding == 0
        assert len(driver.bodies("orders", 0)) == len(times)


def test_a_full_disk_makes_delivery_pause_until_there_is_room(clock: ManualClock) -> None:
    disk = Disk(1)
    store = MessageStore.open(
        config(publish_bytes_max=1, merge_bytes=0), files=CrashingFiles(disk), clock=clock
    )
    driver = Timed(store, clock)
    driver.create("orders", 1)
    for number in range(3):
        driver.append("orders", delayed(0, (b"%d" % number + bytes(900), driver.now_ms + MINUTE_MS)))
    disk.free_bytes = 3000
    # The commit that meets the full disk may be that of the call, or one of the log writer's own.
    with suppress(StoreFull):
        driver.pass_time(MINUTE_MS)
    assert "publishing" in store.troubles()
    disk.free_bytes = None
    store.retain()
    driver.settle()
    assert [body[:1] for body in driver.bodies("orders", 0)] == [b"0", b"1", b"2"]
    assert store.troubles() == {}
    store.close()
