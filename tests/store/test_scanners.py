"""Long scans shared with processes beside the broker's: what comes is the same, whatever becomes of these."""

from __future__ import annotations

import itertools
import os
import select
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocketq.errors import CorruptFrame
from rocketq.protocol.model import Message, PullStatus
from rocketq_broker.filters.tags import TagFilter
from rocketq_broker.scanner import Segments
from rocketq_broker.store import filtered
from rocketq_broker.store import scanners as module
from rocketq_broker.store.commit_log import segment_name
from rocketq_broker.store.jobs import Job
from rocketq_broker.store.pieces import Piece
from rocketq_broker.store.reader import Place
from rocketq_broker.store.scanners import Scanner, Scanners
from tests.store.test_pieces import queue_of
from tests.store.test_selection import pulled
from tests.testbed.driver import Driver, config, opened

FRAMES, ROWS = 40, 20
RARE = TagFilter(["rare"])
WAIT_MS = 60_000


def fill(driver: Driver) -> list[tuple[int, bytes]]:
    """Send frames of which every message that is divisible by 7 is tagged `rare`; return those."""
    driver.create("t", queues=1)
    bodies = [b"%d" % number * 40 for number in range(FRAMES * ROWS)]
    for begin in range(0, len(bodies), ROWS):
        numbers = range(begin, begin + ROWS)
        driver.send("t", 0, [Message(bodies[n], tag="common" if n % 7 else "rare") for n in numbers])
    return [(number, body) for number, body in enumerate(bodies) if number % 7 == 0]


def wait_until_free(scanners: Scanners) -> None:
    """Wait until every process has said that it takes jobs."""
    scanners.free()
    for scanner in scanners._all:
        assert scanner._process is not None
        poll = select.poll()
        poll.register(scanner._process.stdout, select.POLLIN)
        assert poll.poll(WAIT_MS)
    assert scanners.free() == len(scanners._all)


def kill(scanner: Scanner) -> None:
    assert scanner._process is not None
    os.kill(scanner.pid, signal.SIGKILL)
    scanner._process.wait()


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filtered, "SHARED_BYTES_MIN", 1)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Driver, list[tuple[int, bytes]]]]:
    """A store of several segments, whose scans are shared with two processes."""
    path = tmp_path_factory.mktemp("shared")
    scanners = Scanners(path, 2)
    with opened(config(path, merge_bytes=0, segment_bytes=64 * 1024), beside=scanners) as driver:
        wanted = fill(driver)
        wait_until_free(scanners)
        yield driver, wanted
        scanners.close()


def pull_all(
    driver: Driver, offset: int = 0, end: int = FRAMES * ROWS, **limits: int
) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    while offset < end:
        result = driver.store.pull("t", 0, offset, **{"max_bytes": 1 << 20, **limits}, chosen=RARE, end=end)
        assert result.status in (PullStatus.FOUND, PullStatus.NO_MATCHED_MSG)
        assert offset < result.next_offset <= end
        found += pulled(result, offset)
        offset = result.next_offset
    return found


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    bounds=st.tuples(st.integers(0, FRAMES * ROWS), st.integers(0, FRAMES * ROWS)).map(sorted),
    max_bytes=st.sampled_from([1, 5_000, 50_000, 1 << 20]),
    max_messages=st.sampled_from([1, 10, 1_000]),
)
def test_a_shared_scan_finds_what_one_alone_finds(
    shared: tuple[Driver, list[tuple[int, bytes]]], any_size: None, bounds: list[int], max_bytes: int,
    max_messages: int,
) -> None:  # fmt: skip
    driver, wanted = shared
    begin, end = bounds
    found = pull_all(driver, begin, end, max_bytes=max_bytes, max_messages=max_messages)
    assert found == [each for each in wanted if begin <= each[0] < end]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), max_bytes=st.sampled_from([1, 5_000, 1 << 20]), is_taken=st.booleans())
def test_where_a_scan_is_cut_does_not_matter(
    shared: tuple[Driver, list[tuple[int, bytes]]], any_size: None, data: st.DataObject, max_bytes: int,
    is_taken: bool,
) -> None:  # fmt: skip
    driver, wanted = shared

    def plan(log: object, queue: object, offset: int, end: int, beside: object) -> filtered._Plan | None:
        if end - offset < 3:
            return None
        middle = data.draw(st.integers(offset + 1, end - 2))
        return filtered._Plan(middle, data.draw(st.integers(middle + 1, end)))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(filtered, "_plan", plan)
        if not is_taken:
            patched.setattr(filtered, "_begun", lambda offered, beside: [])
        assert pull_all(driver, max_bytes=max_bytes) == wanted


def test_one_answer_has_the_shares_of_all(
    shared: tuple[Driver, list[tuple[int, bytes]]], any_size: None
) -> None:
    driver, wanted = shared
    result = driver.store.pull("t", 0, 0, max_bytes=1 << 20, chosen=RARE)
    assert (len(result.chunks), result.next_offset) == (3, FRAMES * ROWS)
    assert pulled(result, 0) == wanted


def test_a_short_scan_is_not_shared(shared: tuple[Driver, list[tuple[int, bytes]]]) -> None:
    driver, wanted = shared
    result = driver.store.pull("t", 0, 0, max_bytes=1 << 20, chosen=RARE)
    assert (len(result.chunks), pulled(result, 0)) == (1, wanted)


@pytest.mark.parametrize("interpreter", ["/bin/false", "/no/such/interpreter"])
def test_a_process_that_cannot_start_costs_no_message(
    tmp_path: Path, any_size: None, monkeypatch: pytest.MonkeyPatch, interpreter: str
) -> None:
    monkeypatch.setattr(module.sys, "executable", interpreter)
    scanners = Scanners(tmp_path, 1)
    [scanner] = scanners._all
    with opened(config(tmp_path, merge_bytes=0), beside=scanners) as driver:
        wanted = fill(driver)
        assert pull_all(driver) == wanted
        if scanner._process is not None:
            scanner._process.wait()
        assert pull_all(driver) == wanted
        assert scanner.pid == 0
        assert scanners.begin(Job("t", 0, RARE, (), 5, 100, 1, (0,))) is None
        scanners.close()


def test_a_process_that_is_killed_costs_no_message(tmp_path: Path, any_size: None) -> None:
    scanners = Scanners(tmp_path, 1)
    with opened(config(tmp_path, merge_bytes=0), beside=scanners) as driver:
        wanted = fill(driver)
        wait_until_free(scanners)
        kill(scanners._all[0])
        assert pull_all(driver) == wanted
        assert scanners.free() == 0
        assert pull_all(driver) == wanted
        scanners.close()


def test_a_process_that_dies_over_its_job_costs_no_message(tmp_path: Path, any_size: None) -> None:
    class Dying(Scanners):
        def begin(self, job: Job) -> Scanner | None:
            [scanner] = self._all
            assert scanner.begin(job) is scanner
            kill(scanner)
            return scanner

    scanners = Dying(tmp_path, 1)
    with opened(config(tmp_path, merge_bytes=0), beside=scanners) as driver:
        wanted = fill(driver)
        wait_until_free(scanners)
        assert pull_all(driver) == wanted
        scanners.close()


def test_damage_in_the_share_of_another_is_told_by_the_pull_that_comes_to_it(
    tmp_path: Path, any_size: None
) -> None:
    scanners = Scanners(tmp_path, 1)
    with opened(config(tmp_path, merge_bytes=0), beside=scanners) as driver:
        wanted = fill(driver)
        places = np.unique(queue_of(driver).read(0, FRAMES * ROWS)["log_offset"])
        damaged = int(places[-2])
        with (tmp_path / "commitlog" / segment_name(0)).open("r+b") as file:
            file.seek(damaged + 200)
            file.write(b"\xff")
        wait_until_free(scanners)
        first = driver.store.pull("t", 0, 0, max_bytes=1 << 20, chosen=RARE)
        assert pulled(first, 0) == [each for each in wanted if each[0] < first.next_offset]
        with pytest.raises(CorruptFrame) as raised:
            pull_all(driver, first.next_offset)
        assert raised.value.offset == damaged
        scanners.close()


def test_a_process_that_is_busy_or_closed_takes_no_job(tmp_path: Path) -> None:
    scanners = Scanners(tmp_path, 1)
    [scanner] = scanners._all
    job = Job("t", 0, RARE, (), 5, 100, 1, (0,))
    assert scanners.begin(job) is None, "it was not even started"
    wait_until_free(scanners)
    share = scanners.begin(job)
    assert share is not None
    assert (scanners.begin(job), scanners.free()) == (None, 0)
    found = share.result()
    assert found is not None
    assert (found.chunks, found.found, found.next_offset) == ([], 0, 5)
    assert scanners.free() == 1
    scanners.close()
    assert (scanners.begin(job), scanners.free(), scanner.pid) == (None, 0, 0)


def test_a_process_ends_when_the_broker_is_gone(tmp_path: Path) -> None:
    scanner = Scanner(tmp_path)
    scanner.is_free()
    process = scanner._process
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(WAIT_MS / 1000) == 0
    scanner.close()


def test_a_job_leaves_no_segment_open(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    for start in (0, 10):
        (tmp_path / "commitlog" / segment_name(start)).write_bytes(bytes([start]) * 10)
    held = len(os.listdir("/proc/self/fd"))
    with Segments(tmp_path, (0, 10)) as segments:
        assert (segments.read(4, 3), segments.read(15, 10)) == (bytes(3), b"\n" * 5)
        assert len(os.listdir("/proc/self/fd")) == held + 2
    assert len(os.listdir("/proc/self/fd")) == held


@pytest.mark.parametrize("rows", [1, 1_000_000], ids=["an answer", "a job"])
def test_a_process_that_stands_still_is_waited_for_no_longer_than_it_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    scanners = Scanners(tmp_path, 1)
    [scanner] = scanners._all
    wait_until_free(scanners)
    monkeypatch.setattr(module, "ANSWER_S_MAX", 0.1)
    os.kill(scanner.pid, signal.SIGSTOP)
    piece = Piece(Place(0, 100, 0), np.arange(rows), 100)
    share = scanners.begin(Job("t", 0, RARE, (piece,), 5, 100, 1, (0,)))
    assert share is None or share.result() is None
    assert scanner.pid == 0
    scanners.close()


def test_closing_does_not_wait_for_a_process_that_stands_still(tmp_path: Path) -> None:
    scanners = Scanners(tmp_path, 1)
    wait_until_free(scanners)
    os.kill(scanners._all[0].pid, signal.SIGSTOP)
    share = scanners.begin(Job("t", 0, RARE, (), 5, 100, 1, (0,)))
    assert share is not None
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(share.result)
        scanners.close()
        assert waiting.result(5) is None


@given(st.lists(st.integers(1, 1_000), min_size=1, max_size=50), st.integers(1, 8))
def test_shares_follow_one_another_and_are_about_as_large(sizes: list[int], count: int) -> None:
    ends = filtered.in_shares(sizes, count)
    assert ends[-1] == len(sizes)
    assert len(ends) <= count
    shares = [sum(sizes[begin:end]) for begin, end in itertools.pairwise([0, *ends])]
    assert all(shares)
    assert max(shares) < sum(sizes) / count + 2 * max(sizes)
