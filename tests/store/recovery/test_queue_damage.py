"""A ConsumeQueue file is damaged: every reader still gets every message, or an error, and never fewer."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from rocketq.errors import CorruptFrame
from rocketq.model import Message, PullStatus, TimeBoundary
from rocketq.protocol.documents.broker import AlterTopicRequest
from rocketq.protocol.frame import HEADER_BYTES
from rocketq.protocol.frame_slices import open_frames
from rocketq_broker.filters.pull_filter import parse_filter
from rocketq_broker.store.config import RetentionPolicy
from rocketq_broker.store.errors import CorruptQueue
from rocketq_broker.store.filtered_pull.scan import MessageFilter
from rocketq_broker.store.log import consume_queue
from rocketq_broker.store.log.consume_queue import UNIT_BYTES
from rocketq_broker.store.recovery.salvage import salvage
from rocketq_broker.store.store import KeyQuery, MessageStore
from tests.support.crashing_files import CrashingFiles
from tests.support.disk import Disk
from tests.support.store_driver import Driver, answer, config, opened
from tests.support.workload import end_life

#: Blocks of 8, 8 and 5 units a file.
BLOCK_UNITS = 8
SETTINGS: dict[str, Any] = {"segment_bytes": 8000, "queue_file_units": 21, "merge_bytes": 0}
FRAMES = (1, 1, 3, 1, 20, 1, 1, 2, 9, 1)


@pytest.fixture(autouse=True)
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, capture_logs():
        patch.setattr(consume_queue, "BLOCK_UNITS", BLOCK_UNITS)
        yield


def fill(driver: Driver) -> None:
    """Send the frames to two queues; every third message is tagged `rare` and has an amount and a key."""
    numbers = [0, 0]
    for round_ in range(2):
        for frame in FRAMES:
            for queue in (0, 1):
                messages = []
                for number in range(numbers[queue], numbers[queue] + frame):
                    rare = number % 3 == 0
                    messages.append(
                        Message(
                            b"%d/%d" % (queue, number),
                            tag="rare" if rare else "common",
                            key="key" if rare else None,
                            properties={"amount": str(number)} if rare else {},
                        )
                    )
                driver.send("t", queue, messages)
                numbers[queue] += frame
        if not round_:
            driver.store.take_snapshot()


@cache
def filled(clean: bool) -> dict[str, bytes]:
    """Return the files of a filled store that was closed, or killed."""
    disk = Disk()
    store = MessageStore.open(config(**SETTINGS), files=CrashingFiles(disk))
    driver = Driver(store)
    driver.create("t", queues=2)
    fill(driver)
    if not clean:
        disk.end_session()
    end_life(store)
    return disk.image()


def pulled(driver: Driver, queue: int, chosen: MessageFilter | None) -> list[tuple[int, bytes]]:
    """Pull a whole queue, filtered or not; an answer that says FOUND begins where it was asked to."""
    found: list[tuple[int, bytes]] = []
    at = driver.store.offsets("t").queues[queue].min
    while True:
        result = driver.store.pull("t", queue, at, max_bytes=700, chosen=chosen)
        if result.status is PullStatus.NO_NEW_MSG:
            return found
        assert result.next_offset > at
        for piece in open_frames(b"".join(result.chunks), at, result.next_offset):
            found += zip(piece.offsets().tolist(), piece.batch.column("body").to_pylist(), strict=True)
        at = result.next_offset


@dataclass(frozen=True)
class Seen:
    """What each kind of reader gives."""

    whole: list[list[tuple[int, bytes]]]
    by_tag: list[list[tuple[int, bytes]]]
    by_sql: list[list[tuple[int, bytes]]]
    by_key: list[tuple[int, int]]
    at_times: list[tuple[int, ...]]
    first_and_last_times: list[tuple[int | None, int | None]]


def see(driver: Driver) -> Seen:
    """Read everything in every way."""
    store = driver.store
    store.flush()
    store.catch_up_index()
    statistics = store.topic_statistics("t").queues
    last_us = max(each.newest_at_us or 0 for each in statistics)
    tag, sql = parse_filter("rare", None), parse_filter(None, "amount >= 0")
    return Seen(
        whole=[pulled(driver, queue, None) for queue in (0, 1)],
        by_tag=[pulled(driver, queue, tag) for queue in (0, 1)],
        by_sql=[pulled(driver, queue, sql) for queue in (0, 1)],
        by_key=[
            (piece.header.queue, piece.offset)
            for piece in store.query_by_key(KeyQuery("t", b"key", limit=1_000)).slices
        ],
        at_times=[
            store.offsets_at("t", at, boundary).offsets
            for at in (0, last_us, last_us + 1)
            for boundary in TimeBoundary
        ],
        first_and_last_times=[(each.oldest_at_us, each.newest_at_us) for each in statistics],
    )


def begins_after_retention(driver: Driver) -> list[int]:
    """Let the topic keep 3000 bytes of each queue, and return where its queues begin then."""
    store = driver.store
    answer(lambda done: store.alter_topic("t", AlterTopicRequest(retention_bytes=3_000), done))
    store.retain()
    return [queue.min for queue in store.offsets("t").queues]


@cache
def wanted(clean: bool) -> Seen:
    with opened(config(**SETTINGS), CrashingFiles(Disk.of(filled(clean)))) as driver:
        seen = see(driver)
    assert [len(each) for each in seen.whole] == [80, 80]
    assert [len(each) for each in seen.by_tag] == [27, 27]
    assert seen.by_tag == seen.by_sql
    assert len(seen.by_key) == 54
    return seen


@cache
def wanted_begins(clean: bool) -> list[int]:
    with opened(config(**SETTINGS), CrashingFiles(Disk.of(filled(clean)))) as driver:
        begins = begins_after_retention(driver)
    assert all(0 < begin < 80 for begin in begins)
    return begins


def flip(data: bytearray, at: int, bit: int) -> None:
    data[at] ^= 1 << bit


def zero_unit(data: bytearray, at: int, bit: int) -> None:
    first = at - at % UNIT_BYTES
    data[first : first + UNIT_BYTES] = bytes(len(data[first : first + UNIT_BYTES]))


def zero_rest(data: bytearray, at: int, bit: int) -> None:
    data[at:] = bytes(len(data) - at)


def zero_before(data: bytearray, at: int, bit: int) -> None:
    data[:at] = bytes(at)


def cut(data: bytearray, at: int, bit: int) -> None:
    del data[at:]


Damage = Callable[[bytearray, int, int], None]


def damage(disk: Disk, path: str, how: Damage, at: int, bit: int = 0) -> None:
    data = bytearray(disk.bytes_of(path))
    how(data, at, bit)
    disk.overwrite(path, bytes(data))


@settings(max_examples=30, deadline=None)
@given(
    clean=st.booleans(),
    restarts=st.booleans(),
    hits=st.lists(
        st.tuples(
            st.integers(0, 1 << 20),
            st.sampled_from([flip, flip, zero_unit, zero_rest, cut]),
            st.integers(0, 1 << 20),
            st.integers(0, 7),
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_whatever_is_damaged_every_reader_gets_every_message(
    clean: bool, restarts: bool, hits: list[tuple[int, Damage, int, int]]
) -> None:
    disk = Disk.of(filled(clean))

    def hit_all() -> None:
        for place, how, at, bit in hits:
            paths = disk.paths("consumequeue")
            path = paths[place % len(paths)]
            if size := len(disk.bytes_of(path)):
                damage(disk, path, how, at % size, bit)

    if restarts:
        hit_all()
    with opened(config(**SETTINGS), CrashingFiles(disk)) as driver:
        if not restarts:
            hit_all()
        assert see(driver) == wanted(clean)
        before = driver.store.statistics().rebuilt_blocks
        assert see(driver) == wanted(clean)
        assert driver.store.statistics().rebuilt_blocks == before, "the files are whole again"
        hit_all()
        assert begins_after_retention(driver) == wanted_begins(clean)


@pytest.mark.parametrize("how", [zero_unit, flip])
def test_no_unit_of_a_running_store_can_hide_its_message(how: Damage) -> None:
    disk = Disk.of(filled(True))
    with opened(config(**SETTINGS), CrashingFiles(disk)) as driver:
        sound = wanted(True)
        for path in disk.paths("consumequeue/0/0"):
            for at in range(0, len(disk.bytes_of(path)), UNIT_BYTES if how is zero_unit else 7):
                damage(disk, path, how, at, at % 8)
                tag = parse_filter("rare", None)
                assert pulled(driver, 0, tag) == sound.by_tag[0]
                damage(disk, path, how, at, at % 8)
                assert pulled(driver, 0, None) == sound.whole[0]


def test_a_rebuilt_block_is_counted_and_logged_with_its_place() -> None:
    disk = Disk.of(filled(True))
    with opened(config(**SETTINGS), CrashingFiles(disk)) as driver, capture_logs() as lines:
        damage(disk, disk.paths("consumequeue/0/1")[0], flip, 2 * UNIT_BYTES + 13)
        assert pulled(driver, 1, None) == wanted(True).whole[1]
        assert driver.store.statistics().rebuilt_blocks == 1
    [line] = [each for each in lines if each["event"] == "consume_queue_rebuilt"]
    assert line["log_level"] == "warning"
    assert (line["topic"], line["queue"], line["first"], line["end"]) == ("t", 1, 0, 8)
    assert line["damaged_units"] == 1


def test_a_pull_from_the_cache_leaves_damaged_units_to_one_that_may_rebuild() -> None:
    disk = Disk.of(filled(True))
    with opened(config(**SETTINGS), CrashingFiles(disk)) as driver:
        damage(disk, disk.paths("consumequeue/0/0")[0], zero_unit, 0)
        assert driver.store.pull_cached("t", 0, 0, max_bytes=1) is None
        assert driver.store.statistics().rebuilt_blocks == 0
        rebuilt = driver.store.pull("t", 0, 0, max_bytes=1)
        assert rebuilt.status is PullStatus.FOUND
        assert driver.store.pull_cached("t", 0, 0, max_bytes=1) == rebuilt


def test_a_unit_whose_frame_is_damaged_too_is_an_error() -> None:
    disk = Disk.of(filled(True))
    with opened(config(**SETTINGS), CrashingFiles(disk)) as driver:
        [first] = driver.store.pull("t", 0, 3, max_bytes=1).chunks
        log = disk.bytes_of(disk.paths("commitlog")[0])
        damage(disk, disk.paths("commitlog")[0], flip, log.index(first) + len(first) - 9)
        damage(disk, disk.paths("consumequeue/0/0")[0], zero_unit, 3 * UNIT_BYTES)
        for chosen in (None, parse_filter("rare", None), parse_filter(None, "amount >= 0")):
            with pytest.raises(CorruptFrame):
                driver.store.pull("t", 0, 3, max_bytes=1, chosen=chosen)
        assert driver.store.pull("t", 0, 8, max_bytes=1, chosen=parse_filter("rare", None)).chunks


def test_units_are_rebuilt_from_the_present_topic_of_the_name() -> None:
    disk = Disk()
    with opened(config(**SETTINGS), CrashingFiles(disk)) as driver:
        for life in range(3):
            driver.create("t", queues=1)
            for number in range(5):
                driver.send("t", 0, [b"%d in life %d" % (number, life)])
            if life < 2:
                driver.delete("t")
        sound = driver.bodies("t", 0)
        assert sound[0] == b"0 in life 2"
        [path] = disk.paths("consumequeue/2/0")
        for units in range(1, 6):
            damage(disk, path, zero_rest, UNIT_BYTES * (5 - units))
            assert driver.bodies("t", 0) == sound
            damage(disk, path, zero_before, UNIT_BYTES * units)
            assert driver.bodies("t", 0) == sound


def test_what_salvage_found_lost_stays_lost_when_units_are_rebuilt() -> None:
    disk = Disk.of(filled(True))
    [path] = [each for each in disk.paths("commitlog") if b"0/10" in disk.bytes_of(each)]
    damage(disk, path, flip, disk.bytes_of(path).index(b"0/10"))
    salvage(CrashingFiles(disk), SETTINGS["queue_file_units"], 8)
    with opened(config(**SETTINGS), CrashingFiles(disk)) as driver:
        sound = see_with_loss(driver)
        assert len(sound) < 80
        for path in disk.paths("consumequeue/0/0"):
            for unit in range(len(disk.bytes_of(path)) // UNIT_BYTES):
                damage(disk, path, zero_unit, unit * UNIT_BYTES)
                assert see_with_loss(driver) == sound
        for path in disk.paths("consumequeue/0/0"):
            damage(disk, path, zero_rest, 0)
        assert see_with_loss(driver) == sound


def see_with_loss(driver: Driver) -> list[tuple[int, bytes]]:
    """Pull queue 0, in which messages are lost."""
    found: list[tuple[int, bytes]] = []
    at = 0
    while at < 80:
        result = driver.store.pull("t", 0, at, max_bytes=100_000)
        for piece in open_frames(b"".join(result.chunks), at):
            found += zip(piece.offsets().tolist(), piece.batch.column("body").to_pylist(), strict=True)
        at = result.next_offset
    return found


def test_units_are_rebuilt_after_retention_removed_what_is_before_them() -> None:
    disk = Disk.of(filled(True))
    kept = RetentionPolicy(retention_bytes=20_000)
    with opened(config(**SETTINGS, retention=kept), CrashingFiles(disk)) as driver:
        driver.store.retain()
        low = driver.store.offsets("t").queues[0].min
        assert 0 < low < 80
        sound = [each for each in wanted(True).whole[0] if each[0] >= low]
        for path in disk.paths("consumequeue/0/0"):
            for unit in range(len(disk.bytes_of(path)) // UNIT_BYTES):
                damage(disk, path, zero_unit, unit * UNIT_BYTES)
                assert pulled(driver, 0, None) == sound
        for path in disk.paths("consumequeue/0/0"):
            damage(disk, path, zero_rest, 0)
        assert pulled(driver, 0, None) == sound


def test_readers_of_a_queue_that_grows_find_no_damage() -> None:
    with opened(config(**SETTINGS), CrashingFiles(Disk())) as driver:
        driver.create("t", queues=1)
        stop = threading.Event()

        def read() -> None:
            while not stop.is_set():
                end = driver.store.offsets("t").queues[0].max
                assert len(pulled(driver, 0, None)) >= end

        readers = [threading.Thread(target=read) for _ in range(2)]
        for each in readers:
            each.start()
        for number in range(150):
            driver.send("t", 0, [b"%d" % number] * (number % 5 + 1))
        stop.set()
        for each in readers:
            each.join()
        assert driver.store.statistics().rebuilt_blocks == 0


def test_queues_of_a_version_without_checksums_are_rebuilt_once() -> None:
    disk = Disk.of(filled(True))
    files = CrashingFiles(disk)
    for path in disk.paths("consumequeue"):
        if path.endswith(consume_queue.CRC_SUFFIX):
            files.remove(path)
    snapshot = disk.bytes_of("state/snapshot")
    position, length, tails = struct.unpack_from("<QII", snapshot, 8)
    guarded = struct.pack("<QII", position, length, 0) + snapshot[24 : len(snapshot) - tails]
    crc = google_crc32c.value(guarded).to_bytes(4, "little")
    disk.overwrite("state/snapshot", snapshot[:4] + crc + guarded)
    reports = []
    for _ in range(2):
        store = MessageStore.open(config(**SETTINGS), files=CrashingFiles(disk))
        reports.append(store.report)
        assert see(Driver(store)) == wanted(True)
        store.close()
    assert [each.replayed_from for each in reports] == [0, position]
    assert "rebuilt from the log" in "".join(reports[0].notes)


def test_a_damaged_header_in_a_salvaged_log_is_no_lost_message() -> None:
    disk = Disk.of(filled(True))
    path = disk.paths("commitlog")[0]
    with opened(config(**SETTINGS), CrashingFiles(disk)) as driver:
        [victim, spared] = [driver.store.pull("t", 0, at, max_bytes=1).chunks[0] for at in (5, 2)]
    log = disk.bytes_of(path)
    damage(disk, path, flip, log.index(victim) + HEADER_BYTES)
    salvage(CrashingFiles(disk), SETTINGS["queue_file_units"], 8)
    with opened(config(**SETTINGS), CrashingFiles(disk)) as driver:
        # The queue id of the frame of messages 2 to 4, and then their units.
        damage(disk, path, flip, log.index(spared) + 20)
        damage(disk, disk.paths("consumequeue/0/0")[0], zero_rest, 2 * UNIT_BYTES)
        for chosen in (None, parse_filter("rare", None)):
            with pytest.raises((CorruptFrame, CorruptQueue)):
                driver.store.pull("t", 0, 2, max_bytes=100_000, chosen=chosen)
