"""A store is what its files say: after a clean stop, after kill -9, and with files missing or stale."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketq.model import FlushMode
from rocketq_broker.store.config import StoreConfig
from rocketq_broker.store.errors import CorruptLog, MissingSegment, StoreLocked
from rocketq_broker.store.recovery.recovery import RecoveryReport
from rocketq_broker.store.store import MessageStore
from tests.support.store_driver import Driver, config, opened

SEGMENT = 6000


def small(directory: Path, **settings: Any) -> StoreConfig:
    return config(directory, **{"segment_bytes": SEGMENT, "queue_file_units": 7, **settings})


def fill(driver: Driver) -> None:
    """Give a store some of everything."""
    for topic, queues in (("orders", 3), ("refunds", 1), ("gone", 2)):
        driver.create(topic, queues)
    for number in range(60):
        driver.send("orders", number % 3, [b"%d" % number * (number + 1)] * (number % 4 + 1))
        if number % 7 == 0:
            driver.send("refunds", 0, [b"r%d" % number])
            driver.send("gone", 1, [b"g%d" % number])
            driver.commit("billing", "orders", number % 3, number // 4)
    driver.delete("gone")
    driver.commit("audit", "refunds", 0, 2)


def everything(driver: Driver) -> dict[str, Any]:
    """All that a store can be asked, in one value."""
    store = driver.store
    return {
        "topics": sorted(store.topics(), key=lambda each: each.name),
        "version": store.data_version,
        "bodies": {
            (each.name, queue): driver.bodies(each.name, queue)
            for each in store.topics()
            for queue in range(each.queues)
        },
        "times": {
            each.name: [piece.header.stored_at_us for piece in driver.slices(each.name, 0)]
            for each in store.topics()
        },
        "offsets": {each.name: store.offsets(each.name) for each in store.topics()},
        "groups": {group: driver.progress(group) for group in store.groups()},
        "log_end": store.statistics().log_end,
    }


@pytest.fixture
def filled(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A directory of a store that stopped in good order, and what it held."""
    directory = tmp_path / "store"
    with opened(small(directory)) as driver:
        fill(driver)
        driver.store.take_snapshot()
        driver.send("orders", 0, [b"behind the snapshot"])
        return directory, everything(driver)


def start(directory: Path, **settings: Any) -> tuple[RecoveryReport, dict[str, Any]]:
    store = MessageStore.open(small(directory, **settings))
    report = store.report
    found = everything(Driver(store))
    store.close()
    return report, found


def test_a_clean_restart_replays_nothing_and_is_the_same_broker(
    filled: tuple[Path, dict[str, Any]],
) -> None:
    directory, wanted = filled
    for _ in range(2):
        report, found = start(directory)
        assert found == wanted
        assert (report.clean, report.frames_replayed, report.torn_bytes) == (True, 0, 0)
        assert report.notes == ()


def test_appending_goes_on_where_it_stopped(filled: tuple[Path, dict[str, Any]]) -> None:
    directory, wanted = filled
    with opened(small(directory)) as driver:
        for (topic, queue), bodies in wanted["bodies"].items():
            assert driver.send(topic, queue, [b"next"]) == len(bodies)
            assert driver.bodies(topic, queue) == [*bodies, b"next"]


def _remove(*names: str) -> Callable[[Path], None]:
    def remove(directory: Path) -> None:
        for name in names:
            path = directory / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    return remove


def _shorten_a_queue_file(directory: Path) -> None:
    first = next(path for path in sorted((directory / "consumequeue").rglob("0*")) if path.is_file())
    os.truncate(first, first.stat().st_size - 20)


@pytest.mark.parametrize(
    "damage",
    [
        _remove("consumequeue"),
        _remove("state"),
        _remove("consumequeue", "state", "index"),
        _remove("consumequeue/0/1"),
        _remove("consumequeue/0/1/00000000000000000000"),
        _shorten_a_queue_file,
        lambda directory: (directory / "state/snapshot").write_bytes(b""),
        lambda directory: (directory / "abort").touch(),
    ],
    ids=[
        "queues",
        "state",
        "all derived",
        "a queue",
        "a queue file",
        "short file",
        "empty snapshot",
        "abort",
    ],
)
def test_the_log_alone_restores_the_whole_broker(
    filled: tuple[Path, dict[str, Any]], damage: Callable[[Path], None]
) -> None:
    directory, wanted = filled
    damage(directory)
    report, found = start(directory)
    assert found == wanted
    # And what was rebuilt is as good as what was there before.
    report, found = start(directory)
    assert found == wanted
    assert (report.clean, report.frames_replayed, report.notes) == (True, 0, ())


def test_a_stale_snapshot_only_makes_the_replay_longer(
    filled: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    directory, _ = filled
    shutil.copy(directory / "state/snapshot", tmp_path / "snapshot")
    with opened(small(directory)) as driver:
        for number in range(30):
            driver.send("orders", number % 3, [b"later %d" % number])
        driver.create("new", 1)
        driver.send("new", 0, [b"x"])
        driver.commit("billing", "orders", 0, 30)
        driver.store.take_snapshot()
        wanted = everything(driver)
    shutil.copy(tmp_path / "snapshot", directory / "state/snapshot")
    report, found = start(directory)
    assert found == wanted
    assert report.messages_replayed == 31
    assert 0 < report.replayed_from < report.log_end


def test_a_stale_snapshot_that_knows_a_deleted_topic_is_no_obstacle(
    filled: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    directory, _ = filled
    shutil.copy(directory / "state/snapshot", tmp_path / "snapshot")
    with opened(small(directory)) as driver:
        driver.delete("refunds")
        driver.create("refunds", 2)
        driver.send("refunds", 1, [b"another life"])
        wanted = everything(driver)
    shutil.copy(tmp_path / "snapshot", directory / "state/snapshot")
    _, found = start(directory)
    assert found == wanted


def test_a_log_that_ends_before_its_snapshot_has_lost_good_data(
    filled: tuple[Path, dict[str, Any]],
) -> None:
    directory, wanted = filled
    last = sorted((directory / "commitlog").iterdir())[-1]
    os.truncate(last, last.stat().st_size - 8)
    before = {path: path.stat().st_size for path in (directory / "commitlog").iterdir()}
    with pytest.raises(CorruptLog, match=f"below {wanted['log_end']}") as caught:
        start(directory)
    assert caught.value.facts["segment"].endswith(last.name)
    assert {path: path.stat().st_size for path in (directory / "commitlog").iterdir()} == before


@pytest.mark.parametrize("which", [1, 3])
def test_a_missing_segment_is_named_and_nothing_is_dropped(
    filled: tuple[Path, dict[str, Any]], which: int
) -> None:
    directory, wanted = filled
    segments = sorted((directory / "commitlog").iterdir())
    content = segments[which].read_bytes()
    segments[which].unlink()
    with pytest.raises(MissingSegment, match=str(int(segments[which].name))):
        start(directory)
    segments[which].write_bytes(content)
    assert start(directory)[1] == wanted


@pytest.mark.parametrize("flush", list(FlushMode))
def test_a_killed_process_loses_nothing_it_wrote(tmp_path: Path, flush: FlushMode) -> None:
    """The page cache outlives the process, so a torn tail needs more than kill -9."""
    living = MessageStore.open(small(tmp_path / "store", flush=flush))
    driver = Driver(living)
    fill(driver)
    wanted = everything(driver)
    shutil.copytree(tmp_path / "store", tmp_path / "as killed")
    living.close()
    report, found = start(tmp_path / "as killed", flush=flush)
    assert found == wanted
    assert not report.clean
    assert report.messages_replayed > 100


def test_a_torn_tail_is_cut_and_the_log_goes_on(filled: tuple[Path, dict[str, Any]]) -> None:
    directory, wanted = filled
    last = sorted((directory / "commitlog").iterdir())[-1]
    with last.open("ab") as file:
        file.write(b"\0" * 3 + os.urandom(200))
    report, found = start(directory)
    assert found == wanted
    assert report.torn_bytes == 203
    assert str(wanted["log_end"]) in report.notes[0]
    with opened(small(directory)) as driver:
        driver.send("orders", 0, [b"next"])
    assert start(directory)[0].torn_bytes == 0


def test_a_torn_first_frame_of_a_new_segment_takes_its_file_along(
    filled: tuple[Path, dict[str, Any]],
) -> None:
    directory, wanted = filled
    end = wanted["log_end"]
    (directory / "commitlog" / f"{end:020d}").write_bytes(os.urandom(100))
    report, found = start(directory)
    assert found == wanted
    assert report.torn_bytes == 100
    assert not (directory / "commitlog" / f"{end:020d}").exists()


# --- one at a time -------------------------------------------------------------------------


def test_a_second_store_on_the_directory_is_refused_and_disturbs_nothing(tmp_path: Path) -> None:
    with opened(small(tmp_path)) as driver:
        driver.create("orders", 1)
        with pytest.raises(StoreLocked, match=str(tmp_path)):
            MessageStore.open(small(tmp_path))
        assert driver.send("orders", 0, [b"undisturbed"]) == 0
    with opened(small(tmp_path)) as driver:
        assert driver.bodies("orders", 0) == [b"undisturbed"]


def test_another_process_is_refused_too(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from rocketq_broker.store.config import StoreConfig\n"
        "from rocketq_broker.store.errors import StoreLocked\n"
        "from rocketq_broker.store.store import MessageStore\n"
        "try: MessageStore.open(StoreConfig(Path(sys.argv[1])))\n"
        "except StoreLocked: print('locked')\n"
    )
    with opened(small(tmp_path)):
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    assert done.stdout == "locked\n"


def test_a_refused_start_leaves_the_directory_free(filled: tuple[Path, dict[str, Any]]) -> None:
    directory, wanted = filled
    hidden = sorted((directory / "commitlog").iterdir())[1]
    hidden.rename(directory / "aside")
    with pytest.raises(MissingSegment):
        start(directory)
    (directory / "aside").rename(hidden)
    assert start(directory)[1] == wanted
