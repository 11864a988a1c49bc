"""One replica, event by event: roles, fences, proposals, and what makes it halt."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rocketq.errors import ElectionRefused, EpochAhead, ForeignReplica, NotMaster, ReplicaUnknown, StaleEpoch
from rocketq_broker.epoch_lineage import EpochLineage, LogView
from rocketq_broker.replication.errors import ConfirmedDiverged, ForeignLog, RegisterWentBack, ReplicaReplaced
from rocketq_broker.replication.fetching import Diverged, Fetch, FetchPlace, Shipment
from rocketq_broker.replication.group_record import GroupRecord, Known, Member, ReplicaId
from rocketq_broker.replication.master_role import MasterRole
from rocketq_broker.replication.record_changes import elected, elected_uncleanly, expanded, founded, joined
from rocketq_broker.replication.replica import (
    Ask,
    Follow,
    KeepStanding,
    LeaveOffice,
    Replica,
    Standing,
    TakeOffice,
)
from rocketq_broker.replication.slave_role import Append, BeginAt, Confirmed, CutTo, Ignore

A, B, C = (Member(ReplicaId(n, f"i{n}"), f"http://b{n}") for n in (1, 2, 3))
EMPTY = LogView(EpochLineage(), 0, 0)


def log(*epochs: tuple[int, int], end: int, held: int | None = None) -> LogView:
    """A log of epochs with their starts."""
    lineage = EpochLineage()
    for epoch, start in epochs:
        lineage = lineage.with_epoch(epoch, start)
    return LogView(lineage, end, end if held is None else held)


def group(in_sync: tuple[Member, ...] = (A, B, C), *, min_in_sync: int = 2) -> GroupRecord:
    """A group of three in epoch 1, with A as its master."""
    record = founded("group", A, epoch=1, min_in_sync=min_in_sync)
    for member in (B, C):
        record = joined(record, member)
    for member in in_sync[1:]:
        record = expanded(record, member.replica)
    return record


def master(record: GroupRecord | None = None, at: LogView = EMPTY) -> Replica:
    replica, _ = Replica(A).learned(Known(5, record or group()), at, 0)
    return replica


def slave(record: GroupRecord | None = None, **known: object) -> Replica:
    replica, _ = Replica(B, **known).learned(Known(5, record or group()), EMPTY, 0)  # type: ignore[arg-type]
    return replica


def fetch(member: Member, end: int, last_epoch: int, *, epoch: int = 1, of: str = "group") -> Fetch:
    return Fetch(of, member.replica, FetchPlace(epoch, end, last_epoch), end)


TEN = log((1, 0), end=10)


def test_a_founder_takes_office_after_its_epoch_is_on_disk() -> None:
    asking, effects = Replica(A).founding("group", 2)
    record = founded("group", A, epoch=1, min_in_sync=2)
    assert effects == (Ask(0, record),)
    taken, effects = asking.learned(Known(1, record), TEN, 0)
    assert effects == [KeepStanding(Standing("group", 1)), TakeOffice(1, 10)]
    assert taken.may_append


def test_a_message_is_confirmed_when_every_in_sync_replica_holds_it() -> None:
    after, _, _ = master().fetched(fetch(B, 10, 1), TEN, 1)
    assert after.confirmed.end == 0
    after, answer, _ = after.fetched(fetch(C, 7, 1), TEN, 2)
    assert after.confirmed == Confirmed(7, 1)
    assert answer == Shipment(FetchPlace(1, 7, 1), 10, 7)


def test_a_master_counts_itself_only_as_far_as_its_own_disk() -> None:
    unsynced = log((1, 0), end=10, held=4)
    after, _, _ = master(group((A, B))).fetched(fetch(B, 10, 1), unsynced, 1)
    assert after.confirmed.end == 4
    assert after.synced(TEN).confirmed.end == 10


def test_nothing_is_confirmed_while_too_few_are_in_sync() -> None:
    alone = master(group((A,)))
    assert alone.synced(TEN).confirmed.end == 0
    assert master(group((A,), min_in_sync=1)).synced(TEN).confirmed.end == 10


def test_without_waiting_a_replica_joins_that_has_caught_up_a_moment_ago() -> None:
    role = MasterRole(A.replica, 2, 10, 0, 1, frozenset({A.replica}), waits=False)
    lacks_the_begin = role.heard(B.replica, 5, 10, 1_000)
    assert not lacks_the_begin.may_join(B.replica, 10, 1_000)
    lags = role.heard(B.replica, 12, 20, 5_000)
    assert not lags.may_join(B.replica, 20, 5_000)
    caught_up = lags.heard(B.replica, 20, 30, 5_100)
    assert caught_up.may_join(B.replica, 30, 5_100)


def test_who_is_to_join_counts_before_the_register_has_answered() -> None:
    after, _, effects = master(group((A, B))).fetched(fetch(C, 0, 0), EMPTY, 1)
    assert [type(effect) for effect in effects] == [Ask]
    after, _, _ = after.fetched(fetch(B, 10, 1), TEN, 2)
    assert after.confirmed.end == 0
    after, _, _ = after.fetched(fetch(C, 6, 1), TEN, 3)
    assert after.confirmed.end == 6


def test_who_is_to_leave_counts_until_a_later_record_is_read() -> None:
    after, _, _ = master().fetched(fetch(B, 10, 1), TEN, 90)
    after, effects = after.reviewed(TEN, 100, 50)
    (ask,) = effects
    assert isinstance(ask, Ask)
    assert ask.record.in_sync == {A.replica, B.replica}
    assert after.confirmed.end == 0
    same, _ = after.learned(Known(5, group()), TEN, 101)
    assert same.confirmed.end == 0
    assert same.asking_again() == (ask,)
    settled, _ = same.learned(Known(6, ask.record), TEN, 102)
    assert settled.confirmed.end == 10
    assert settled.asking_again() == ()


def test_a_slave_that_keeps_some_frames_behind_stays_in_sync() -> None:
    replica = master(group((A, B)))
    for now in range(10, 200, 10):
        replica, _, _ = replica.fetched(fetch(B, now - 10, 1 if now > 10 else 0), log((1, 0), end=now), now)
    assert replica.reviewed(log((1, 0), end=200), 200, 50) == (replica, ())
    _, effects = replica.reviewed(log((1, 0), end=200), 250, 50)
    assert effects


def test_a_replica_that_does_not_reach_the_begin_of_the_epoch_does_not_join() -> None:
    replica = master(group((A, B)), TEN)
    _, _, effects = replica.fetched(fetch(C, 0, 0), TEN, 1)
    assert effects == ()
    long_ago = log((1, 0), end=10)
    with_tail = replace(replica, confirmed=Confirmed(4, 1))
    _, _, effects = with_tail.fetched(fetch(C, 6, 1), long_ago, 1)
    assert effects == ()
    _, _, effects = with_tail.fetched(fetch(C, 10, 1), long_ago, 1)
    assert effects


def test_a_call_of_another_epoch_or_group_or_of_a_stranger_is_refused() -> None:
    second, _ = master().learned(Known(6, handed_back()), EMPTY, 1)
    with pytest.raises(StaleEpoch):
        second.fetched(fetch(B, 0, 0, epoch=1), EMPTY, 1)
    with pytest.raises(EpochAhead):
        second.fetched(fetch(B, 0, 0, epoch=4), EMPTY, 1)
    with pytest.raises(ForeignReplica):
        second.fetched(fetch(B, 0, 0, epoch=3, of="another"), EMPTY, 1)
    with pytest.raises(ReplicaUnknown):
        second.fetched(fetch(Member(ReplicaId(2, "new"), ""), 0, 0, epoch=3), EMPTY, 1)
    with pytest.raises(NotMaster):
        slave().fetched(fetch(C, 0, 0), EMPTY, 1)


def handed_back() -> GroupRecord:
    """A, then B, then A again is master: epoch 3."""
    record = elected(group(), B.replica)
    assert record is not None
    again = elected(expanded(record, A.replica), A.replica)
    assert again is not None
    return again


def test_a_master_that_is_replaced_leaves_office_before_it_follows() -> None:
    record = elected(group(), B.replica)
    assert record is not None
    after, effects = master().learned(Known(6, record), TEN, 1)
    assert effects == [LeaveOffice(1), KeepStanding(Standing("group", 2)), Follow(2, B.replica)]
    assert not after.may_append


def test_a_master_that_restarts_writes_in_a_new_epoch_only() -> None:
    again, effects = Replica(A, Standing("group", 1)).learned(Known(5, group()), TEN, 0)
    assert effects == []
    assert not again.may_append
    asking, (ask,) = again.standing_for_election()
    assert isinstance(ask, Ask)
    assert (ask.record.epoch, ask.record.in_sync) == (2, group().in_sync)
    taken, effects = asking.learned(Known(6, ask.record), TEN, 1)
    assert effects == [KeepStanding(Standing("group", 2)), TakeOffice(2, 10)]
    assert taken.may_append


def test_an_older_record_that_arrives_late_is_no_news() -> None:
    replica = slave()
    assert replica.learned(Known(4, group()), EMPTY, 0) == (replica, ())


def test_only_in_sync_and_eligible_replicas_are_elected() -> None:
    with pytest.raises(ElectionRefused, match="neither in sync nor eligible"):
        slave(group((A, C))).standing_for_election()
    with pytest.raises(ElectionRefused, match="is master"):
        master().standing_for_election()
    stranger, _ = Replica(Member(ReplicaId(4, "i4"), "")).learned(Known(5, group()), EMPTY, 0)
    with pytest.raises(ElectionRefused, match="no member"):
        stranger.standing_for_election()
    with pytest.raises(ElectionRefused, match="not read"):
        Replica(B).standing_for_election()


def test_a_new_replica_asks_to_join_and_fetches_only_then() -> None:
    stranger = Member(ReplicaId(4, "i4"), "http://b4")
    replica, effects = Replica(stranger).learned(Known(5, group()), EMPTY, 0)
    ask = effects[-1]
    assert isinstance(ask, Ask)
    assert replica.fetch(EMPTY) is None
    after, effects = replica.learned(Known(6, ask.record), EMPTY, 1)
    assert effects == []
    assert after.fetch(EMPTY) == fetch(stranger, 0, 0)


def test_a_master_that_hands_over_appends_nothing_until_it_is_settled() -> None:
    leaving, (ask,) = master().handing_over(2)
    assert isinstance(ask, Ask)
    assert (ask.record.master, ask.record.in_sync) == (B.replica, group().in_sync)
    assert not leaving.may_append
    with pytest.raises(ElectionRefused, match="under way"):
        leaving.handing_over(3)
    changed_meanwhile, _ = leaving.learned(Known(6, group()), TEN, 1)
    assert changed_meanwhile.may_append
    successor, effects = slave().learned(Known(6, ask.record), TEN, 1)
    assert TakeOffice(2, 10) in effects
    assert successor.may_append
    with pytest.raises(ElectionRefused, match="not in sync"):
        master(group((A, C))).handing_over(2)


def test_a_slave_obeys_an_answer_only_while_its_log_is_as_it_was() -> None:
    replica = slave()
    shipment = Shipment(FetchPlace(1, 10, 1), 30, 8)
    after, step = replica.answered(shipment, TEN)
    assert step == Append(10, 30)
    assert after.confirmed == Confirmed(8, 1)
    longer = log((1, 0), end=12)
    assert replica.answered(shipment, longer) == (replica, Ignore())
    cut = Diverged(FetchPlace(1, 10, 1), 4, 1, 0, 0)
    assert replica.answered(cut, TEN)[1] == CutTo(4, 0)
    assert replica.answered(cut, longer)[1] == Ignore()


def test_a_slave_cuts_at_ends_of_its_own_epochs_where_the_masters_epoch_is_not_here() -> None:
    mine = log((1, 0), (4, 51), end=59)
    answer = Diverged(FetchPlace(1, 59, 4), 39, 3, 0, 0)
    assert slave().answered(answer, mine)[1] == CutTo(51, 0)
    assert slave().answered(replace(answer, keep=39, keep_epoch=1), mine)[1] == CutTo(39, 0)


def test_a_slave_never_cuts_below_what_it_knows_to_be_confirmed() -> None:
    replica = slave(confirmed=Confirmed(9, 1))
    with pytest.raises(ConfirmedDiverged, match="confirmed up to 9"):
        replica.answered(Diverged(FetchPlace(1, 10, 1), 4, 1, 0, 0), TEN)


def test_after_an_unclean_election_a_slave_cuts_and_says_what_is_lost() -> None:
    record = elected_uncleanly(group(), C.replica)
    replica, _ = Replica(B, Standing("group", 1), Confirmed(9, 1)).learned(Known(6, record), TEN, 0)
    after, step = replica.answered(Diverged(FetchPlace(2, 10, 1), 4, 1, 0, 0), TEN)
    assert step == CutTo(4, confirmed_lost=5)
    assert after.confirmed.end == 4
    begins_later = LogView(EpochLineage(6, 1), 10, 10)
    after, step = replica.answered(Diverged(FetchPlace(2, 10, 1), 4, 1, 2, 1), begins_later)
    assert step == BeginAt(2, 1, confirmed_lost=7)
    assert after.confirmed.end == 2


def test_only_a_command_makes_a_replica_master_that_may_lack_messages() -> None:
    asking, (ask,) = slave(group((A, C))).seizing_office()
    assert isinstance(ask, Ask)
    assert (ask.record.master, ask.record.unclean_epoch) == (B.replica, 2)
    assert ask.record.in_sync == {B.replica}
    with pytest.raises(ElectionRefused, match="under way"):
        asking.seizing_office()


def test_a_log_of_no_group_or_of_another_one_is_never_mixed_with_this_ones() -> None:
    with pytest.raises(ForeignLog, match="of no group"):
        Replica(B).learned(Known(5, group()), TEN, 0)
    with pytest.raises(ForeignLog, match="of group 'other'"):
        Replica(B, Standing("other", 1)).learned(Known(5, group()), EMPTY, 0)


def test_a_register_that_forgot_an_epoch_or_everything_stops_a_replica() -> None:
    with pytest.raises(RegisterWentBack, match="epoch 7"):
        Replica(B, Standing("group", 7)).learned(Known(5, group()), EMPTY, 0)
    with pytest.raises(RegisterWentBack, match="nothing"):
        Replica(B, Standing("group", 7)).founding("group", 2)


def test_two_brokers_with_one_number_the_first_one_halts() -> None:
    impostor = Member(ReplicaId(2, "another disk"), "http://elsewhere")
    with pytest.raises(ReplicaReplaced, match="another disk"):
        slave().learned(Known(6, joined(group(), impostor)), EMPTY, 1)
