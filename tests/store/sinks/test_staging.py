"""Staged messages: what readers see of them, what interrupts publishing, and what then becomes of it."""

from __future__ import annotations

import errno
import threading
from concurrent.futures import Future
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rocketq.errors import BrokerUnavailable, CorruptFrame, QueueNotFound, StoreFull
from rocketq.errors.sink_errors import NotCoordinator, SinkBusy, StageNotFound
from rocketq.model import FlushMode, Message
from rocketq.protocol.documents.sinks import StageName
from rocketq.protocol.frame import FrameKind
from rocketq_broker.store.config import RetentionPolicy
from rocketq_broker.store.disk.files import OSFiles
from rocketq_broker.store.index.key_query import KeyQuery
from rocketq_broker.store.recovery.salvage import LostStaged, salvage
from rocketq_broker.store.store import MessageStore
from tests.support.crashing_files import CrashingFiles
from tests.support.disk import Disk
from tests.support.staging import NAME, publish, request_for, stage
from tests.support.store_driver import ANSWER_S, Driver, answer, batch, config, opened
from tests.support.workload import end_life

PUBLICATION = (NAME.sink, NAME.batch, NAME.run)
#: Every frame of a decided batch is copied by a group of its own.
ONE_BY_ONE = {"publish_bytes_max": 1}


def memory(seed: int = 1) -> CrashingFiles:
    return CrashingFiles(Disk(seed))


def test_staged_messages_are_seen_by_nobody_until_their_batch_is_published() -> None:
    with opened(config(), memory()) as driver:
        driver.create("t", 2)
        driver.send("t", 0, [b"before"])
        first = stage(driver, {0: [Message(b"a", key=b"k")], 1: [b"b", b"c"]})
        stage(driver, {0: [b"an attempt that failed"]})
        second = stage(driver, {0: [b"d"]})
        driver.send("t", 0, [b"between"])
        assert [each.count for each in first] == [1, 2]
        assert driver.bodies("t", 0) == [b"before", b"between"]
        driver.store.catch_up_index()
        assert driver.store.query_by_key(KeyQuery("t", b"k")).slices == ()
        publish(driver, first + second)
        assert driver.bodies("t", 0) == [b"before", b"between", b"a", b"d"]
        assert driver.bodies("t", 1) == [b"b", b"c"]
        driver.store.catch_up_index()
        [found] = driver.store.query_by_key(KeyQuery("t", b"k")).slices
        assert (found.header.kind, found.header.published, found.offset) == (FrameKind.MESSAGES, True, 2)
        assert not driver.store.sinks.table.stages


def test_what_arrives_by_publishing_wakes_those_who_wait_for_it() -> None:
    arrivals: list[set[tuple[str, int]]] = []
    with opened(config(), memory(), on_arrival=lambda some: arrivals.append(set(some))) as driver:
        driver.create("t", 2)
        staged = stage(driver, {1: [b"a"]})
        assert arrivals == []
        publish(driver, staged)
        assert arrivals == [{("t", 1)}]


def test_a_stage_of_another_coordinator_or_queue_is_refused_whole() -> None:
    with opened(config(), memory()) as driver:
        driver.create("t", 1)
        stage(driver, {0: [b"a"]})
        with pytest.raises(NotCoordinator) as raised:
            stage(driver, {0: [b"b"]}, StageName("etl", 0, "run-1", "broker-b"))
        assert raised.value.coordinator == "broker-a"
        with pytest.raises(QueueNotFound):
            stage(driver, {0: [b"c"], 1: [b"d"]})
        [there] = driver.store.sinks.table.stages.values()
        assert (len(there.frames), there.messages) == (1, 1)


@pytest.mark.parametrize("flush", FlushMode)
@pytest.mark.parametrize("writes", [2, 4, 9])
def test_publishing_goes_on_by_itself_after_a_crash(flush: FlushMode, writes: int) -> None:
    disk = Disk(writes)
    settings = config(flush=flush, **ONE_BY_ONE)
    store = MessageStore.open(settings, files=CrashingFiles(disk))
    driver = Driver(store)
    driver.create("t", 1)
    bodies = [b"%d" % number for number in range(10)]
    staged = [frame for body in bodies for frame in stage(driver, {0: [body]})]
    store.flush()
    # Each group writes the log and then a queue's units.
    disk.fail("write", errno.EIO, nth=writes, path="commitlog")
    with pytest.raises(BrokerUnavailable):
        publish(driver, staged)
    done = driver.ends("t")[0]
    assert 0 < done < len(bodies)
    disk.end_session()
    end_life(store)
    disk.faults.clear()
    with opened(settings, CrashingFiles(disk)) as again:
        answer(partial(again.store.sinks.publish, NAME.sink, request_for(staged)))
        assert again.bodies("t", 0) == bodies
        assert again.store.sinks.table.has_published(PUBLICATION)


def test_sends_during_publishing_wait_for_one_commit_only() -> None:
    with opened(config(**ONE_BY_ONE), memory()) as driver:
        driver.create("t", 1)
        staged = [frame for number in range(20) for frame in stage(driver, {0: [b"c%d" % number]})]
        published: Future[Any] = Future()
        sent: Future[Any] = Future()
        left = iter(range(5))

        def send_next(outcome: Any) -> None:
            # On the writer's thread: the send is there when it looks again.
            number = next(left, None)
            if number is None:
                sent.set_result(outcome)
                return
            driver.store.append("t", [batch(0, [b"s%d" % number])], send_next)

        # The writer is held until both are there: it would be through with the batch before the first send.
        both_there = threading.Event()
        driver.store.append("t", [batch(0, [b"hold"])], lambda outcome: both_there.wait(ANSWER_S))
        driver.store.sinks.publish(NAME.sink, request_for(staged), published.set_result)
        driver.store.append("t", [batch(0, [b"first"])], send_next)
        both_there.set()
        assert not isinstance(sent.result(ANSWER_S), Exception)
        assert published.result(ANSWER_S) is None
        order = driver.bodies("t", 0)
        places = [order.index(b"s%d" % number) for number in range(5)]
        assert all(later - earlier == 2 for earlier, later in pairwise(places)), order
        assert [each for each in order if each.startswith(b"c")] == [b"c%d" % n for n in range(20)]


def test_a_disk_that_is_full_makes_publishing_pause_until_there_is_room() -> None:
    disk = Disk(1)
    with opened(config(**ONE_BY_ONE), CrashingFiles(disk)) as driver:
        driver.create("t", 1)
        staged = [frame for number in range(3) for frame in stage(driver, {0: [b"%d" % number + bytes(900)]})]
        disk.free_bytes = 3000
        with pytest.raises(StoreFull):
            publish(driver, staged)
        assert "publishing" in driver.store.troubles()
        disk.free_bytes = None
        driver.store.retain()
        publish(driver, staged)
        assert [body[:1] for body in driver.bodies("t", 0)] == [b"0", b"1", b"2"]
        assert driver.store.troubles() == {}


def test_retention_keeps_what_may_still_have_to_be_published() -> None:
    disk = Disk(1)
    settings = config(segment_bytes=4096, retention=RetentionPolicy(retention_bytes=1))
    with opened(settings, CrashingFiles(disk)) as driver:
        driver.create("t", 1)
        driver.create("u", 1)
        stage(driver, {0: [b"opens the stage, and is dropped"]}, StageName("etl", 9, "r", "broker-a"))
        answer(partial(driver.store.sinks.drop, driver.store.sinks.table.stages[0]))
        for _ in range(4):
            driver.send("u", 0, [bytes(2000)])
        staged = stage(driver, {0: [b"a" + bytes(2000)]})
        for _ in range(8):
            driver.send("u", 0, [bytes(2000)])
        kept = driver.store.sinks.table.floor
        assert kept == staged[0].log_offset
        assert driver.store.retain().remove > 0
        assert driver.store.statistics().log_begin <= kept
        assert driver.store.retain().remove == 0
    files = CrashingFiles(disk)
    for path in [*disk.paths("consumequeue"), *disk.paths("state"), *disk.paths("index")]:
        files.remove(path)
    # From the log alone, whose oldest segments are gone.
    with opened(settings, CrashingFiles(disk)) as driver:
        publish(driver, staged)
        assert driver.bodies("t", 0)[0][:1] == b"a"
        assert driver.store.retain().remove > 0
        assert driver.store.statistics().log_begin > kept


def test_messages_of_a_topic_that_was_deleted_meanwhile_go_with_it() -> None:
    with opened(config(), memory()) as driver:
        driver.create("t", 1)
        driver.create("u", 1)
        staged = stage(driver, {0: [b"a"]}) + stage(driver, {0: [b"b"]}, topic="u")
        driver.delete("t")
        driver.create("t", 1)
        publish(driver, staged)
        assert (driver.bodies("t", 0), driver.bodies("u", 0)) == ([], [b"b"])


def test_a_sink_that_is_publishing_is_busy_unless_it_is_given_up() -> None:
    disk = Disk(1)
    with opened(config(**ONE_BY_ONE), CrashingFiles(disk)) as driver:
        driver.create("t", 1)
        staged = [frame for number in range(3) for frame in stage(driver, {0: [b"%d" % number + bytes(900)]})]
        disk.free_bytes = 3000
        with pytest.raises(StoreFull):
            publish(driver, staged)
        disk.free_bytes = None
        sinks = driver.store.sinks
        for call in (partial(sinks.reset, "etl"), partial(sinks.delete, "etl", False)):
            with pytest.raises(SinkBusy):
                answer(call)
        answer(partial(sinks.delete, "etl", True))
        driver.store.retain()
        assert driver.ends("t") == [1]
        with pytest.raises(StageNotFound):
            publish(driver, staged)


# --- rot ------------------------------------------------------------------------------------


def damaged(directory: Path, log_offset: int) -> None:
    """Flip a bit in the body of the frame at a log offset of the first segment."""
    path = directory / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[log_offset + 200] ^= 1
    path.write_bytes(data)


def test_damage_to_a_decided_frame_is_told_and_nothing_behind_it_overtakes(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        driver.create("t", 1)
        staged = [frame for body in (b"a", b"b", b"c") for frame in stage(driver, {0: [body + bytes(300)]})]
    damaged(tmp_path, staged[1].log_offset)
    with opened(config(tmp_path, **ONE_BY_ONE)) as driver:
        with pytest.raises(CorruptFrame):
            publish(driver, staged)
        assert driver.ends("t") == [1]
        assert "publishing" in driver.store.troubles()
        driver.send("t", 0, [b"sends go on"])
        assert driver.ends("t") == [2]


@pytest.mark.parametrize("snapshot_knows", [True, False])
def test_salvage_reports_lost_staged_messages_and_publishes_the_rest(
    tmp_path: Path, snapshot_knows: bool
) -> None:
    settings = config(tmp_path, segment_bytes=(8 << 10) if snapshot_knows else (1 << 20))
    with opened(settings) as driver:
        driver.create("t", 1)
        staged = [frame for body in (b"a", b"b", b"c") for frame in stage(driver, {0: [body + bytes(300)]})]
        if snapshot_knows:
            for _ in range(4):
                driver.send("t", 0, [bytes(3000)])
        else:
            publish(driver, staged)
    # Two frames in a row become one lost frame.
    damaged(tmp_path, staged[0].log_offset)
    damaged(tmp_path, staged[1].log_offset)
    files = OSFiles(settings.directory)
    report = salvage(files, settings.queue_file_units, settings.open_files_max)
    assert all("staged messages for queue 0" in each.claims for each in report.gaps)
    assert report.staged == (LostStaged("etl", 0, "run-1", not snapshot_knows, 2),)
    with opened(settings) as driver:
        if snapshot_knows:
            publish(driver, staged)
        bodies = [body[:1] for body in driver.bodies("t", 0)]
        assert bodies[-1:] == [b"c"]
        assert (b"a" in bodies, b"b" in bodies) == (not snapshot_knows, not snapshot_knows)
        assert driver.store.sinks.table.has_published(PUBLICATION)
