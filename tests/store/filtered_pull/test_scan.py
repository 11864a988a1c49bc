"""Pulling through a filter: what comes, what does not, and how far one call looks."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from rocketq.clock import ManualClock
from rocketq.errors import CorruptFrame
from rocketq.model import Message, PullStatus
from rocketq.protocol.frame_slices import open_frames
from rocketq.protocol.hashing import hash_value
from rocketq_broker.store.filtered_pull import scan as selection
from rocketq_broker.store.log.commit_log import CommitLog
from rocketq_broker.store.store import PullResult
from tests.support.store_driver import Driver, config, opened


class OnlyTag:
    """Matches one tag; by hash and exactly, or only exactly."""

    def __init__(self, tag: str, by_hash: bool = True, also_hashes_of: str | None = None) -> None:
        self._tag = tag
        names = [tag] if also_hashes_of is None else [tag, also_hashes_of]
        self.hashes = np.array([hash_value(each) for each in names], np.uint64) if by_hash else None

    def mask(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        return np.array([tag == self._tag for tag in batch.column("tag").to_pylist()], dtype=np.bool_)


def count_reads(monkeypatch: pytest.MonkeyPatch, sizes: list[int]) -> None:
    """Note the size of every read of the log from now on."""

    def read(log: CommitLog, at: int, size: int, real: Any = CommitLog.read) -> bytes:
        sizes.append(size)
        data: bytes = real(log, at, size)
        return data

    monkeypatch.setattr(CommitLog, "read", read)


def pulled(result: PullResult, begin: int) -> list[tuple[int, bytes]]:
    """The offset and body of every message in an answer."""
    return [
        (offset, body)
        for piece in open_frames(b"".join(result.chunks), begin)
        for offset, body in zip(piece.offsets().tolist(), piece.batch.column("body").to_pylist(), strict=True)
    ]


def send_tagged(driver: Driver, batches: int, rows: int) -> list[tuple[int, bytes]]:
    """Send messages tagged t0..t4 in turn; return those of t3 with their offsets."""
    wanted, offset = [], 0
    for _ in range(batches):
        messages = [Message(b"%d" % (offset + i), tag=f"t{(offset + i) % 5}") for i in range(rows)]
        driver.send("t", 0, messages)
        wanted += [(offset + i, b"%d" % (offset + i)) for i in range(rows) if (offset + i) % 5 == 3]
        offset += rows
    return wanted


def pull_through(driver: Driver, chosen: OnlyTag, **limits: int) -> list[tuple[int, bytes]]:
    found, at = [], 0
    while True:
        result = driver.store.pull("t", 0, at, **{"max_bytes": 4096, **limits}, chosen=chosen)
        if result.status is PullStatus.NO_NEW_MSG:
            return found
        assert result.next_offset > at, "a filtered pull must advance"
        found += pulled(result, at)
        at = result.next_offset


@pytest.mark.parametrize(("batches", "rows"), [(1, 400), (40, 7), (200, 1)])
@pytest.mark.parametrize("by_hash", [True, False])
def test_exactly_what_matches_comes_with_its_offsets(
    tmp_path: Path, batches: int, rows: int, by_hash: bool
) -> None:
    with opened(config(tmp_path, merge_bytes=0)) as driver:
        driver.create("t", queues=1)
        wanted = send_tagged(driver, batches, rows)
        assert pull_through(driver, OnlyTag("t3", by_hash)) == wanted
        assert pull_through(driver, OnlyTag("t3", by_hash), max_messages=3) == wanted


def test_a_tag_whose_hash_collides_is_not_delivered(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        driver.create("t", queues=1)
        wanted = send_tagged(driver, 3, 50)
        assert pull_through(driver, OnlyTag("t3", also_hashes_of="t2")) == wanted


def test_a_pull_that_finds_nothing_advances_and_says_so(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        driver.create("t", queues=1)
        send_tagged(driver, 3, 50)
        result = driver.store.pull("t", 0, 0, max_bytes=4096, chosen=OnlyTag("absent"))
        assert (result.status, result.next_offset, result.chunks) == (PullStatus.NO_MATCHED_MSG, 150, [])


def test_messages_of_many_frames_come_in_one_and_keep_their_place_and_time(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(config(tmp_path, merge_bytes=0), clock=clock) as driver:
        driver.create("t", queues=1)
        for number in range(40):
            clock.advance(1_000)
            driver.send(
                "t", 0, [Message(b"%d" % number, tag="even" if row % 2 else "odd") for row in range(5)]
            )
        pull = partial(driver.store.pull, "t", 0, 3, max_bytes=1 << 20)
        stored = {
            offset: (piece.header.log_offset, piece.header.stored_at_us)
            for piece in open_frames(b"".join(pull().chunks), 3)
            for offset in piece.offsets().tolist()
        }
        answer = pull(chosen=OnlyTag("even"))
    assert len(answer.chunks) == 1
    found = {
        offset: (piece.header.log_offset, piece.header.stored_at_us)
        for piece in open_frames(answer.chunks[0], 3)
        for offset in piece.offsets().tolist()
    }
    assert len({place for place, _ in found.values()}) == 40
    assert found == {offset: stored[offset] for offset in range(3, 200) if offset % 5 % 2}


@pytest.mark.parametrize("rows", [7, 300])
def test_a_flipped_bit_is_never_served_through_a_filter(tmp_path: Path, rows: int) -> None:
    rng = random.Random(rows)
    with opened(config(tmp_path, merge_bytes=0)) as driver:
        driver.create("t", queues=1)
        wanted = send_tagged(driver, 6, rows)
        # Each frame has a candidate, so each is read.
        end = driver.store.statistics().log_end
        first = end - sum(map(len, driver.store.pull("t", 0, 0, max_bytes=1 << 20).chunks))
        caught = 0
        for _ in range(150):
            at, bit = rng.randrange(first, end), 1 << rng.randrange(8)
            with flipped(tmp_path / "commitlog" / f"{0:020d}", at, bit):
                try:
                    assert pull_through(driver, OnlyTag("t3")) == wanted
                except CorruptFrame:
                    caught += 1
        assert caught == 150
        assert pull_through(driver, OnlyTag("t3")) == wanted


@contextmanager
def flipped(path: Path, at: int, bit: int) -> Iterator[None]:
    """A bit of a file, flipped for a while."""
    with path.open("r+b", buffering=0) as file:
        [sound] = os.pread(file.fileno(), 1, at)
        os.pwrite(file.fileno(), bytes([sound ^ bit]), at)
        yield
        os.pwrite(file.fileno(), bytes([sound]), at)


def test_one_pull_looks_at_a_bounded_number_of_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "SCAN_MESSAGES_MAX", 100)
    with opened(config(tmp_path)) as driver:
        driver.create("t", queues=1)
        wanted = send_tagged(driver, 10, 70)
        first = driver.store.pull("t", 0, 0, max_bytes=1 << 20, chosen=OnlyTag("absent"))
        assert (first.status, first.next_offset) == (PullStatus.NO_MATCHED_MSG, 100)
        assert pull_through(driver, OnlyTag("t3"), max_bytes=1 << 20) == wanted


def test_frames_without_a_candidate_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    with opened(config(tmp_path, merge_bytes=0)) as driver:
        driver.create("t", queues=1)
        for number in range(50):
            driver.send("t", 0, [Message(b"x", tag="rare" if number == 30 else "common")] * 10)
        driver.store.flush()
        driver.store.catch_up_index()
        count_reads(monkeypatch, read)
        found = pull_through(driver, OnlyTag("rare"), max_bytes=1 << 20)
        frames_read = len(read)
    assert [offset for offset, _ in found] == list(range(300, 310))
    assert frames_read == 1
