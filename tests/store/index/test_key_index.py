"""Finding messages by key, whatever happened to the index since."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketq.clock import ManualClock
from rocketq.errors import TopicNotFound
from rocketq.model import Message
from rocketq_broker.store.config import RetentionPolicy
from rocketq_broker.store.index import index_file, key_index
from rocketq_broker.store.index.key_query import PlaceInLog
from rocketq_broker.store.store import KeyQuery
from tests.support.store_driver import Driver, config, opened


def found(driver: Driver, topic: str, key: bytes, **query: int) -> list[bytes]:
    """Index all there is, and return the bodies that a query by key finds, newest first."""
    driver.store.flush()
    driver.store.catch_up_index()
    result = driver.store.query_by_key(KeyQuery(topic, key, **query))
    assert result.lag_bytes == 0
    return [each.batch.column("body")[0].as_py() for each in result.slices]


def keyed(key: bytes, body: bytes, **properties: str) -> Message:
    return Message(body, key=key, properties=properties or None)


def test_a_message_is_found_by_its_key_newest_first(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        driver.create("t", queues=2)
        for number in range(5):
            driver.send("t", number % 2, [keyed(b"a", b"a%d" % number), keyed(b"b", b"b%d" % number)])
        assert found(driver, "t", b"a") == [b"a4", b"a3", b"a2", b"a1", b"a0"]
        assert found(driver, "t", b"b", limit=2) == [b"b4", b"b3"]
        assert found(driver, "t", b"c") == []


def test_a_message_is_found_by_each_of_its_further_keys(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        driver.create("t", queues=1)
        driver.send("t", 0, [keyed(b"k", b"one", KEYS="x y"), Message(b"two", properties={"KEYS": "y"})])
        assert found(driver, "t", b"x") == [b"one"]
        assert found(driver, "t", b"y") == [b"two", b"one"]
        assert found(driver, "t", b"k") == [b"one"]


def test_the_same_key_in_another_topic_is_not_found(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        for name in ("t", "u"):
            driver.create(name, queues=1)
            driver.send(name, 0, [keyed(b"k", name.encode())])
        assert found(driver, "t", b"k") == [b"t"]
        with pytest.raises(TopicNotFound):
            driver.store.query_by_key(KeyQuery("absent", b"k"))


@pytest.mark.parametrize("bytes_max", [1, 25_000, 1 << 30])
@pytest.mark.parametrize("limit", [1, 3, 64])
def test_pages_of_a_search_have_every_message_once(tmp_path: Path, bytes_max: int, limit: int) -> None:
    with opened(config(tmp_path)) as driver:
        driver.create("t", queues=2)
        for frame in range(4):
            sent = [keyed(b"k", bytes([frame, row]) * 5_000) for row in range(4)]
            driver.send("t", frame % 2, sent)
        driver.store.flush()
        driver.store.catch_up_index()
        bodies: list[bytes] = []
        before: PlaceInLog | None = None
        while True:
            page = driver.store.query_by_key(
                KeyQuery("t", b"k", limit=limit, bytes_max=bytes_max, before=before)
            )
            size = sum(each.batch.nbytes for each in page.slices)
            assert len(page.slices) <= limit
            assert size <= bytes_max or len(page.slices) == 1
            bodies += [each.batch["body"][0].as_py()[:2] for each in page.slices]
            if (before := page.last) is None:
                break
        assert bodies == [bytes([frame, row]) for frame in (3, 2, 1, 0) for row in (3, 2, 1, 0)]


def test_a_found_message_keeps_nothing_else_of_its_batch(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        driver.create("t", queues=1)
        driver.send("t", 0, [keyed(b"k", b"x"), *(Message(bytes(100_000)) for _ in range(20))])
        driver.store.flush()
        driver.store.catch_up_index()
        [found] = driver.store.query_by_key(KeyQuery("t", b"k")).slices
        buffers = [each for column in found.batch.columns for each in column.buffers() if each is not None]
        assert sum(each.size for each in buffers) < 10_000


def test_a_hash_collision_is_never_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def all_alike(topic: str, column: object) -> object:
        import numpy as np

        return np.full(len(column), 7, dtype=np.uint64)  # type: ignore[arg-type]

    monkeypatch.setattr(key_index, "key_hashes", all_alike)
    with opened(config(tmp_path)) as driver:
        driver.create("t", queues=1)
        driver.send("t", 0, [keyed(b"a", b"1"), keyed(b"b", b"2"), keyed(b"a", b"3")])
        assert found(driver, "t", b"a") == [b"3", b"1"]


def test_a_time_window_bounds_what_is_found(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(config(tmp_path), clock=clock) as driver:
        driver.create("t", queues=1)
        times = []
        for number in range(4):
            clock.advance(1000)
            times.append(clock.now_us())
            driver.send("t", 0, [keyed(b"k", b"%d" % number)])
        assert found(driver, "t", b"k", begin_us=times[1], end_us=times[2]) == [b"2", b"1"]


def test_messages_of_a_deleted_topic_are_not_found_in_its_successor(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        driver.create("t", queues=1)
        driver.send("t", 0, [keyed(b"k", b"old")])
        assert found(driver, "t", b"k") == [b"old"]
        driver.delete("t")
        driver.create("t", queues=1)
        assert found(driver, "t", b"k") == []
        driver.send("t", 0, [keyed(b"k", b"new")])
        assert found(driver, "t", b"k") == [b"new"]


def test_a_restart_goes_on_where_the_last_file_ended(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        driver.create("t", queues=1)
        driver.send("t", 0, [keyed(b"k", b"1")])
        assert found(driver, "t", b"k") == [b"1"]
    for _ in range(3):
        with opened(config(tmp_path)) as driver:
            assert found(driver, "t", b"k")[-1] == b"1"
            driver.send("t", 0, [keyed(b"k", b"more")])
    with opened(config(tmp_path)) as driver:
        assert found(driver, "t", b"k") == [b"more", b"more", b"more", b"1"]
        # Small files are joined, so restarts leave no crumbs.
        assert len(list((tmp_path / index_file.DIRECTORY).iterdir())) == 1


def test_a_lost_index_is_built_anew_from_the_log(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        driver.create("t", queues=1)
        driver.send("t", 0, [keyed(b"k%d" % number, b"%d" % number) for number in range(100)])
    for each in (tmp_path / index_file.DIRECTORY).iterdir():
        each.unlink()
    with opened(config(tmp_path)) as driver:
        assert found(driver, "t", b"k42") == [b"42"]


def test_every_flipped_bit_in_an_index_file_is_noticed_and_costs_nothing(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        driver.create("t", queues=1)
        driver.send("t", 0, [keyed(b"k%d" % number, b"%d" % number) for number in range(50)])
    [path] = (tmp_path / index_file.DIRECTORY).iterdir()
    good = path.read_bytes()
    for at in range(0, len(good), 37):
        damaged = bytearray(good)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        with opened(config(tmp_path)) as driver:
            for number in (0, 25, 49):
                assert found(driver, "t", b"k%d" % number) == [b"%d" % number], f"bit flipped at {at}"
            assert driver.store.index_notes(), f"the bit flipped at byte {at} went unnoticed"
        [path] = (tmp_path / index_file.DIRECTORY).iterdir()


def test_index_files_go_with_the_log_they_are_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "FILE_ENTRIES", 100)
    monkeypatch.setattr(key_index, "SMALL_FILE_ENTRIES", 50)
    settings = config(tmp_path, segment_bytes=64 << 10, retention=RetentionPolicy(retention_bytes=128 << 10))
    with opened(settings) as driver:
        driver.create("t", queues=1)
        for number in range(60):
            driver.send("t", 0, [keyed(b"k%d" % number, bytes(300)) for _ in range(20)])
        assert len(found(driver, "t", b"k0")) == 20
        files_before = len(list((tmp_path / index_file.DIRECTORY).iterdir()))
        assert driver.store.retain().remove > 0
        assert found(driver, "t", b"k0") == []
        assert len(found(driver, "t", b"k59")) == 20
        assert len(list((tmp_path / index_file.DIRECTORY).iterdir())) < files_before
