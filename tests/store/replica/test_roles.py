"""A store takes office, leaves it and follows, and cuts its log, without being opened again."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from rocketq.errors.replication_errors import NotMaster
from rocketq.model import FlushMode, SendStatus
from rocketq.protocol.documents.broker import CreateTopicRequest
from rocketq.protocol.frame import scan
from tests.support.crashing_files import CrashingFiles
from tests.support.disk import Disk
from tests.support.replicas import Member, log_files, member, open_member, pair
from tests.support.store_driver import ANSWER_S, batch, config
from tests.support.workload import end_life


def created(driver: Member) -> Future[Any]:
    """Hand the creation of the topic over, and wait until it is written."""
    return driver.handed(lambda done: driver.store.create_topic("orders", CreateTopicRequest(), done))


def sent(driver: Member, *bodies: bytes) -> Future[Any]:
    """Hand an append over, and wait until it is written, not until it is answered."""
    return driver.handed(lambda done: driver.store.append("orders", [batch(0, bodies)], done))


def test_offices_change_back_and_forth(tmp_path: Path) -> None:
    with pair(tmp_path, segment_bytes=4096) as (first, second):
        first.create("orders")
        leader, follower = first, second
        for epoch in range(2, 8):
            leader.send("orders", 0, [b"%d" % epoch] * 20)
            follower.catch_up(leader)
            leader.step_down()
            leader, follower = follower, leader
            assert leader.lead(epoch) == follower.end
        leader.send("orders", 0, [b"last"])
        follower.catch_up(leader)
        assert log_files(tmp_path / "a") == log_files(tmp_path / "b")
        assert first.bodies("orders", 0) == second.bodies("orders", 0)
        lineage = first.replica.view().lineage
        assert lineage == second.replica.view().lineage
        # Nobody wrote in epoch 1 but the topic's creation and the first messages.
        assert [each.epoch for each in lineage.starts] == [1, 2, 3, 4, 5, 6, 7]


def test_frames_have_the_epoch_of_the_office(tmp_path: Path) -> None:
    with member(config(tmp_path), waits=False) as master:
        master.lead(3)
        master.create("orders")
        master.step_down()
        start = master.lead(5)
        master.send("orders", 0, [b"a"])
        raw = master.replica.frames(0, 1 << 20)
        epochs = {each.header.log_offset: each.header.epoch for each in scan(b"".join(raw.parts))}
        assert all(epoch == (5 if at >= start else 3) for at, epoch in epochs.items())
        assert {3, 5} == set(epochs.values())
        with pytest.raises(ValueError, match="cannot follow"):
            master.replica.take_office(5)


def test_what_was_never_confirmed_is_cut_and_replaced(tmp_path: Path) -> None:
    with pair(tmp_path, segment_bytes=4096) as (old, new):
        old.create("orders")
        old.send("orders", 0, [b"kept"])
        new.catch_up(old)
        common = new.end
        new.lead(2)
        new.send("orders", 0, [b"new"])
        new.replica.confirm(new.end)

        old.step_down()
        old.replica.leave_office(NotMaster("group-1", 2))
        lost = common
        old_lines = old.replica.view().lineage
        assert old_lines.newest == 1
        old.replica.cut(lost)
        old.catch_up(new)
        assert old.bodies("orders", 0) == [b"kept", b"new"]
        assert log_files(tmp_path / "a") == log_files(tmp_path / "b")


@pytest.mark.parametrize("flush", list(FlushMode))
def test_a_cut_above_the_confirmed_end_leaves_readers_alone(tmp_path: Path, flush: FlushMode) -> None:
    settings = config(tmp_path / "a", flush=flush, segment_bytes=4096)
    with member(settings) as master:
        master.lead(1)
        created(master)
        master.replica.confirm(master.end)
        first = sent(master, b"seen")
        confirmed = master.end
        master.replica.confirm(confirmed)
        assert first.result(ANSWER_S).status is SendStatus.SEND_OK
        ends = []
        waiting = []
        for number in range(8):
            waiting.append(sent(master, b"%d" % number * 400))
            ends.append(master.end)
        master.step_down()
        assert all(isinstance(each.result(ANSWER_S), NotMaster) for each in waiting)
        assert master.bodies("orders", 0) == [b"seen"]
        master.replica.cut(ends[4])
        assert master.end == ends[4]
        assert master.bodies("orders", 0) == [b"seen"]
        master.replica.confirm(ends[4])
        assert master.bodies("orders", 0) == [b"seen", *(b"%d" % number * 400 for number in range(5))]
        with pytest.raises(ValueError, match="no append ends"):
            master.replica.cut(ends[4] - 8)


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_cut_below_the_confirmed_end_takes_messages_back(tmp_path: Path, snapshot: bool) -> None:
    with member(config(tmp_path / "a", segment_bytes=4096), waits=False) as master:
        master.lead(1)
        master.create("orders")
        ends = []
        for number in range(12):
            master.send("orders", 0, [b"%d" % number * 300])
            ends.append(master.end)
        master.commit("billing", "orders", 0, 9)
        if snapshot:
            master.store.take_snapshot()
        master.step_down()
        master.replica.cut(ends[5])
        assert master.ends("orders")[0] == 6
        assert master.progress("billing") == {}
        assert master.replica.view().end == master.replica.confirmed == ends[5]
        master.lead(2)
        master.send("orders", 0, [b"other"])
        before = master.bodies("orders", 0)
    with member(config(tmp_path / "a", segment_bytes=4096)) as again:
        again.replica.confirm(again.end)
        assert again.bodies("orders", 0) == before
        assert before[-1] == b"other"


def test_writes_are_refused_while_the_service_says_so(tmp_path: Path) -> None:
    with member(config(tmp_path), waits=False) as master:
        master.lead(1)
        master.create("orders")
        master.replica.refuse_writes(NotMaster("group-1", 1))
        with pytest.raises(NotMaster):
            master.send("orders", 0, [b"a"])
        master.replica.refuse_writes(None)
        assert master.send("orders", 0, [b"a"]) == 0


def test_senders_are_told_for_whom_they_waited(tmp_path: Path) -> None:
    settings = config(tmp_path, flush=FlushMode.SYNC, slave_timeout_ms=1, flush_timeout_ms=60_000)
    with member(settings, late_status=lambda: SendStatus.SLAVE_NOT_AVAILABLE) as master:
        master.lead(1)
        done = created(master)
        late = sent(master, b"a")
        assert late.result(ANSWER_S).status is SendStatus.SLAVE_NOT_AVAILABLE
        assert not done.done(), "a change has no such status: it waits on"
        master.replica.confirm(master.end)
        assert done.result(ANSWER_S).name == "orders"


@pytest.mark.parametrize("seed", range(8))
def test_a_cut_is_on_disk_when_it_returns(seed: int) -> None:
    disk = Disk(seed)
    settings = config(flush=FlushMode.ASYNC, segment_bytes=4096)
    master = open_member(settings, CrashingFiles(disk))
    master.lead(1)
    created(master)
    ends = []
    for number in range(8):
        sent(master, b"%d" % number * 700)
        ends.append(master.end)
    master.store.flush()
    master.step_down()
    master.replica.cut(ends[seed % 7])
    disk.cut_power()
    end_life(master.store)
    disk.restart()
    with member(settings, CrashingFiles(disk)) as again:
        assert again.end == ends[seed % 7], "neither the old end came back, nor did more go"


def test_an_office_is_not_taken_by_a_log_without_its_state(tmp_path: Path) -> None:
    with member(config(tmp_path)) as slave:
        slave.replica.begin_at(4096, 1)
        assert slave.replica.view().held == 0
        with pytest.raises(ValueError, match="not here"):
            slave.lead(2)
