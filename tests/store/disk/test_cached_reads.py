"""Reads that take the page cache only: what they answer, and when they leave it to a thread."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rocketq.model import PullStatus
from rocketq_broker.store.disk.cached_reads import cached_only
from rocketq_broker.store.disk.files import File, NotCached, OSFiles
from rocketq_broker.store.disk.open_files import Handles
from rocketq_broker.store.reads import CACHED_PULL_BYTES_MAX
from tests.support.crashing_files import CrashingFiles
from tests.support.disk import Disk
from tests.support.store_driver import Driver, config, opened

CONTENT = bytes(range(256)) * 64


@pytest.fixture
def file(tmp_path: Path) -> File:
    file = OSFiles(tmp_path).open("data", create=True)
    file.write([CONTENT], 0)
    return file


def refuse(number: int) -> Any:
    def preadv(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    return preadv


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="only Linux can read from the page cache alone")
def test_a_short_read_goes_on_and_the_end_of_the_file_ends_it(
    file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    def piecewise(descriptor: int, buffers: Sequence[Any], at: int, flags: int = 0) -> int:
        data = os.pread(descriptor, min(1_000, len(buffers[0])), at)
        buffers[0][: len(data)] = data
        return len(data)

    monkeypatch.setattr(os, "preadv", piecewise)
    assert file.read_cached(5_000, 100) == CONTENT[100:5_100]
    assert file.read_cached(5_000, len(CONTENT) - 10) == CONTENT[-10:]
    assert file.read_cached(10, len(CONTENT)) == b""


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="only Linux can read from the page cache alone")
def test_what_would_wait_or_cannot_be_told_is_not_cached(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (errno.EAGAIN, errno.EOPNOTSUPP):
        monkeypatch.setattr(os, "preadv", refuse(number))
        with pytest.raises(NotCached):
            file.read_cached(10, 0)
    monkeypatch.setattr(os, "preadv", refuse(errno.EIO))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        file.read_cached(10, 0)


class Recorded(CrashingFiles):
    """Counts the reads of each kind; `cold` has nothing in the page cache."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.cold = False
        self.cached = 0

    def open(self, path: str, *, create: bool = False) -> Any:
        files, inner = self, super().open(path, create=create)

        class Watched:
            read, write, sync, truncate, size = (
                inner.read, inner.write, inner.sync, inner.truncate, inner.size,
            )  # fmt: skip

            def read_cached(self, size: int, at: int) -> bytes:
                if files.cold:
                    raise NotCached
                files.cached += size
                return inner.read(size, at)

        return Watched()


@pytest.fixture
def files() -> Recorded:
    return Recorded(Disk())


@pytest.fixture
def driver(files: Recorded) -> Iterator[Driver]:
    with opened(config(), files) as driver:
        driver.create("orders", 1)
        yield driver


def test_a_pull_from_the_cache_answers_as_any_pull_does(files: Recorded, driver: Driver) -> None:
    driver.send("orders", 0, [b"one", b"two"])
    found = driver.store.pull_cached("orders", 0, 0, max_bytes=1 << 20)
    assert found is not None
    assert found.status is PullStatus.FOUND
    assert found == driver.store.pull("orders", 0, 0, max_bytes=1 << 20)
    assert files.cached > 0


def test_a_pull_of_what_is_not_cached_is_left_to_a_thread(files: Recorded, driver: Driver) -> None:
    driver.send("orders", 0, [b"one"])
    files.cold = True
    assert driver.store.pull_cached("orders", 0, 0, max_bytes=1 << 20) is None
    assert driver.bodies("orders", 0) == [b"one"]
    end = driver.store.pull_cached("orders", 0, 1, max_bytes=1 << 20)
    assert end is not None, "that there is nothing new is known without a read"
    assert end.status is PullStatus.NO_NEW_MSG


def test_a_pull_of_much_is_left_to_a_thread(files: Recorded, driver: Driver) -> None:
    for _ in range(3):
        driver.send("orders", 0, [bytes(CACHED_PULL_BYTES_MAX // 2)])
    assert driver.store.pull_cached("orders", 0, 0, max_bytes=2 * CACHED_PULL_BYTES_MAX) is None
    assert driver.store.pull_cached("orders", 0, 0, max_bytes=1) is not None
    assert files.cached <= 2 * CACHED_PULL_BYTES_MAX


def test_no_file_is_opened_for_a_read_from_the_cache(files: Recorded) -> None:
    handles = Handles(files, 1)
    for path in ("a", "b"):
        handles.get(path, create=True).write([b"data"], 0)
    with cached_only(100):
        assert handles.read("b", 4, 0) == b"data"
        with pytest.raises(NotCached):
            handles.read("a", 4, 0)
    assert handles.read("a", 4, 0) == b"data"
