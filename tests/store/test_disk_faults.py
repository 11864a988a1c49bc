"""The disk is full, refuses a write, fails a sync: nothing is acknowledged that is not so."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rocketq.errors import BrokerUnavailable, StoreFull
from rocketq.model import FlushMode
from rocketq.protocol.documents.broker import CreateTopicRequest
from rocketq_broker.store.disk.files import OSFiles
from rocketq_broker.store.errors import LogFailed, StoreError
from rocketq_broker.store.store import MessageStore
from tests.support.crashing_files import CrashingFiles
from tests.support.disk import Disk
from tests.support.store_driver import ANSWER_S, Driver, batch, burst, config, opened
from tests.support.workload import Lives, end_life

SMALL: dict[str, Any] = {"segment_bytes": 8192, "queue_file_units": 16}


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

    def __init__(self, **settings: Any) -> None:
        self.disk = Disk()
        self.settings = config(**{**SMALL, **settings})
        self.faults: list[StoreError] = []

    def opened(self) -> AbstractContextManager[Driver]:
        return opened(self.settings, CrashingFiles(self.disk), on_fault=self.faults.append)

    def abandoned(self) -> Driver:
        """A started store that is left behind, as a crashed process leaves it."""
        store = MessageStore.open(self.settings, files=CrashingFiles(self.disk), on_fault=self.faults.append)
        return Driver(store)


def contents_of(driver: Driver) -> dict[int, list[bytes]]:
    return {queue: driver.bodies("orders", queue) for queue in range(2)}


@pytest.mark.parametrize("flush", list(FlushMode))
@pytest.mark.parametrize("free", [0, 1, 100, 900, 4000])
def test_a_full_disk_refuses_a_send_and_takes_it_once_there_is_space(flush: FlushMode, free: int) -> None:
    faulty = Faulty(flush=flush)
    with faulty.opened() as driver:
        driver.create("orders", 2)
        driver.send("orders", 0, [b"first"])
        faulty.disk.free_bytes = free
        with pytest.raises(StoreFull):
            driver.append("orders", [batch(0, [b"x" * 3000]), batch(1, [b"y" * 3000])])
        assert contents_of(driver) == {0: [b"first"], 1: []}
        assert faulty.faults == []
        faulty.disk.free_bytes = None
        assert driver.send("orders", 0, [b"second"]) == 1
    with faulty.opened() as driver:
        assert contents_of(driver) == {0: [b"first", b"second"], 1: []}


@pytest.mark.parametrize("kind", ["write", "create", "sync_directory", "make_directory"])
@pytest.mark.parametrize("path", ["commitlog", "consumequeue"])
def test_a_send_without_disk_space_is_refused_and_leaves_no_trace(kind: str, path: str) -> None:
    faulty = Faulty(segment_bytes=4096)
    driver = faulty.abandoned()
    driver.create("orders", 2)
    struck = faulty.disk.fail(kind, errno.ENOSPC, path=path)
    sent: list[bytes] = []
    refused = 0
    for number in range(12):
        try:
            driver.send("orders", number % 2, [b"%d" % number + bytes(900)])
            sent.append(b"%d" % number)
        except StoreFull:
            refused += 1
    applies = (kind, path) not in {("make_directory", "commitlog"), ("sync_directory", "consumequeue")}
    assert struck.struck == applies
    assert refused == struck.struck
    assert faulty.faults == []
    for end in (faulty.disk.end_session, faulty.disk.cut_power):
        end()
        end_life(driver.store)
        if not faulty.disk.is_on:
            faulty.disk.restart()
        driver = faulty.abandoned()
        found = [body.rstrip(b"\0") for bodies in contents_of(driver).values() for body in bodies]
        assert sorted(found) == sorted(sent)
    end_life(driver.store)


@pytest.mark.parametrize("seed", range(20))
def test_a_segment_that_was_taken_back_does_not_return_when_the_power_does(seed: int) -> None:
    """It would lie behind a hole, and a store with a hole in its log refuses to start."""
    faulty = Faulty(segment_bytes=4096)
    faulty.disk.rng.seed(seed)
    driver = faulty.abandoned()
    driver.create("orders", 2)
    driver.send("orders", 0, [b"safe"])
    faulty.disk.fail("write", errno.ENOSPC, nth=2, path="commitlog")
    outcomes = burst(
        driver.store,
        [partial(driver.store.append, "orders", [batch(queue, [b"x" * 2500])]) for queue in (0, 1)],
    )
    assert [type(outcome) for outcome in outcomes] == [StoreFull] * 2
    faulty.disk.cut_power()
    end_life(driver.store)
    faulty.disk.restart()
    with faulty.opened() as driver:
        assert contents_of(driver) == {0: [b"safe"], 1: []}


@pytest.mark.parametrize("kind", ["write", "sync", "replace", "create"])
def test_a_full_disk_only_postpones_the_snapshot(kind: str) -> None:
    faulty = Faulty()
    with faulty.opened() as driver:
        driver.create("orders", 2)
        faulty.disk.fail(kind, errno.ENOSPC, path="state")
        driver.store.take_snapshot()
        assert driver.store.statistics().snapshot_position == 0
        driver.send("orders", 0, [b"on it goes"])
        driver.store.take_snapshot()
        assert driver.store.statistics().snapshot_position == driver.store.statistics().log_end
    assert faulty.faults == []


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("evict", [False, True])
def test_a_failed_sync_acknowledges_nothing_and_stops_the_store(error: int, evict: bool) -> None:
    faulty = Faulty()
    driver = faulty.abandoned()
    driver.create("orders", 2)
    driver.send("orders", 0, [b"safe"])
    faulty.disk.fail("sync", error, path="commitlog", evict=evict)
    outcomes = burst(
        driver.store,
        [partial(driver.store.append, "orders", [batch(0, [b"lost?"])]) for _ in range(3)],
    )
    assert [type(outcome) for outcome in outcomes] == [BrokerUnavailable] * 3
    assert [type(fault) for fault in faulty.faults] == [LogFailed]
    with pytest.raises(BrokerUnavailable):
        driver.send("orders", 0, [b"later"])
    assert driver.bodies("orders", 0) == [b"safe"], "what is already there can still be read"
    faulty.disk.cut_power()
    end_life(driver.store)
    faulty.disk.restart()
    with faulty.opened() as driver:
        assert driver.bodies("orders", 0)[:1] == [b"safe"]
        assert set(driver.bodies("orders", 0)[1:]) <= {b"lost?"}
        driver.send("orders", 1, [b"healthy"])


def test_no_later_success_counts_after_a_failed_sync() -> None:
    """The kernel tells of a failed write-back once; whoever syncs next is told that all is well."""
    faulty = Faulty(flush=FlushMode.ASYNC)
    driver = faulty.abandoned()
    driver.create("orders", 2)
    faulty.disk.fail("sync", errno.EIO, path="commitlog")
    for _ in range(2):
        with pytest.raises(LogFailed):
            driver.store.flush()
    assert driver.store.statistics().durable_end == 0
    end_life(driver.store)


def test_a_new_process_does_not_trust_pages_that_a_failed_sync_left_clean() -> None:
    faulty = Faulty()
    driver = faulty.abandoned()
    driver.create("orders", 2)
    faulty.disk.fail("sync", errno.EIO, path="commitlog")
    with pytest.raises(BrokerUnavailable):
        driver.send("orders", 0, [b"seen in the page cache" * 100])
    faulty.disk.end_session()
    end_life(driver.store)
    driver = faulty.abandoned()
    kept = driver.bodies("orders", 0)
    assert len(kept) == 1
    driver.send("orders", 0, [b"acknowledged on top of it"])
    faulty.disk.cut_power()
    end_life(driver.store)
    faulty.disk.restart()
    with faulty.opened() as driver:
        assert driver.bodies("orders", 0) == [*kept, b"acknowledged on top of it"]


@pytest.mark.parametrize("kind", ["create", "write", "truncate", "sync", "sync_directory"])
def test_a_start_on_a_failing_disk_is_refused_and_the_next_one_is_well(kind: str) -> None:
    faulty = Faulty(flush=FlushMode.ASYNC)
    driver = faulty.abandoned()
    driver.create("orders", 2)
    driver.send("orders", 0, [b"safe"])
    faulty.disk.end_session()
    end_life(driver.store)
    torn = faulty.disk.paths("commitlog")[-1]
    faulty.disk.overwrite(torn, faulty.disk.bytes_of(torn) + b"torn")
    fault = faulty.disk.fail(kind, errno.ENOSPC)
    files = CrashingFiles(faulty.disk)
    if kind == "create":
        files.remove("abort")
    with pytest.raises(LogFailed, match="No space"):
        MessageStore.open(faulty.settings, files=files)
    assert fault.struck
    files.lock()
    with faulty.opened() as driver:
        assert driver.bodies("orders", 0) == [b"safe"]
        driver.send("orders", 0, [b"healthy"])


def test_a_new_directory_is_durable_with_all_those_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    OSFiles(tmp_path / "a" / "b")
    assert synced == [str(tmp_path), str(tmp_path / "a")]
    OSFiles(tmp_path / "a" / "b")
    assert len(synced) == 2


def test_what_a_start_serves_is_on_disk() -> None:
    """Also what a killed process had only written: its readers must not see it go."""
    faulty = Faulty(flush=FlushMode.ASYNC)
    driver = faulty.abandoned()
    driver.create("orders", 2)
    driver.send("orders", 0, [b"only written"])
    faulty.disk.end_session()
    end_life(driver.store)
    driver = faulty.abandoned()
    assert driver.bodies("orders", 0) == [b"only written"]
    faulty.disk.cut_power()
    end_life(driver.store)
    faulty.disk.restart()
    with faulty.opened() as driver:
        assert driver.bodies("orders", 0) == [b"only written"]


def test_a_write_error_acknowledges_nothing_and_stops_the_store() -> None:
    faulty = Faulty()
    driver = faulty.abandoned()
    driver.create("orders", 2)
    driver.send("orders", 0, [b"safe"])
    faulty.disk.fail("write", errno.EIO, path="commitlog", share=0.9)
    with pytest.raises(BrokerUnavailable):
        driver.send("orders", 0, [b"x" * 500])
    assert [type(fault) for fault in faulty.faults] == [LogFailed]
    faulty.disk.end_session()
    end_life(driver.store)
    with faulty.opened() as driver:
        assert driver.bodies("orders", 0) == [b"safe"]
        assert driver.send("orders", 0, [b"healthy"]) == 1


def test_the_owner_hears_of_a_fault_in_housekeeping_and_only_once() -> None:
    faulty = Faulty(flush=FlushMode.ASYNC, flush_interval_ms=1)
    heard = threading.Event()
    faults: list[StoreError] = []

    def hear(fault: StoreError) -> None:
        faults.append(fault)
        heard.set()

    store = MessageStore.open(faulty.settings, files=CrashingFiles(faulty.disk), on_fault=hear)
    faulty.disk.fail("sync", errno.EIO, path="commitlog")
    driver = Driver(store)
    driver.create("orders", 2)
    assert heard.wait(ANSWER_S)
    with pytest.raises(BrokerUnavailable):
        driver.send("orders", 0, [b"x"])
    with pytest.raises(LogFailed):
        store.flush()
    end_life(store)
    assert len(faults) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_defect_in_a_callback_stops_the_store() -> None:
    faulty = Faulty()
    driver = faulty.abandoned()

    def defective(result: object) -> None:
        raise RuntimeError("a defect")

    create = [
        partial(driver.store.create_topic, name, CreateTopicRequest()) for name in ("orders", "refunds")
    ]

    def both(done: Callable[[Any], None]) -> None:
        create[0](defective)
        create[1](done)

    made = burst(driver.store, [both])[0]
    assert made.name == "refunds", "one sender's defect does not cost another its answer"
    with pytest.raises(BrokerUnavailable):
        driver.create("later", 2)
    assert [type(fault) for fault in faulty.faults] == [LogFailed]
    end_life(driver.store)


def test_closing_on_a_dead_disk_raises_and_still_lets_go_of_the_directory(tmp_path: Path) -> None:
    faulty = Faulty(flush=FlushMode.ASYNC)
    files = CrashingFiles(faulty.disk)
    store = MessageStore.open(faulty.settings, files=files)
    Driver(store).create("orders", 2)
    faulty.disk.fail("sync", errno.EIO, path="commitlog")
    with pytest.raises(LogFailed):
        store.close()
    files.lock()


@pytest.mark.parametrize("style", range(20))
def test_queues_half_rebuilt_at_a_power_cut_are_rebuilt_again(style: int) -> None:
    faulty = Faulty()
    faulty.disk.rng.seed(style)
    with faulty.opened() as driver:
        driver.create("orders", 2)
        for number in range(30):
            driver.send("orders", 0, [b"%d" % number])
        wanted = driver.bodies("orders", 0)
    for path in faulty.disk.paths("consumequeue"):
        CrashingFiles(faulty.disk).remove(path)
    driver = faulty.abandoned()
    # The system may write back whatever it likes; here, names before contents.
    for directory in ("consumequeue", "consumequeue/0", "consumequeue/0/0"):
        CrashingFiles(faulty.disk).sync_directory(directory)
    faulty.disk.cut_power()
    end_life(driver.store)
    faulty.disk.restart()
    with faulty.opened() as driver:
        assert driver.bodies("orders", 0) == wanted
