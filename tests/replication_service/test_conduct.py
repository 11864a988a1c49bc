"""What a replica does by itself, on a time that the test sets (`simulated_group`)."""

from __future__ import annotations

import pytest

from rocketq.errors import RocketqError
from rocketq.errors.replication_errors import ElectionRefused, NotEnoughReplicas, NotMaster
from rocketq_broker.replication.errors import RegisterWentBack, ReplicaReplaced
from rocketq_broker.replication_service.replica_driver import Policy
from tests.replication_service.simulated_group import Disk, Group


def founded() -> Group:
    """A group of three that works."""
    group = Group()
    group.pass_time(1_000)
    assert len(group.record.in_sync) == 3
    return group


def test_three_brokers_found_one_group_and_all_come_in_sync() -> None:
    group = founded()
    assert {member.replica.number for member in group.record.members} == {1, 2, 3}
    assert group.record.epoch == 1
    assert group.master.refusal is None


def test_a_message_is_shown_when_the_in_sync_replicas_have_it() -> None:
    group = founded()
    master = group.master
    frame = master.write(7)
    assert master.shown < frame.end
    group.pass_time(200)
    assert master.shown == frame.end
    assert all(slave.values() == [7] for slave in group.slaves())


def test_slaves_learn_what_is_confirmed() -> None:
    group = founded()
    frame = group.master.write(7)
    group.pass_time(1_000)
    assert [broker.shown for broker in group.brokers.values()] == [frame.end] * 3


def test_a_group_without_enough_replicas_refuses_writes() -> None:
    group = Group(count=1)
    group.pass_time(1_000)
    with pytest.raises(NotEnoughReplicas, match="1 of at least 2"):
        group.master.write(1)


def test_when_the_master_dies_another_one_serves_and_has_all_that_was_confirmed() -> None:
    group = founded()
    old = group.master
    for value in range(5):
        old.write(value)
    group.pass_time(200)
    old.write(99)
    group.kill(old.number)
    group.pass_time(3_000)
    new = group.master
    assert new is not old
    assert new.values() == [0, 1, 2, 3, 4]
    frame = new.write(5)
    group.pass_time(200)
    assert new.shown == frame.end


def test_the_former_master_follows_and_cuts_what_was_never_confirmed() -> None:
    group = founded()
    old = group.master
    old.write(0)
    group.pass_time(200)
    for slave in group.slaves():
        group.cut.add((slave.number, old.number))
    old.write(99)
    group.pass_time(3_000)
    new = next(broker for broker in group.brokers.values() if broker.serves == 2)
    new.write(1)
    group.cut.clear()
    group.pass_time(6_000)
    assert group.master is new
    assert old.values() == [0, 1]
    assert not old.serves
    assert [error.code for error in old.lost] == ["OUTCOME_UNKNOWN"]


def test_a_silent_slave_leaves_the_in_sync_set_and_the_master_goes_on() -> None:
    group = founded()
    master, gone = group.master, group.slaves()[0]
    group.kill(gone.number)
    frame = master.write(1)
    group.pass_time(1_000)
    assert master.shown < frame.end
    group.pass_time(6_000)
    assert master.shown == frame.end
    assert gone.number not in {each.number for each in group.record.in_sync}


def test_a_slave_that_returns_comes_in_sync_again() -> None:
    group = founded()
    gone = group.slaves()[0].number
    group.kill(gone)
    group.pass_time(6_000)
    group.master.write(1)
    group.start(gone)
    group.pass_time(1_000)
    assert len(group.record.in_sync) == 3
    assert group.brokers[gone].values() == [1]


def test_a_master_that_restarts_writes_in_an_epoch_of_its_own() -> None:
    group = founded()
    old = group.master
    group.kill(old.number)
    group.start(old.number)
    group.pass_time(500)
    assert group.master.number == old.number
    assert group.record.epoch == 2


def test_a_handover_loses_nothing_and_writes_go_on_at_the_successor() -> None:
    group = founded()
    old = group.master
    old.write(1)
    answers: list[object] = []
    successor = group.slaves()[1].number
    old.conduct.hand_over(successor, answers.append, group.now_ms)
    with pytest.raises(NotMaster):
        old.write(2)
    group.pass_time(500)
    assert answers == [2]
    assert group.master.number == successor
    assert group.master.values() == [1]
    assert len(group.record.in_sync) == 3


def test_a_master_that_gave_its_office_away_may_have_it_back() -> None:
    group = founded()
    first = group.master
    first.conduct.hand_over(group.slaves()[0].number, [].append, group.now_ms)
    group.pass_time(500)
    group.master.conduct.hand_over(first.number, [].append, group.now_ms)
    group.pass_time(500)
    assert group.master is first
    first.write(1)


def check_sends_go_on_without(stopped: int, group: Group) -> None:
    """Check that a write is confirmed although this replica is gone."""
    group.kill(stopped)
    group.master.write(2)
    group.pass_time(200)
    assert group.master.conduct.replica.confirmed.end == group.master.disk.log.end


def test_a_master_that_stops_leaves_the_in_sync_set_with_its_office() -> None:
    group = founded()
    old = group.master
    old.write(1)
    answers: list[object] = []
    old.conduct.hand_over(0, answers.append, group.now_ms, leaves=True)
    group.pass_time(500)
    assert answers == [2]
    assert {each.number for each in group.record.in_sync} == {1, 2, 3} - {old.number}
    check_sends_go_on_without(old.number, group)


def test_a_master_that_stops_stays_in_sync_where_the_group_needs_it() -> None:
    group = Group(min_in_sync=3)
    group.pass_time(1_000)
    old = group.master
    old.conduct.hand_over(0, [].append, group.now_ms, leaves=True)
    group.pass_time(500)
    assert group.master is not old
    assert old.number in {each.number for each in group.record.in_sync}


def test_no_send_waits_for_a_slave_that_has_said_goodbye() -> None:
    group = founded()
    gone = group.slaves()[0]
    done: list[object] = []
    gone.conduct.leave(done.append)
    group.pass_time(100)
    assert done == [None]
    assert gone.number not in {each.number for each in group.record.in_sync}
    group.pass_time(1_000)
    assert gone.number not in {each.number for each in group.record.in_sync}, "it fetches no more"
    check_sends_go_on_without(gone.number, group)


def test_a_slave_stays_in_sync_when_it_stops_where_the_group_needs_it() -> None:
    group = Group(min_in_sync=3)
    group.pass_time(1_000)
    gone = group.slaves()[0]
    gone.conduct.leave([].append)
    group.pass_time(500)
    assert gone.number in {each.number for each in group.record.in_sync}


def test_a_slave_that_hears_that_an_epoch_is_over_reads_the_record_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = founded()
    slave = group.slaves()[0]
    reads: list[int] = []
    monkeypatch.setattr(slave, "read_register", lambda: reads.append(group.now_ms))
    slave.conduct.fetch_failed(group.now_ms)
    slave.conduct.tick(group.now_ms)
    assert reads == []
    slave.conduct.fetch_failed(group.now_ms, epoch_is_over=True)
    slave.conduct.tick(group.now_ms)
    assert reads == [group.now_ms]


def test_a_handover_to_a_replica_that_is_not_in_sync_is_refused_and_changes_nothing() -> None:
    group = founded()
    answers: list[object] = []
    group.master.conduct.hand_over(9, answers.append, group.now_ms)
    assert isinstance(answers[0], ElectionRefused)
    group.master.write(1)


def test_a_handover_that_the_slaves_hold_up_ends_and_the_master_writes_on() -> None:
    group = founded()
    master = group.master
    group.cut = {(slave.number, master.number) for slave in group.slaves()}
    master.write(1)
    answers: list[object] = []
    master.conduct.hand_over(0, answers.append, group.now_ms)
    group.register.is_up = False
    group.pass_time(2_100)
    assert isinstance(answers[0], ElectionRefused)
    assert master.refusal is None


def test_a_slave_by_role_stands_for_election_only_when_told() -> None:
    group = founded()
    old = group.master
    for slave in group.slaves():
        group.start(slave.number, stands=False)
    group.pass_time(200)
    group.kill(old.number)
    group.pass_time(10_000)
    assert not any(broker.is_up and broker.serves for broker in group.brokers.values())
    answers: list[object] = []
    chosen = next(broker for broker in group.brokers.values() if broker.is_up)
    chosen.conduct.promote(unclean=False, reply=answers.append, now_ms=group.now_ms)
    group.pass_time(500)
    assert answers == [2]
    assert group.master is chosen


def test_a_second_process_with_the_number_of_a_replica_halts_the_first_one() -> None:
    group = founded()
    first = group.slaves()[0]
    group.brokers[9] = group.start(first.number)
    group.disks[first.number] = Disk(incarnation="second")
    group.brokers[9] = first
    group.start(first.number)
    group.pass_time(6_000)
    assert isinstance(first.halted, ReplicaReplaced)


def test_an_emptied_register_stops_replicas_that_know_better() -> None:
    group = founded()
    group.register.known = None
    number = group.master.number
    group.kill(number)
    restarted = group.start(number)
    group.pass_time(500)
    assert isinstance(restarted.halted, RegisterWentBack)


def test_without_the_register_the_master_goes_on() -> None:
    group = founded()
    group.register.is_up = False
    group.pass_time(20_000)
    frame = group.master.write(1)
    group.pass_time(200)
    assert group.master.shown == frame.end


def test_a_proposal_whose_answer_was_lost_is_made_again() -> None:
    group = founded()
    gone = group.slaves()[0].number
    group.register.is_up = False
    group.kill(gone)
    group.pass_time(8_000)
    group.register.is_up = True
    group.pass_time(1_000)
    assert gone not in {each.number for each in group.record.in_sync}


def test_the_confirmed_end_is_kept_on_disk_now_and_then() -> None:
    group = founded()
    frame = group.master.write(1)
    group.pass_time(3_000)
    assert all(disk.confirmed.end == frame.end for disk in group.disks.values())


def test_a_promotion_without_a_record_is_refused() -> None:
    group = Group(count=1)
    group.register.is_up = False
    group.pass_time(100)
    answers: list[object] = []
    group.brokers[1].conduct.promote(unclean=True, reply=answers.append, now_ms=group.now_ms)
    assert isinstance(answers[0], RocketqError)


def test_a_master_serves_when_what_it_found_in_its_log_is_confirmed() -> None:
    group = founded()
    old = group.master
    group.cut = {(slave.number, old.number) for slave in group.slaves()}
    frame = old.write(1)
    group.kill(old.number)
    restarted = group.start(old.number)
    group.pass_time(500)
    assert group.record.epoch == 2
    assert not restarted.serves
    group.cut.clear()
    group.pass_time(500)
    assert restarted.serves == 2
    assert restarted.shown == frame.end


@pytest.mark.parametrize(("limit", "copied"), [(0, 1_000), (2_000, 500)])
def test_a_replica_that_is_not_in_sync_copies_no_faster_than_it_may(limit: int, copied: int) -> None:
    """A frame counts as four bytes here, and a fetch brings a hundred."""
    group = Group(catch_up_bytes_per_s=limit)
    group.pass_time(1_000)
    late = group.slaves()[0].number
    group.kill(late)
    group.pass_time(6_000)
    for value in range(1_000):
        group.master.write(value)
    group.start(late)
    group.pass_time(1_000)
    assert copied <= len(group.brokers[late].values()) <= copied + 100
    group.pass_time(2_000)
    assert len(group.brokers[late].values()) == 1_000
    assert late in {each.number for each in group.record.in_sync}


def test_a_replica_that_is_in_sync_is_never_slowed_down() -> None:
    group = Group(catch_up_bytes_per_s=1_000)
    group.pass_time(1_000)
    for value in range(1_000):
        group.master.write(value)
    group.pass_time(500)
    assert all(len(slave.values()) == 1_000 for slave in group.slaves())


def test_a_slow_copy_is_fetched_in_small_parts() -> None:
    def fetch_bytes(limit: int) -> int:
        return Policy("", 1, stands=True, catch_up_bytes_per_s=limit).fetch_bytes

    assert [fetch_bytes(limit) for limit in (0, 100_000, 4_000_000, 1 << 30)] == [
        4 << 20, 64 << 10, 1_000_000, 4 << 20,
    ]  # fmt: skip
