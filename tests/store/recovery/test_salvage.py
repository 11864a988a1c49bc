"""Salvage: what survives damage keeps its offset, and what does not is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rocketq.model import PullStatus
from rocketq.protocol.frame_slices import open_frames
from rocketq_broker import salvage as command
from rocketq_broker.store.config import StoreConfig
from rocketq_broker.store.disk.files import OSFiles
from rocketq_broker.store.errors import CorruptLog, MissingSegment
from rocketq_broker.store.recovery.salvage import SalvageReport, salvage
from rocketq_broker.store.store import MessageStore
from tests.support.store_driver import Driver, config, opened

ROWS = 10


@pytest.fixture
def settings(tmp_path: Path) -> StoreConfig:
    """A store of two topics over several segments, stopped in good order."""
    settings = config(tmp_path, segment_bytes=32 << 10, merge_bytes=0)
    with opened(settings) as driver:
        for name in ("t", "u"):
            driver.create(name, queues=2)
        for number in range(80):
            bodies = [b"%d" % (number // 4 * ROWS + row) + bytes(200) for row in range(ROWS)]
            driver.send("tu"[number % 2], number // 2 % 2, bodies)
        driver.commit("g", "t", 0, 50)
    return settings


def segments(settings: StoreConfig) -> list[Path]:
    return sorted((settings.directory / "commitlog").iterdir())


def flip_bit(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def salvaged(settings: StoreConfig) -> SalvageReport:
    files = OSFiles(settings.directory)
    files.lock()
    try:
        return salvage(files, settings.queue_file_units, settings.open_files_max)
    finally:
        files.unlock()


def surviving(driver: Driver, topic: str, queue: int) -> dict[int, bytes]:
    """Every message that can still be read, by offset."""
    found: dict[int, bytes] = {}
    at = 0
    while True:
        result = driver.store.pull(topic, queue, at, max_bytes=4096)
        if result.status is PullStatus.NO_NEW_MSG:
            return found
        for piece in open_frames(b"".join(result.chunks), at):
            bodies = piece.batch.column("body").to_pylist()
            found.update(zip(piece.offsets().tolist(), bodies, strict=True))
        assert result.next_offset > at
        at = result.next_offset


def check_survivors(settings: StoreConfig, report: SalvageReport) -> None:
    lost = {
        (each.topic, each.queue, offset) for each in report.lost for offset in range(each.first, each.end)
    }
    assert lost
    with opened(settings) as driver:
        for topic in ("t", "u"):
            for queue in range(2):
                found = surviving(driver, topic, queue)
                expected = {o for o in range(20 * ROWS) if (topic, queue, o) not in lost}
                assert set(found) == expected
                assert all(body == b"%d" % offset + bytes(200) for offset, body in found.items())
        assert driver.progress("g") == {("t", 0): 50}
        assert driver.send("t", 0, [b"next"]) == 20 * ROWS


def test_a_damaged_frame_costs_its_own_messages_and_no_other(settings: StoreConfig) -> None:
    flip_bit(segments(settings)[2], 9000)
    (settings.directory / "state" / "snapshot").unlink()
    with pytest.raises(CorruptLog):
        MessageStore.open(settings)
    report = salvaged(settings)
    assert [gap.segment for gap in report.gaps] == [int(segments(settings)[2].name)]
    assert sum(each.end - each.first for each in report.lost) == ROWS
    check_survivors(settings, report)


def test_a_missing_segment_is_replaced_and_what_it_held_is_named(settings: StoreConfig) -> None:
    segments(settings)[3].unlink()
    with pytest.raises(MissingSegment):
        MessageStore.open(settings)
    report = salvaged(settings)
    assert report.gaps[0].why == "the segment's file is missing"
    check_survivors(settings, report)


def test_the_damaged_bytes_are_kept_aside(settings: StoreConfig) -> None:
    path = segments(settings)[2]
    flip_bit(path, 9000)
    before = path.read_bytes()
    gap = salvaged(settings).gaps[0]
    kept = (settings.directory / "salvage" / f"{gap.at:020d}").read_bytes()
    assert kept == before[gap.at - gap.segment : gap.end - gap.segment]


def test_a_sound_log_is_left_as_it_is(settings: StoreConfig) -> None:
    before = [path.read_bytes() for path in segments(settings)]
    report = salvaged(settings)
    assert (report.gaps, report.lost, report.recovery) == ((), (), None)
    assert [path.read_bytes() for path in segments(settings)] == before


def test_a_salvaged_log_can_be_rebuilt_from_itself_again(settings: StoreConfig) -> None:
    flip_bit(segments(settings)[1], 5000)
    report = salvaged(settings)
    check_survivors(settings, report)
    (settings.directory / "state" / "snapshot").unlink()
    with opened(settings) as driver:
        lost = {(e.topic, e.queue, o) for e in report.lost for o in range(e.first, e.end)}
        for queue in range(2):
            expected = {o for o in range(20 * ROWS) if ("u", queue, o) not in lost}
            assert set(surviving(driver, "u", queue)) == expected


def test_the_command_looks_first_and_changes_nothing_until_told(
    settings: StoreConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    path = segments(settings)[2]
    flip_bit(path, 9000)
    before = path.read_bytes()
    assert command.main(["--data-dir", str(settings.directory)]) == 10
    looked = json.loads(capsys.readouterr().out)
    assert [gap["why"] for gap in looked["gaps"]] == ["the checksum does not hold"]
    assert path.read_bytes() == before
    assert command.main(["--data-dir", str(settings.directory), "--yes"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert sum(each["end"] - each["first"] for each in report["lost"]) == ROWS
    assert command.main(["--data-dir", str(settings.directory)]) == 0


def test_the_command_leaves_a_running_brokers_directory_alone(
    settings: StoreConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    with opened(settings):
        assert command.main(["--data-dir", str(settings.directory), "--yes"]) == 1
    assert "in use by a broker that runs" in capsys.readouterr().err
