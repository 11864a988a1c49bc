"""A follower whose next frames are gone at its master begins again at the master's oldest segment."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketq_broker.replication.fetching import BeginsLater, FetchPlace, compared
from rocketq_broker.store.config import RetentionPolicy
from tests.support.replicas import Member, log_files, member, pair
from tests.support.store_driver import config

SETTINGS = {"segment_bytes": 4096, "retention": RetentionPolicy(retention_bytes=8192)}
KEPT = b"kept" * 100


def begin_again(master: Member, slave: Member) -> None:
    """Do what a slave does about its master's answer."""
    view = slave.replica.view()
    place = FetchPlace(1, view.end, view.lineage.epoch_before(view.end))
    answer = compared(place, master.replica.view(), master.replica.confirmed)
    assert isinstance(answer, BeginsLater)
    slave.replica.begin_at(answer.begin, answer.before)


@pytest.mark.parametrize("has_fetched", [False, True], ids=["a new one", "one that was away"])
def test_a_follower_begins_at_the_oldest_segment_that_there_is(tmp_path: Path, has_fetched: bool) -> None:
    with pair(tmp_path, **SETTINGS) as (master, slave):
        master.create("orders")
        master.send("orders", 0, [b"gone"])
        if has_fetched:
            slave.catch_up(master)
        for _ in range(60):
            master.send("orders", 0, [KEPT])
        master.commit("billing", "orders", 0, 50)
        master.store.retain()
        begin = master.replica.begin
        assert begin > slave.end
        begin_again(master, slave)
        assert slave.replica.view().held == 0, "an empty log that begins late holds nothing"
        slave.catch_up(master)
        assert slave.replica.begin == begin
        assert log_files(tmp_path / "b") == log_files(tmp_path / "a")
        assert slave.ends("orders") == master.ends("orders")
        assert slave.progress("billing") == master.progress("billing")
        first = slave.store.offsets("orders").queues[0].min
        assert first > 0
        assert set(slave.bodies("orders", 0, first)) == {KEPT}
    with member(config(tmp_path / "b", **SETTINGS)) as again:
        assert again.end == again.replica.view().held
