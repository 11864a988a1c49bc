"""The record of a group: its changes, its bytes, and when a replica stands for election."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rocketq.model import FlushMode
from rocketq_broker.replication.election import ElectionTimes, stands_at_ms
from rocketq_broker.replication.errors import CorruptGroupRecord
from rocketq_broker.replication.group_record import GroupRecord, Member, ReplicaId, decode, encode, fault_of
from rocketq_broker.replication.incarnation import DiskFacts, broken_promise
from rocketq_broker.replication.record_changes import (
    elected,
    elected_uncleanly,
    expanded,
    fault_of_change,
    founded,
    handed_over,
    joined,
    shrunk,
)

IDS = [ReplicaId(n, incarnation) for n in (1, 2, 3) for incarnation in ("old", "new")]
FOUNDER = Member(IDS[0], "http://b1")


def group(*in_sync: ReplicaId, min_in_sync: int = 2) -> GroupRecord:
    record = founded("group", FOUNDER, epoch=1, min_in_sync=min_in_sync)
    for each in in_sync:
        record = expanded(joined(record, Member(each, f"http://b{each.number}")), each)
    return record


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(IDS)), max_size=30), st.integers(1, 3))
def test_every_sequence_of_changes_gives_sound_records_that_read_back(
    steps: list[tuple[int, ReplicaId]], least: int
) -> None:
    record = group(min_in_sync=least)
    for kind, who in steps:
        changed: GroupRecord | None = record
        if kind == 0:
            changed = joined(record, Member(who, "http://new"))
        elif kind == 1 and who.number != record.master.number:
            changed = expanded(record, who)
        elif kind == 2:
            changed = shrunk(record, {who})
        elif kind == 3:
            changed = elected(record, who)
        elif kind == 4:
            changed = handed_over(record, who, leaves=who.number % 2 == 0)
        elif kind == 5:
            changed = elected_uncleanly(record, who)
        if changed is None:
            continue
        assert fault_of_change(record, changed) == ""
        assert decode(encode(changed)) == changed
        record = changed


def test_who_leaves_a_set_that_becomes_too_small_is_eligible_until_it_has_grown() -> None:
    two, three = IDS[2], IDS[4]
    record = shrunk(group(two, three), {three})
    assert record.eligible == frozenset()
    record = shrunk(record, {two})
    assert record.eligible == {two}
    after = elected(record, two)
    assert after is not None
    assert (after.master, after.in_sync, after.eligible) == (two, {two}, {IDS[0]})
    assert expanded(after, three).eligible == frozenset()


def test_the_master_is_never_taken_out_of_its_own_set() -> None:
    assert shrunk(group(IDS[2]), {IDS[0]}).in_sync == {IDS[0], IDS[2]}


def test_a_new_incarnation_takes_the_place_of_the_old_one() -> None:
    assert expanded(group(IDS[2]), IDS[3]).in_sync == {IDS[0], IDS[3]}


def test_equal_records_have_equal_bytes() -> None:
    one, other = group(IDS[2], IDS[4]), group(IDS[4], IDS[2])
    assert encode(one) == encode(other)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"epoch": 0}, "epoch is 0"),
        ({"in_sync": frozenset({IDS[2]})}, "master is not in sync"),
        ({"eligible": frozenset({IDS[4]})}, "although enough"),
        ({"min_in_sync": 0}, "wants 0"),
        ({"unclean_epoch": 2}, "unclean epoch"),
        ({"format": 2}, "format is 2"),
        ({"in_sync": frozenset({IDS[0], IDS[2], IDS[3]})}, "two incarnations"),
    ],
)
def test_a_record_that_no_change_can_have_made_is_refused(change: dict[str, object], why: str) -> None:
    wrong = replace(group(IDS[2]), **change)
    assert why in fault_of(wrong)
    with pytest.raises(CorruptGroupRecord, match=why):
        decode(encode(wrong))


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\xff", msgspec.json.encode({"group": 1})])
def test_bytes_that_are_no_record_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptGroupRecord, match="cannot be read"):
        decode(data)


def test_a_change_neither_goes_back_nor_gives_an_epoch_a_second_master() -> None:
    record = group(IDS[2])
    assert "goes back" in fault_of_change(replace(record, epoch=3), record)
    assert "has a master" in fault_of_change(record, replace(record, master=IDS[2]))
    assert "another group" in fault_of_change(record, replace(record, group="x"))


def test_candidates_stand_one_after_the_other_and_only_after_the_silence() -> None:
    times = ElectionTimes(silence_ms=2_000, place_ms=300, jitter_ms=100)
    record = shrunk(group(IDS[2], IDS[4], min_in_sync=3), {IDS[4]})
    assert stands_at_ms(record, IDS[2], 10_000, 0.0, times) == 12_000
    assert stands_at_ms(record, IDS[4], 10_000, 0.5, times) == 12_350
    assert stands_at_ms(record, IDS[3], 10_000, 0.0, times) is None
    assert stands_at_ms(record, IDS[0], 10_000, 0.9, times) == 10_000


def test_a_disk_keeps_its_incarnation_only_if_it_kept_its_promise() -> None:
    sound = DiskFacts("i1", FlushMode.SYNC, False, False, 100, 90, is_rotten=False)
    assert broken_promise(sound) == ""
    assert "new" in broken_promise(DiskFacts("", FlushMode.SYNC, True, True, 0, 0, is_rotten=False))
    assert "damaged" in broken_promise(DiskFacts("i1", FlushMode.SYNC, True, True, 100, 90, is_rotten=True))
    assert "ends at 80" in broken_promise(
        DiskFacts("i1", FlushMode.SYNC, True, True, 80, 90, is_rotten=False)
    )
    lazy = DiskFacts("i1", FlushMode.ASYNC, False, False, 100, 90, is_rotten=False)
    assert "went down" in broken_promise(lazy)
    assert broken_promise(DiskFacts("i1", FlushMode.ASYNC, False, True, 100, 90, is_rotten=False)) == ""
    assert broken_promise(DiskFacts("i1", FlushMode.ASYNC, True, False, 100, 90, is_rotten=False)) == ""
