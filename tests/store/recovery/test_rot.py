"""A bit flips: the store says so, or it does not matter; what is served is never wrong."""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from rocketq.errors import CorruptFrame, RocketqError
from rocketq.model import FlushMode, TimeBoundary
from rocketq.protocol.frame import FrameHeader, FrameKind
from rocketq_broker.store.disk.open_files import Handles
from rocketq_broker.store.errors import CorruptLog, CorruptQueue, StoreError
from rocketq_broker.store.log.commit_log import CommitLog
from rocketq_broker.store.store import MessageStore
from tests.support.crashing_files import CrashingFiles
from tests.support.disk import Disk
from tests.support.store_driver import ANSWER_S, Driver, config, opened
from tests.support.workload import end_life

SMALL: dict[str, Any] = {"segment_bytes": 6000, "queue_file_units": 7}
TOPICS = {"orders": 3, "refunds": 1}


def fill(driver: Driver, first: int = 0) -> None:
    for number in range(first, first + 25):
        driver.send("orders", number % 3, [b"%d." % number + bytes(number * 12)] * (number % 4 + 1))
        if number % 5 == 0:
            driver.send("refunds", 0, [b"r%d" % number])
            driver.commit("billing", "orders", 0, number // 5)


def everything(driver: Driver) -> dict[str, Any]:
    bodies = {
        (topic, queue): driver.bodies(topic, queue)
        for topic, queues in TOPICS.items()
        for queue in range(queues)
    }
    return {"bodies": bodies, "progress": driver.progress("billing")}


@dataclass
class Rotting:
    """A disk with a filled store, closed or crashed, and what it held."""

    disk: Disk
    wanted: dict[str, Any]

    def flip(self, path: str, bit: int) -> None:
        data = bytearray(self.disk.bytes_of(path))
        data[bit // 8] ^= 1 << bit % 8
        self.disk.overwrite(path, bytes(data))

    def frames(self) -> list[FrameHeader]:
        files = CrashingFiles(self.disk)
        log = CommitLog(files, Handles(files, 8))
        return [frame.header for frame in log.frames(log.begin)]


def rotting(*, clean: bool, flush: FlushMode = FlushMode.SYNC, segment_bytes: int = 6000) -> Rotting:
    image, wanted = _filled(clean, flush, segment_bytes)
    return Rotting(Disk.of(image), wanted)


@cache
def _filled(clean: bool, flush: FlushMode, segment_bytes: int) -> tuple[dict[str, bytes], dict[str, Any]]:
    disk = Disk()
    settings = config(flush=flush, segment_bytes=segment_bytes, queue_file_units=7)
    store = MessageStore.open(settings, files=CrashingFiles(disk))
    driver = Driver(store)
    for topic, queues in TOPICS.items():
        driver.create(topic, queues)
    fill(driver)
    store.take_snapshot()
    fill(driver, 25)
    wanted = everything(driver)
    if not clean:
        disk.end_session()
    end_life(store)
    return disk.image(), wanted


def see(disk: Disk) -> dict[str, Any] | RocketqError:
    """Start a store and read all of it, in each way there is; return that, or what stopped it."""
    try:
        with opened(config(**SMALL), CrashingFiles(disk)) as driver:
            found = everything(driver)
            for topic in TOPICS:
                for boundary in TimeBoundary:
                    driver.store.offsets_at(topic, 1 << 60, boundary)
            return found
    except RocketqError as error:
        return error


def bits(seed: int, size: int, count: int) -> list[int]:
    rng = random.Random(seed)
    return sorted(rng.randrange(8 * size) for _ in range(count))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("part", ["first segment", "middle segment", "last segment"])
def test_a_flipped_bit_of_the_log_is_never_served(clean: bool, part: str) -> None:
    rotten = rotting(clean=clean)
    segments = rotten.disk.paths("commitlog")
    path = {"first segment": segments[0], "middle segment": segments[len(segments) // 2]}.get(
        part, segments[-1]
    )
    sound = rotten.disk.bytes_of(path)
    seen: set[str] = set()
    for bit in bits(len(path), len(sound), 40):
        rotten.flip(path, bit)
        found = see(rotten.disk)
        if isinstance(found, RocketqError):
            assert isinstance(found, CorruptLog | CorruptFrame), found
            seen.add(found.code)
        elif found != rotten.wanted:
            # Only what nothing vouches for may be cut, and then it is the end of every queue.
            assert not clean
            assert path == segments[-1]
            seen.add("cut")
            for place, bodies in rotten.wanted["bodies"].items():
                kept = found["bodies"][place]
                assert kept == bodies[: len(kept)]
        else:
            seen.add("harmless")
        rotten = rotting(clean=clean)
    assert seen & {"CORRUPT_LOG", "CORRUPT_FRAME", "cut"}


@pytest.mark.parametrize("flush", list(FlushMode))
def test_every_byte_of_a_frame_matters(flush: FlushMode) -> None:
    """Of a frame that recovery does not scan: pulling it, or asking for a time, tells of the damage."""
    rotten = rotting(clean=True, flush=flush)
    header = next(each for each in rotten.frames() if each.kind == FrameKind.MESSAGES and each.queue == 1)
    path = rotten.disk.paths("commitlog")[0]
    sound = rotten.disk.bytes_of(path)
    with opened(config(**SMALL), CrashingFiles(rotten.disk)) as driver:
        for byte in range(header.log_offset, header.log_offset + header.size):
            damaged = bytearray(sound)
            damaged[byte] ^= 0x10
            rotten.disk.overwrite(path, bytes(damaged))
            with pytest.raises((CorruptFrame, CorruptQueue)):
                driver.slices("orders", 1, header.queue_offset)
            # An answer or an error, but never a loop without end.
            with suppress(CorruptFrame, CorruptQueue):
                driver.store.offsets_at("orders", header.stored_at_us, TimeBoundary.LOWER)
            rotten.disk.overwrite(path, sound)
        assert driver.bodies("orders", 1) == rotten.wanted["bodies"]["orders", 1]


@pytest.mark.parametrize("clean", [True, False])
def test_a_flipped_bit_of_a_consume_queue_changes_nothing(clean: bool) -> None:
    """The damaged units are built again from the log."""
    for path in rotting(clean=clean).disk.paths("consumequeue")[::2]:
        rotten = rotting(clean=clean)
        sound = rotten.disk.bytes_of(path)
        for bit in bits(len(path), len(sound), 12):
            rotten.flip(path, bit)
            assert see(rotten.disk) == rotten.wanted
            rotten.disk.overwrite(path, sound)


def test_a_unit_that_leads_to_another_queue_or_topic_is_rebuilt() -> None:
    rotten = rotting(clean=True)
    headers = [each for each in rotten.frames() if each.kind == FrameKind.MESSAGES]
    path = "consumequeue/0/1/00000000000000000000"
    sound = rotten.disk.bytes_of(path)
    mine = int.from_bytes(sound[:8], "little")
    with opened(config(**SMALL), CrashingFiles(rotten.disk)) as driver:
        assert driver.bodies("orders", 1) == rotten.wanted["bodies"]["orders", 1]
        others = [each for each in headers if each.log_offset != mine][:30]
        for each in others:
            unit = each.log_offset.to_bytes(8, "little") + each.size.to_bytes(4, "little")
            rotten.disk.overwrite(path, unit + sound[12:])
            assert driver.bodies("orders", 1) == rotten.wanted["bodies"]["orders", 1]
            assert rotten.disk.bytes_of(path) == sound


def test_a_time_is_not_looked_up_in_another_queues_frames() -> None:
    rotten = rotting(clean=True)
    other = next(each for each in rotten.frames() if each.kind == FrameKind.MESSAGES and each.queue == 2)
    unit = other.log_offset.to_bytes(8, "little") + other.size.to_bytes(4, "little") + bytes(8)
    with opened(config(**SMALL), CrashingFiles(rotten.disk)) as driver:
        sound = driver.store.offsets_at("orders", other.stored_at_us, TimeBoundary.LOWER)
        for path in rotten.disk.paths("consumequeue/0/1"):
            rotten.disk.overwrite(path, unit * (len(rotten.disk.bytes_of(path)) // len(unit)))
        assert driver.store.offsets_at("orders", other.stored_at_us, TimeBoundary.LOWER) == sound


def test_housekeeping_that_meets_rot_goes_on_and_says_so() -> None:
    """One damaged frame must not end retention or the index, and with them the broker's disk."""
    rotten = rotting(clean=True)
    for path in rotten.disk.paths("index"):
        CrashingFiles(rotten.disk).remove(path)
    rotten.flip(rotten.disk.paths("commitlog")[1], 8 * 6)
    settings = config(**SMALL, retention_interval_ms=1, index_interval_ms=1)
    told: list[StoreError] = []
    met = threading.Event()

    def note(error: StoreError) -> None:
        told.append(error)
        met.set()

    with opened(settings, CrashingFiles(rotten.disk), on_damage=note) as driver:
        assert met.wait(ANSWER_S)
        driver.send("orders", 0, [b"and on it goes"])
        assert "cannot be read" in driver.store.troubles()["index"]
        assert "magic" in str(told[0])


@pytest.mark.parametrize("place", [0, 1 << 40, (1 << 64) - 1])
@pytest.mark.parametrize("size", [1, 63, (1 << 32) - 1])
def test_a_unit_that_leads_nowhere_asks_for_no_memory_and_does_not_loop(place: int, size: int) -> None:
    rotten = rotting(clean=True)
    unit = place.to_bytes(8, "little") + size.to_bytes(4, "little") + bytes(8)
    with opened(config(**SMALL), CrashingFiles(rotten.disk)) as driver:
        sound = driver.store.offsets_at("orders", 0, TimeBoundary.LOWER)
        for path in rotten.disk.paths("consumequeue/0/1"):
            rotten.disk.overwrite(path, unit * 7)
        assert driver.store.offsets_at("orders", 0, TimeBoundary.LOWER) == sound
        assert driver.bodies("orders", 1) == rotten.wanted["bodies"]["orders", 1]


def test_a_queue_file_deleted_while_the_store_runs_is_rebuilt() -> None:
    rotten = rotting(clean=True)
    settings = config(**{**SMALL, "open_files_max": 8})
    with opened(settings, CrashingFiles(rotten.disk)) as driver:
        for path in rotten.disk.paths("consumequeue/0/1"):
            CrashingFiles(rotten.disk).remove(path)
        assert driver.bodies("orders", 1) == rotten.wanted["bodies"]["orders", 1]
        assert driver.bodies("orders", 0) == rotten.wanted["bodies"]["orders", 0]


@pytest.mark.parametrize("clean", [True, False])
def test_a_flipped_bit_of_the_snapshot_is_noted_and_the_log_replayed(clean: bool) -> None:
    rotten = rotting(clean=clean)
    sound = rotten.disk.bytes_of("state/snapshot")
    noted = 0
    for bit in [*range(0, 24 * 8, 7), *bits(1, len(sound), 20)]:
        rotten.flip("state/snapshot", bit)
        store = MessageStore.open(config(**SMALL), files=CrashingFiles(rotten.disk))
        report = store.report
        assert everything(Driver(store)) == rotten.wanted
        assert report.replayed_from == 0
        assert report.notes[0].startswith("The snapshot is damaged")
        noted += 1
        store.close()
        store = MessageStore.open(config(**SMALL), files=CrashingFiles(rotten.disk))
        assert store.report.notes == (), "the one written at the end is sound again"
        store.close()
    assert noted == 48


# --- torn tail or rot ------------------------------------------------------------------------


def test_damage_below_a_later_durable_end_is_rot_and_changes_nothing() -> None:
    rotten = rotting(clean=False, segment_bytes=100_000)
    last = rotten.disk.paths("commitlog")[-1]
    start = int(last.rpartition("/")[2])
    behind_snapshot = len(rotten.frames()) // 2 + 5
    headers = [each for each in rotten.frames()[behind_snapshot:] if each.log_offset >= start]
    assert len(headers) > 3
    for damaged in headers[:-1]:
        rotten.flip(last, 8 * (damaged.log_offset - start + 70))
        before = rotten.disk.log_bytes()
        with (
            pytest.raises(CorruptLog, match=f"at offset {damaged.log_offset}, in segment {last}"),
            opened(config(**SMALL), CrashingFiles(rotten.disk)),
        ):
            pass
        assert rotten.disk.log_bytes() == before
        rotten = rotting(clean=False, segment_bytes=100_000)


def test_damage_behind_which_nothing_is_known_to_be_on_disk_is_a_torn_tail() -> None:
    rotten = rotting(clean=False)
    last = rotten.disk.paths("commitlog")[-1]
    start = int(last.rpartition("/")[2])
    damaged = rotten.frames()[-1]
    rotten.flip(last, 8 * (damaged.log_offset - start + 70))
    store = MessageStore.open(config(**SMALL), files=CrashingFiles(rotten.disk))
    report = store.report
    assert report.torn_bytes == damaged.size
    assert report.log_end == damaged.log_offset
    store.close()


def test_under_async_flush_unsynced_frames_behind_a_hole_are_cut() -> None:
    rotten = rotting(clean=False, flush=FlushMode.ASYNC, segment_bytes=100_000)
    last = rotten.disk.paths("commitlog")[-1]
    start = int(last.rpartition("/")[2])
    headers = [each for each in rotten.frames() if each.log_offset >= start]
    durable = max(each.durable_end for each in headers)
    damaged = next(each for each in headers if each.log_offset >= durable)
    rotten.flip(last, 8 * (damaged.log_offset - start + 70))
    store = MessageStore.open(config(**SMALL), files=CrashingFiles(rotten.disk))
    report = store.report
    assert report.log_end == damaged.log_offset
    assert report.torn_bytes == sum(each.size for each in headers if each.log_offset >= damaged.log_offset)
    store.close()


def test_what_a_snapshot_vouches_for_is_rot_even_when_its_queues_are_gone() -> None:
    """Without its queues a snapshot is no place to begin, but its word on the log still counts."""
    rotten = rotting(clean=True)
    for path in rotten.disk.paths("consumequeue"):
        CrashingFiles(rotten.disk).remove(path)
    last = rotten.disk.paths("commitlog")[-1]
    damaged = rotten.frames()[-1]
    rotten.flip(last, 8 * (damaged.log_offset - int(last.rpartition("/")[2]) + 70))
    for _ in range(2):
        found = see(rotten.disk)
        assert isinstance(found, CorruptLog), "also the second time: the refusal took no evidence away"
        assert found.facts["log_offset"] == damaged.log_offset


@pytest.mark.parametrize(
    ("flush", "which"), [(FlushMode.SYNC, 0), (FlushMode.SYNC, 2), (FlushMode.ASYNC, -2)]
)
def test_damage_in_any_segment_but_the_last_is_rot(flush: FlushMode, which: int) -> None:
    """Also where no frame vouches for it: a segment is synced before the next one begins."""
    rotten = rotting(clean=False, flush=flush)
    rotten.disk.overwrite("state/snapshot", b"")
    path = rotten.disk.paths("commitlog")[which]
    rotten.flip(path, 8 * 100)
    found = see(rotten.disk)
    assert isinstance(found, CorruptLog)
    assert found.facts["segment"] == path


def test_a_message_that_looks_like_a_frame_is_no_evidence() -> None:
    """A sender may put anything in a message, also a frame that says all before it was on disk."""
    from rocketq.protocol.frame import encode

    disk = Disk()
    store = MessageStore.open(config(flush=FlushMode.ASYNC), files=CrashingFiles(disk))
    driver = Driver(store)
    driver.create("orders", 1)
    begin = store.statistics().log_end
    fake = b"".join(
        bytes(part)
        for part in encode(
            kind=FrameKind.MESSAGES, topic=b"orders", body=b"", count=1,
            log_offset=begin + 4000, stored_at_us=1, durable_end=begin + 4000,
        )
    )  # fmt: skip
    driver.send("orders", 0, [fake * 20, b"R" * 1000, b"RQF\x01" * 1000])
    disk.end_session()
    end_life(store)
    rotten = Rotting(disk, {})
    rotten.flip("commitlog/" + "0" * 20, 8 * (begin + 70))
    with opened(config(flush=FlushMode.ASYNC), CrashingFiles(disk)) as driver:
        assert driver.ends("orders") == [0]


def test_a_long_message_of_magic_numbers_costs_recovery_little() -> None:
    """The search for a witness must not read a window anew for each place that could be a frame."""
    disk = Disk()
    store = MessageStore.open(config(flush=FlushMode.ASYNC), files=CrashingFiles(disk))
    driver = Driver(store)
    driver.create("orders", 1)
    begin = store.statistics().log_end
    driver.send("orders", 0, [b"----RQF\x01" * 100_000, b"RQF\x01----" * 100_000])
    disk.end_session()
    end_life(store)
    Rotting(disk, {}).flip("commitlog/" + "0" * 20, 8 * (begin + 70))
    read = 0

    class Counting(CrashingFiles):
        def open(self, path: str, *, create: bool = False) -> Any:
            file = super().open(path, create=create)
            counted = file.read

            class File:
                write, sync, truncate, size = file.write, file.sync, file.truncate, file.size

                def read(self, size: int, at: int) -> bytes:
                    nonlocal read
                    data = counted(size, at)
                    read += len(data)
                    return data

            return File()

    with opened(config(flush=FlushMode.ASYNC), Counting(disk)) as driver:
        assert driver.ends("orders") == [0]
    assert read < 10 * 1_600_000, f"{read} bytes were read to judge 1,600,000"


def test_store_errors_say_what_to_do() -> None:
    rotten = rotting(clean=False)
    rotten.flip(rotten.disk.paths("commitlog")[0], 800)
    rotten.disk.overwrite("state/snapshot", b"")
    found = see(rotten.disk)
    assert isinstance(found, StoreError)
    assert found.hint
