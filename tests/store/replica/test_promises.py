"""What a start finds of a replica's disk, and keeps until the replica has judged it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketq.model import FlushMode
from rocketq_broker.store.disk import replica_standing as standing
from rocketq_broker.store.errors import CorruptLog, CorruptStanding
from rocketq_broker.store.log.commit_log import CommitLog
from tests.support.crashing_files import CrashingFiles
from tests.support.disk import Disk
from tests.support.replicas import member, open_member
from tests.support.store_driver import config
from tests.support.workload import end_life


def test_a_damaged_end_is_doubted_until_the_next_incarnation() -> None:
    disk = Disk()
    settings = config(flush=FlushMode.ASYNC)
    with member(config(flush=FlushMode.SYNC), CrashingFiles(Disk()), waits=False) as master:
        master.lead(1)
        slave = open_member(settings, CrashingFiles(disk))
        slave.replica.begin_life("first")
        master.create("orders")
        slave.fetch(master)
        first = slave.end
        for number in range(3):
            master.send("orders", 0, [b"%d" % number * 100])
            slave.fetch(master)
        disk.end_session()
        end_life(slave.store)
        # A sector that never reached the disk; the frames behind it did, and say that it was on the master's.
        data = bytearray(disk.bytes_of(CommitLog.path(0)))
        data[first + 100] ^= 1
        disk.overwrite(CommitLog.path(0), bytes(data))
        for _ in range(2):
            with member(settings, CrashingFiles(disk)) as again:
                assert again.end == first
                assert "on the disk of the master" in again.replica.found.doubt
        with member(settings, CrashingFiles(disk)) as again:
            again.replica.begin_life("second")
            again.catch_up(master)
        with member(settings, CrashingFiles(disk)) as again:
            found = again.replica.found
            assert (found.doubt, found.was_stopped_cleanly, found.same_boot) == ("", True, True)
            assert again.replica.kept.incarnation == "second"


def test_damage_below_a_checkpoint_of_a_follower_is_rot() -> None:
    disk = Disk()
    settings = config(flush=FlushMode.ASYNC)
    with member(config(flush=FlushMode.SYNC), CrashingFiles(Disk()), waits=False) as master:
        master.lead(1)
        slave = open_member(settings, CrashingFiles(disk))
        master.create("orders")
        slave.fetch(master)
        first = slave.end
        for number in range(3):
            master.send("orders", 0, [b"%d" % number * 100])
            slave.fetch(master)
        slave.store.flush()
        slave.replica.keep_confirmed(slave.end, 1)
        disk.end_session()
        end_life(slave.store)
        data = bytearray(disk.bytes_of(CommitLog.path(0)))
        data[first + 100] ^= 1
        disk.overwrite(CommitLog.path(0), bytes(data))
        with pytest.raises(CorruptLog, match="was on disk"):
            open_member(settings, CrashingFiles(disk))


def test_what_a_replica_keeps_survives_and_damage_of_it_is_named(tmp_path: Path) -> None:
    with member(config(tmp_path)) as slave:
        assert slave.replica.kept.incarnation == ""
        slave.replica.begin_life("first")
        slave.replica.keep_standing("group-1", 7)
        slave.replica.keep_confirmed(0, 7)
    with member(config(tmp_path)) as slave:
        kept = slave.replica.kept
        assert (kept.group, kept.epoch, kept.incarnation, kept.confirmed_epoch) == ("group-1", 7, "first", 7)
    path = tmp_path / standing.PATH
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptStanding, match="checksum"):
        open_member(config(tmp_path))
