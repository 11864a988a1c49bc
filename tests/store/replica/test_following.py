"""A follower takes the master's frames as they are, and its store is then the master's."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketq.errors import CorruptFrame
from rocketq.errors.replication_errors import NotMaster
from rocketq.model import FlushMode
from rocketq_broker.store.config import RetentionPolicy
from rocketq_broker.store.errors import SegmentGone, ShipmentMisplaced
from rocketq_broker.store.replica.raw_frames import RawFrames
from tests.support.replicas import log_files, member, pair
from tests.support.store_driver import NEVER_MS, Driver, batch, config, opened


def filled(driver: Driver, groups: int = 12) -> None:
    """Messages in some queues, of two topics, one of which goes again; and a group's offsets."""
    driver.create("orders")
    driver.create("gone")
    for number in range(groups):
        driver.send("orders", number % 4, [b"%d-%d" % (number, row) for row in range(5)])
        driver.send("gone", 0, [b"x" * 100])
    driver.commit("billing", "orders", 1, 3)
    driver.delete("gone")


@pytest.mark.parametrize("flush", list(FlushMode))
@pytest.mark.parametrize("bytes_max", [1, 700, 1 << 20])
def test_files_are_equal_and_readers_see_the_same(tmp_path: Path, flush: FlushMode, bytes_max: int) -> None:
    with pair(tmp_path, flush=flush, segment_bytes=4096) as (master, slave):
        filled(master)
        slave.catch_up(master, bytes_max)
        assert len(log_files(tmp_path / "a")) > 1
        assert log_files(tmp_path / "b") == log_files(tmp_path / "a")
        assert slave.ends("orders") == master.ends("orders") == [15, 15, 15, 15]
        assert slave.bodies("orders", 2) == master.bodies("orders", 2)
        assert slave.progress("billing") == {("orders", 1): 3}
        assert not slave.store.has_topic("gone")
        assert slave.replica.view().lineage == master.replica.view().lineage


def test_readers_of_a_follower_see_what_is_confirmed_only(tmp_path: Path) -> None:
    with pair(tmp_path) as (master, slave):
        master.create("orders")
        master.send("orders", 0, [b"a"])
        slave.catch_up(master)
        master.send("orders", 0, [b"b"])
        confirmed = slave.end
        slave.catch_up(master, confirm=False)
        assert slave.bodies("orders", 0) == [b"a"]
        assert slave.replica.confirmed == confirmed
        slave.replica.confirm(slave.end - 1)
        assert slave.bodies("orders", 0) == [b"a"], "a part of a group is not confirmed"
        slave.replica.confirm(slave.end)
        assert slave.bodies("orders", 0) == [b"a", b"b"]


def test_after_a_restart_readers_of_a_follower_see_no_more_than_the_checkpoint(tmp_path: Path) -> None:
    with member(config(tmp_path / "a"), waits=False) as master:
        master.lead(1)
        master.create("orders")
        master.send("orders", 0, [b"a"])
        with member(config(tmp_path / "b")) as slave:
            slave.catch_up(master)
            slave.replica.keep_confirmed(slave.end, 1)
            master.send("orders", 0, [b"b"])
            slave.catch_up(master, confirm=False)
        with member(config(tmp_path / "b")) as slave:
            assert slave.end == master.end
            assert slave.bodies("orders", 0) == [b"a"]
            master.send("orders", 0, [b"c"])
            slave.catch_up(master)
            assert slave.bodies("orders", 0) == [b"a", b"b", b"c"]
            assert log_files(tmp_path / "b") == log_files(tmp_path / "a")


def test_a_follower_refuses_local_writes_of_every_kind(tmp_path: Path) -> None:
    with pair(tmp_path) as (master, slave):
        master.create("orders")
        slave.catch_up(master)
        with pytest.raises(NotMaster):
            slave.send("orders", 0, [b"a"])
        with pytest.raises(NotMaster):
            slave.create("more")
        with pytest.raises(NotMaster):
            slave.commit("billing", "orders", 0, 0)
        assert slave.end == master.end


def test_damaged_bytes_are_refused_and_nothing_is_applied(tmp_path: Path) -> None:
    with pair(tmp_path) as (master, slave):
        filled(master)
        raw = master.replica.frames(0, 1 << 20)
        data = bytearray(b"".join(raw.parts))
        data[len(data) // 2] ^= 1
        with pytest.raises(CorruptFrame):
            slave.replica.append_frames(RawFrames(0, [bytes(data)], raw.segments))
        assert slave.end == 0
        slave.catch_up(master)
        assert log_files(tmp_path / "b") == log_files(tmp_path / "a")


def test_frames_that_do_not_follow_are_refused(tmp_path: Path) -> None:
    with pair(tmp_path) as (master, slave):
        filled(master)
        whole = master.replica.frames(0, 1 << 20)
        with pytest.raises(ShipmentMisplaced):
            slave.replica.append_frames(RawFrames(whole.at, whole.parts, ()))
        slave.catch_up(master)
        with pytest.raises(ShipmentMisplaced):
            slave.replica.append_frames(whole)


def test_an_append_of_several_frames_is_shipped_whole(tmp_path: Path) -> None:
    with pair(tmp_path, segment_bytes=4096) as (master, slave):
        master.create("orders")
        slave.catch_up(master)
        before = master.end
        master.append("orders", [batch(queue % 4, [bytes(900)]) for queue in range(12)])
        slave.fetch(master, 1)
        raw = master.replica.frames(slave.end, 1)
        assert slave.end > before, "a state frame is an append of its own"
        assert len(raw.segments) > 1
        assert raw.end == master.end
        slave.replica.append_frames(raw)
        assert log_files(tmp_path / "b") == log_files(tmp_path / "a")


def test_a_new_follower_begins_at_the_oldest_segment(tmp_path: Path) -> None:
    settings = {"segment_bytes": 4096, "retention": RetentionPolicy(retention_bytes=16_000)}
    with pair(tmp_path, **settings) as (master, slave):
        filled(master)
        slave.catch_up(master)
        assert master.store.retain().remove > 1
        begin = int(min(log_files(tmp_path / "a")))
        with member(config(tmp_path / "c", **settings)) as late:
            with pytest.raises(SegmentGone):
                late.fetch(master)
            view = master.replica.view()
            assert view.lineage.begin == begin
            late.replica.begin_at(view.lineage.begin, view.lineage.before)
            assert late.end == begin
            late.catch_up(master, 900)
            assert log_files(tmp_path / "c") == log_files(tmp_path / "a")
            assert late.ends("orders") == master.ends("orders")
            assert late.progress("billing") == master.progress("billing")
            assert late.replica.view().lineage == view.lineage
            low = late.store.offsets("orders").queues[0].min
            assert late.bodies("orders", 0, low) == master.bodies("orders", 0, low)
        with member(config(tmp_path / "c", **settings)) as late:
            assert late.replica.view() == master.replica.view()


def test_an_empty_log_that_begins_late_survives_a_restart(tmp_path: Path) -> None:
    with pair(tmp_path) as (master, slave):
        filled(master)
        slave.catch_up(master)
        slave.replica.begin_at(4096, 1)
        assert slave.replica.view().lineage.before == 1
        assert not slave.store.topics()
    with member(config(tmp_path / "b")) as slave:
        view = slave.replica.view()
        assert (view.begin, view.end) == (4096, 4096)


def test_a_former_follower_opens_as_a_broker_without_replicas(tmp_path: Path) -> None:
    with pair(tmp_path) as (master, slave):
        filled(master)
        slave.catch_up(master)
    with opened(config(tmp_path / "b", retention_interval_ms=NEVER_MS)) as alone:
        assert alone.ends("orders") == [15, 15, 15, 15]
        alone.send("orders", 0, [b"more"])
        assert alone.bodies("orders", 0)[-1] == b"more"
