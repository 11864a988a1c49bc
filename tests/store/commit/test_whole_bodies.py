"""What one body holds is in the log wholly or not at all, wherever a crash cuts the log."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any

import pytest

from rocketq.errors import RocketqError
from rocketq.model import FlushMode
from rocketq.protocol.frame import FrameHeader, FrameKind
from rocketq_broker.store.disk.open_files import Handles
from rocketq_broker.store.errors import LogFailed
from rocketq_broker.store.log.commit_log import CommitLog
from rocketq_broker.store.store import MessageStore
from tests.support.crashing_files import CrashingFiles
from tests.support.disk import Disk
from tests.support.staging import NAME
from tests.support.store_driver import Driver, batch, burst, config, opened
from tests.support.workload import end_life

QUEUES = 4
#: A body: the queue and the size of each of its messages, one batch a queue.
Body = Sequence[tuple[int, int]]

#: Bodies over several queues, small ones that share frames, and large ones that fill a segment.
BODIES: tuple[Body, ...] = (
    ((0, 10), (1, 10), (2, 10), (3, 10)),
    ((1, 20), (2, 20)),
    ((3, 900), (0, 900), (2, 900)),
    ((2, 5),),
    ((0, 5), (3, 5)),
    ((1, 700), (1, 700), (0, 30)),
)


def parts(number: int, body: Body) -> list[tuple[int, bytes]]:
    """Return the queue and the text of each message of a body; every text is different."""
    return [(queue, b"%d/%d." % (number, at) + bytes(size)) for at, (queue, size) in enumerate(body)]


def send(store: MessageStore, number: int, body: Body) -> Any:
    batches = [batch(queue, [text]) for queue, text in parts(number, body)]
    return partial(store.append, "t", batches)


def kept(driver: Driver) -> set[bytes]:
    """Return all messages that the store has; none if the topic itself was lost."""
    if not driver.store.topics():
        return set()
    return {text for queue in range(QUEUES) for text in driver.bodies("t", queue)}


def check_wholeness(driver: Driver, bodies: Sequence[Body]) -> int:
    """Fail if only a part of a body is there; return how many bodies are."""
    there = kept(driver)
    whole = 0
    for number, body in enumerate(bodies):
        texts = {text for _, text in parts(number, body)}
        assert texts <= there or not texts & there, f"body {number} survived in part"
        whole += texts <= there
    return whole


def headers(disk: Disk) -> list[FrameHeader]:
    files = CrashingFiles(disk)
    log = CommitLog(files, Handles(files, 8))
    return [frame.header for frame in log.frames(log.begin)]


def written(flush: FlushMode, segment_bytes: int, merge_bytes: int) -> Disk:
    """Return the disk of a store that was killed after it wrote all bodies as one group."""
    disk = Disk()
    settings = config(flush=flush, segment_bytes=segment_bytes, merge_bytes=merge_bytes)
    store = MessageStore.open(settings, files=CrashingFiles(disk))
    driver = Driver(store)
    driver.create("t", QUEUES)
    burst(store, [send(store, number, body) for number, body in enumerate(BODIES)])
    disk.end_session()
    end_life(store)
    return disk


def cut(disk: Disk, end: int) -> Disk:
    """Return a disk whose log ends at an offset, as if nothing behind it had been written."""
    image = {}
    for path, data in disk.image().items():
        folder, _, name = path.partition("/")
        if folder == "commitlog":
            if int(name) > end:
                continue
            data = data[: end - int(name)]
        image[path] = data
    return Disk.of(image)


@pytest.mark.parametrize("merge_bytes", [0, 16 << 10])
@pytest.mark.parametrize("segment_bytes", [4096, 1 << 20])
def test_a_log_cut_behind_any_frame_has_each_body_wholly_or_not(segment_bytes: int, merge_bytes: int) -> None:
    disk = written(FlushMode.SYNC, segment_bytes, merge_bytes)
    settings = config(segment_bytes=segment_bytes, merge_bytes=merge_bytes)
    seen = set()
    for header in headers(disk):
        for end in (header.log_offset + 64, header.log_offset + header.size):
            with opened(settings, CrashingFiles(cut(disk, end))) as driver:
                seen.add(check_wholeness(driver, BODIES))
                if driver.store.topics():
                    # The log goes on where it was cut.
                    driver.append("t", [batch(queue, [b"next"]) for queue in range(QUEUES)])
                    assert all(driver.bodies("t", queue)[-1] == b"next" for queue in range(QUEUES))
    assert {0, len(BODIES)} <= seen


def test_frames_that_bodies_share_bind_these_bodies_together() -> None:
    """Two bodies share a frame of queue 1, so neither may be cut off behind it."""
    disk = Disk()
    bodies: tuple[Body, ...] = (((0, 10), (1, 10)), ((1, 10), (2, 10)))
    with opened(config(), CrashingFiles(disk)) as driver:
        driver.create("t", QUEUES)
        burst(driver.store, [send(driver.store, number, body) for number, body in enumerate(bodies)])
        assert len(driver.slices("t", 1)) == 1
    messages = [each for each in headers(disk) if each.kind == FrameKind.MESSAGES]
    assert [(each.queue, each.unfinished) for each in messages] == [(0, True), (1, True), (2, False)]


def test_a_body_for_one_queue_is_in_one_frame_and_binds_nothing() -> None:
    disk = Disk()
    with opened(config(), CrashingFiles(disk)) as driver:
        driver.create("t", QUEUES)
        burst(driver.store, [send(driver.store, queue, ((queue, 10),)) for queue in range(QUEUES)])
    assert not any(each.unfinished for each in headers(disk))


def test_recovery_says_how_much_of_an_unfinished_append_it_dropped() -> None:
    disk = written(FlushMode.SYNC, 1 << 20, 0)
    first = next(each for each in headers(disk) if each.unfinished)
    end = first.log_offset + first.size
    store = MessageStore.open(config(), files=CrashingFiles(cut(disk, end)))
    report = store.report
    store.close()
    assert (report.log_end, report.torn_bytes) == (first.log_offset, first.size)
    assert "1 sound frame(s) of an append that was not finished" in report.notes[0]


def test_a_staged_body_cut_in_the_middle_leaves_no_frame_in_its_stage() -> None:
    disk = Disk()
    store = MessageStore.open(config(), files=CrashingFiles(disk))
    driver = Driver(store)
    driver.create("t", QUEUES)
    batches = [batch(queue, [b"staged"]) for queue in range(QUEUES)]
    burst(store, [partial(store.append, "t", batches, stage=NAME)])
    disk.end_session()
    end_life(store)
    staged = [each for each in headers(disk) if each.kind == FrameKind.STAGED]
    assert len(staged) == QUEUES
    for at, header in enumerate(staged, 1):
        image = cut(disk, header.log_offset + header.size)
        with opened(config(), CrashingFiles(image)) as driver:
            frames = [len(stage.frames) for stage in driver.store.sinks.table.stages.values()]
            assert frames == ([QUEUES] if at == QUEUES else [])


def work(store: MessageStore) -> int:
    """Send all bodies in two groups, until the disk gives out; return how many were acknowledged."""
    try:
        Driver(store).create("t", QUEUES)
    except RocketqError:
        return 0
    numbered = list(enumerate(BODIES))
    outcomes = [
        outcome
        for some in (numbered[:3], numbered[3:])
        for outcome in burst(store, [send(store, number, body) for number, body in some])
    ]
    return sum(not isinstance(each, RocketqError) for each in outcomes)


@pytest.mark.parametrize("flush", list(FlushMode))
@pytest.mark.parametrize("seed", range(6))
def test_a_power_cut_at_any_operation_leaves_each_body_whole_or_absent(seed: int, flush: FlushMode) -> None:
    settings = config(flush=flush, segment_bytes=(4096, 9000)[seed % 2], merge_bytes=(0, 4096)[seed // 3])
    found = set()
    for operation in count(1):
        disk = Disk(seed * 1000 + operation, cut_at=operation)
        acknowledged = 0
        try:
            store = MessageStore.open(settings, files=CrashingFiles(disk))
        except LogFailed:
            assert not disk.is_on
        else:
            acknowledged = work(store)
            disk.cut_power()
            end_life(store)
        was_cut = disk.operations >= operation
        disk.restart()
        with opened(settings, CrashingFiles(disk)) as driver:
            whole = check_wholeness(driver, BODIES)
            assert flush is FlushMode.ASYNC or whole >= acknowledged
            found.add(whole)
        if not was_cut:
            break
    assert len(found) > 2
