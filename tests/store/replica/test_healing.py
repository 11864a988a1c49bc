"""Rot on one member is replaced by the bytes of another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketq.errors import CorruptFrame
from rocketq_broker.store.errors import CorruptLog, MissingSegment, ShipmentMisplaced
from rocketq_broker.store.log.commit_log import CommitLog, segment_name
from rocketq_broker.store.replica.healing import ClosedLog, closed_log
from rocketq_broker.store.replica.raw_frames import RawFrames
from tests.support.crashing_files import CrashingFiles
from tests.support.disk import Disk
from tests.support.replicas import Member, log_files, member, pair
from tests.support.store_driver import config

SETTINGS = {"segment_bytes": 4096}


def filled(master: Member) -> None:
    master.create("orders")
    for number in range(12):
        master.send("orders", 0, [b"%d " % number + bytes(600)])


def rot(path: Path, *places: int) -> None:
    data = bytearray(path.read_bytes())
    for place in places:
        data[place] ^= 0x40
    path.write_bytes(data)


def test_a_running_member_is_healed_in_place(tmp_path: Path) -> None:
    with pair(tmp_path, **SETTINGS) as (master, slave):
        filled(master)
        slave.catch_up(master)
        sound = log_files(tmp_path / "a")
        name = list(sound)[2]
        rot(tmp_path / "a" / "commitlog" / name, 1500, 2900)
        with pytest.raises(CorruptFrame):
            master.slices("orders", 0)
        damages = master.replica.damages()
        assert damages
        for damage in damages:
            raw = slave.replica.frames(damage.begin, damage.fetch_bytes)
            master.replica.heal(damage, raw)
        assert not master.replica.damages()
        assert log_files(tmp_path / "a") == sound
        assert master.bodies("orders", 0) == slave.bodies("orders", 0)


@pytest.mark.parametrize("lost", [False, True], ids=["damaged", "missing"])
def test_a_store_that_does_not_open_is_healed_and_opens(tmp_path: Path, lost: bool) -> None:
    with pair(tmp_path, **SETTINGS) as (master, slave):
        filled(master)
        slave.catch_up(master)
        slave.store.close()
        sound = log_files(tmp_path / "b")
        path = tmp_path / "b" / "commitlog" / list(sound)[1]
        if lost:
            path.unlink()
        else:
            rot(path, 1200)
            (tmp_path / "b" / "state" / "snapshot").unlink()
        with pytest.raises((CorruptLog, MissingSegment)), member(config(tmp_path / "b", **SETTINGS)):
            pass
        with closed_log(tmp_path / "b") as log:
            [damage] = log.damages()
            log.heal(damage, master.replica.frames(damage.begin, damage.fetch_bytes))
            assert not log.damages()
        assert log_files(tmp_path / "b") == sound
        with member(config(tmp_path / "b", **SETTINGS)) as healed:
            healed.catch_up(master)
            assert healed.bodies("orders", 0) == master.bodies("orders", 0)


def test_bytes_of_another_history_are_refused(tmp_path: Path) -> None:
    with pair(tmp_path / "one", **SETTINGS) as (master, _), pair(tmp_path / "two", **SETTINGS) as (other, _):
        filled(master)
        filled(other)
        before = log_files(tmp_path / "one" / "a")
        rot(tmp_path / "one" / "a" / "commitlog" / list(before)[1], 1200)
        damaged = log_files(tmp_path / "one" / "a")
        [damage] = master.replica.damages()
        with pytest.raises(ShipmentMisplaced):
            master.replica.heal(damage, other.replica.frames(damage.begin, damage.fetch_bytes))
        short = other.replica.frames(damage.begin, 1, damage.end)
        with pytest.raises(ShipmentMisplaced):
            master.replica.heal(damage, short)
        assert log_files(tmp_path / "one" / "a") == damaged


def test_a_power_cut_while_healing_leaves_damage_that_is_healed(tmp_path: Path) -> None:
    with member(config(tmp_path, **SETTINGS), waits=False) as master:
        master.lead(1)
        filled(master)
        sound = b"".join(log_files(tmp_path).values())
        image = {f"commitlog/{name}": data for name, data in log_files(tmp_path).items()}
        starts = sorted(int(name) for name in log_files(tmp_path))
        hurt = bytearray(image[f"commitlog/{segment_name(starts[1])}"])
        hurt[1200:2600] = bytes(1400)
        image[f"commitlog/{segment_name(starts[1])}"] = bytes(hurt)
        del image[f"commitlog/{segment_name(starts[3])}"]
        for cut_at in range(1, 8):
            disk = Disk.of(image, seed=cut_at)
            disk.cut_at = disk.operations + cut_at
            for _ in range(3):
                log = ClosedLog(CrashingFiles(disk))
                try:
                    for damage in log.damages():
                        raw = master.replica.frames(damage.begin, damage.fetch_bytes)
                        log.heal(damage, RawFrames(raw.at, [b"".join(raw.parts)], raw.segments))
                except OSError:
                    assert not disk.is_on
                disk.cut_power()
                disk.restart()
            assert disk.log_bytes() == sound
            assert CommitLog.path(starts[3]) in disk.paths("commitlog")
