"""The key index over a log that cannot be read everywhere: what follows is found, the hole is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketq.clock import ManualClock
from rocketq.model import Message
from rocketq.protocol.documents.broker import QueueSpan, UncoveredRange
from rocketq.protocol.frame import FrameHeader
from rocketq_broker.store.config import RetentionPolicy
from rocketq_broker.store.disk.open_files import Handles
from rocketq_broker.store.errors import StoreError
from rocketq_broker.store.log.commit_log import CommitLog
from rocketq_broker.store.recovery import salvage
from rocketq_broker.store.results import FoundMessages
from rocketq_broker.store.store import KeyQuery
from tests.support.crashing_files import CrashingFiles
from tests.support.disk import Disk
from tests.support.store_driver import Driver, config, opened

MESSAGES = 8
#: The message whose frame rots.
ROTTEN = 3
SEGMENT = "commitlog/" + "0" * 20


class Rotting:
    """A store with one keyed message a frame, in turn for two queues, stored a second apart."""

    def __init__(self, segment_bytes: int = 1 << 20) -> None:
        self.disk = Disk()
        self.clock = ManualClock()
        self.settings = config(segment_bytes=segment_bytes)
        self.told: list[StoreError] = []

    @contextmanager
    def opened(self) -> Iterator[Driver]:
        files = CrashingFiles(self.disk)
        with opened(self.settings, files, self.clock, on_damage=self.told.append) as driver:
            yield driver

    def fill(self, driver: Driver) -> None:
        driver.create("t", queues=2)
        for number in range(MESSAGES):
            self.clock.advance(1000)
            message = Message(b"body %d" % number, key=b"k%d" % number, properties={"KEYS": "all"})
            driver.send("t", number % 2, [message])

    def frame(self, number: int) -> FrameHeader:
        files = CrashingFiles(Disk.of(self.disk.image()))
        log = CommitLog(files, Handles(files, 8))
        return [frame.header for frame in log.frames(0) if frame.header.has_keys][number]

    def rot(self, header: FrameHeader, byte: int = 70) -> None:
        data = bytearray(self.disk.bytes_of(SEGMENT))
        data[header.log_offset + byte] ^= 0x10
        self.disk.overwrite(SEGMENT, bytes(data))


def find(driver: Driver, key: bytes, **query: int) -> FoundMessages:
    driver.store.flush()
    driver.store.catch_up_index()
    found = driver.store.query_by_key(KeyQuery("t", key, **query))
    assert found.lag_bytes == 0
    return found


def bodies(found: FoundMessages) -> list[bytes]:
    return [each.batch.column("body")[0].as_py() for each in found.slices]


def others(*without: int) -> list[bytes]:
    return [b"body %d" % number for number in reversed(range(MESSAGES)) if number not in without]


#: A frame whose flags say that it has no keys is read no further, so byte 17 is left out.
FLAGS_AT = 17


@given(byte=(st.integers(0, 63) | st.integers(64, 400)).filter(lambda byte: byte != FLAGS_AT))
def test_what_follows_a_rotten_frame_is_indexed_and_the_hole_is_told(byte: int) -> None:
    rotting = Rotting()
    with rotting.opened() as driver:
        rotting.fill(driver)
        frame = rotting.frame(ROTTEN)
        assert frame.size > 400
        rotting.rot(frame, byte)
        found = find(driver, b"all")
        assert bodies(found) == others(ROTTEN)
        [hole] = found.uncovered
        assert (hole.log_begin, hole.log_end) == (frame.log_offset, frame.log_offset + frame.size)
        for number in range(ROTTEN + 1, MESSAGES):
            assert bodies(find(driver, b"k%d" % number)) == [b"body %d" % number]


def test_a_hole_is_reported_once_with_facts_and_counted() -> None:
    rotting = Rotting()
    with rotting.opened() as driver:
        rotting.fill(driver)
        frame = rotting.frame(ROTTEN)
        rotting.rot(frame)
        for _ in range(3):
            find(driver, b"k7")
        [error] = rotting.told
        assert error.code == "UNREADABLE_LOG"
        end = frame.log_offset + frame.size
        assert (error.facts["log_begin"], error.facts["log_end"]) == (frame.log_offset, end)
        assert "checksum" in error.facts["why"]
        statistics = driver.store.statistics()
        assert (statistics.index_holes, statistics.index_hole_bytes) == (1, frame.size)
        assert str(frame.log_offset) in driver.store.troubles()["index"]


def test_the_answer_says_when_hidden_messages_were_stored_and_which() -> None:
    rotting = Rotting()
    with rotting.opened() as driver:
        rotting.fill(driver)
        frame, before, behind = (rotting.frame(ROTTEN + step) for step in (0, -1, 1))
        rotting.rot(frame)
        [hole] = find(driver, b"all").uncovered
        assert hole == UncoveredRange(
            frame.log_offset, frame.log_offset + frame.size, before.stored_at_us, behind.stored_at_us,
            (QueueSpan(ROTTEN % 2, ROTTEN // 2, ROTTEN // 2 + 1),),
        )  # fmt: skip
        # A search of another time is complete.
        assert find(driver, b"all", begin_us=behind.stored_at_us + 1).uncovered == ()
        assert find(driver, b"all", end_us=before.stored_at_us - 1).uncovered == ()


def test_damage_at_the_end_of_the_log_hides_nothing_that_comes_later() -> None:
    rotting = Rotting()
    with rotting.opened() as driver:
        rotting.fill(driver)
        rotting.rot(rotting.frame(MESSAGES - 1))
        assert bodies(find(driver, b"all")) == others(MESSAGES - 1)
        driver.send("t", 0, [Message(b"later", key=b"later")])
        assert bodies(find(driver, b"later")) == [b"later"]
        assert len(find(driver, b"all").uncovered) == 1


def test_a_restart_still_knows_the_hole_and_reports_nothing_new() -> None:
    rotting = Rotting()
    with rotting.opened() as driver:
        rotting.fill(driver)
        rotting.rot(rotting.frame(ROTTEN))
        first = find(driver, b"all").uncovered
    for _ in range(2):
        with rotting.opened() as driver:
            driver.send("t", 0, [Message(b"more", key=b"more")])
            assert find(driver, b"all").uncovered == first
    assert len(rotting.told) == 1


def test_a_log_that_was_restored_is_indexed_where_the_hole_was() -> None:
    rotting = Rotting()
    with rotting.opened() as driver:
        rotting.fill(driver)
        frame = rotting.frame(ROTTEN)
        rotting.rot(frame)
        assert find(driver, b"all").uncovered
    rotting.rot(frame)
    with rotting.opened() as driver:
        found = find(driver, b"all")
        assert (bodies(found), found.uncovered) == (others(), ())


def test_a_frame_that_rots_after_it_was_indexed_is_told_by_the_search() -> None:
    rotting = Rotting()
    with rotting.opened() as driver:
        rotting.fill(driver)
        assert bodies(find(driver, b"all")) == others()
        frame = rotting.frame(ROTTEN)
        rotting.rot(frame)
        for _ in range(2):
            found = find(driver, b"all")
            assert bodies(found) == others(ROTTEN)
            assert [each.log_begin for each in found.uncovered] == [frame.log_offset]
        assert find(driver, b"k7").uncovered == ()
        assert [error.facts["log_begin"] for error in rotting.told] == [frame.log_offset]


def test_after_salvage_a_search_says_what_is_lost() -> None:
    rotting = Rotting()
    with rotting.opened() as driver:
        rotting.fill(driver)
        assert bodies(find(driver, b"all")) == others()
    frame, following = rotting.frame(ROTTEN), rotting.frame(ROTTEN + 1)
    rotting.rot(frame)
    rotting.rot(following)
    report = salvage.salvage(CrashingFiles(rotting.disk), 1000, 64)
    assert len(report.gaps) == 1
    with rotting.opened() as driver:
        found = find(driver, b"all")
        assert bodies(found) == others(ROTTEN, ROTTEN + 1)
        [hole] = found.uncovered
        assert (hole.log_begin, hole.log_end) == (frame.log_offset, following.log_offset + following.size)
        assert hole.queues == (QueueSpan(0, 2, 3), QueueSpan(1, 1, 2))


def test_a_hole_goes_with_the_part_of_the_log_that_retention_removes() -> None:
    rotting = Rotting(segment_bytes=4096)
    rotting.settings = config(segment_bytes=4096, retention=RetentionPolicy(retention_bytes=8192))
    with rotting.opened() as driver:
        rotting.fill(driver)
        rotting.rot(rotting.frame(0))
        assert driver.store.statistics().index_holes == 0
        find(driver, b"all")
        assert driver.store.statistics().index_holes == 1
        for _ in range(20):
            driver.send("t", 0, [bytes(1500)])
        assert driver.store.retain().remove > 0
        assert driver.store.statistics().index_holes == 0
        assert find(driver, b"all").uncovered == ()


@pytest.mark.parametrize("damage", ["header", "checksum of a block", "hole table"])
def test_a_damaged_index_file_with_a_hole_is_built_anew_with_it(damage: str) -> None:
    rotting = Rotting()
    with rotting.opened() as driver:
        rotting.fill(driver)
        rotting.rot(rotting.frame(ROTTEN))
        first = find(driver, b"all").uncovered
    [path] = rotting.disk.paths("index")
    data = bytearray(rotting.disk.bytes_of(path))
    data[{"header": 20, "checksum of a block": 70, "hole table": len(data) - 5}[damage]] ^= 1
    rotting.disk.overwrite(path, bytes(data))
    with rotting.opened() as driver:
        found = find(driver, b"all")
        assert (bodies(found), found.uncovered) == (others(ROTTEN), first)
        assert driver.store.index_notes()
