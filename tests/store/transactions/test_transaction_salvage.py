"""Salvage of a log with transactions: what is lost is named, and never does a part of one come out."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocketq.errors.transaction_errors import (
    TransactionDamaged,
    TransactionDecidedOtherwise,
    TransactionNotFound,
)
from rocketq.model import TransactionState
from rocketq.protocol.frame import FrameHeader, FrameKind
from rocketq.protocol.frame_slices import open_frames
from rocketq_broker.store.recovery.salvage import LostHalf
from tests.support.half_messages import GROUP, commit, decide, hand_out, roll_back, send_half
from tests.support.log_damage import damage, frames_of, salvaged
from tests.support.store_driver import Driver, config, opened


def halves(directory: Path) -> list[FrameHeader]:
    return [frame.header for frame in frames_of(directory) if frame.header.kind == FrameKind.HALF]


def test_a_transaction_that_lost_a_half_message_can_only_be_rolled_back(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        driver.create("t", 1)
        for part in range(3):
            send_half(driver, "tx-1", 0, [b"%d" % part], part=part)
    damage(tmp_path, halves(tmp_path)[1:2])
    report = salvaged(config(tmp_path))
    assert [(each.group, each.transaction, each.is_committed) for each in report.transactions] == [
        (GROUP, "tx-1", False)
    ]
    with opened(config(tmp_path)) as driver:
        assert driver.store.transactions.find("tx-1").is_damaged
        with pytest.raises(TransactionDamaged, match="lost"):
            commit(driver, "tx-1")
        with pytest.raises(TransactionDamaged):
            send_half(driver, "tx-1", 0, [b"more"], part=2)
        assert driver.bodies("t", 0) == []
        # No producer is asked: none could make it whole.
        assert hand_out(driver, driver.store.now_ms() + 1_000_000_000) == []
        roll_back(driver, "tx-1")
        assert driver.bodies("t", 0) == []


def test_a_transaction_stays_damaged_after_each_start(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        driver.create("t", 1)
        send_half(driver, "tx-1", 0, [b"lost"])
        send_half(driver, "tx-1", 0, [b"kept"], part=1)
    damage(tmp_path, halves(tmp_path)[:1])
    salvaged(config(tmp_path))
    for removed in (None, "snapshot"):
        with opened(config(tmp_path)) as driver, pytest.raises(TransactionDamaged):
            commit(driver, "tx-1")
        if removed is not None:
            (tmp_path / "state" / removed).unlink()
    with opened(config(tmp_path)) as driver, pytest.raises(TransactionDamaged):
        commit(driver, "tx-1")


def test_a_transaction_that_began_behind_the_damage_is_whole(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        driver.create("t", 1)
        send_half(driver, "tx-1", 0, [b"lost"])
        send_half(driver, "tx-2", 0, [b"whole"])
    damage(tmp_path, halves(tmp_path)[:1])
    salvaged(config(tmp_path))
    with opened(config(tmp_path)) as driver:
        commit(driver, "tx-2")
        assert driver.bodies("t", 0) == [b"whole"]


def test_a_state_frame_behind_the_damage_clears_a_transaction_of_doubt(tmp_path: Path) -> None:
    """The next segment's state frame lists the frames of what is open, so it is known to be whole."""
    settings_of_store = config(tmp_path, segment_bytes=4096, merge_bytes=0)
    with opened(settings_of_store) as driver:
        driver.create("t", 1)
        send_half(driver, "whole", 0, [b"whole"])
        driver.send("t", 0, [b"plain"])
        send_half(driver, "torn", 0, [b"torn"])
        driver.send("t", 0, [bytes(3000)])
        driver.send("t", 0, [bytes(3000)])
    plain = next(each.header for each in frames_of(tmp_path) if each.header.kind == FrameKind.MESSAGES)
    damage(tmp_path, [plain, halves(tmp_path)[1]])
    report = salvaged(settings_of_store)
    assert report.transactions == (LostHalf(GROUP, "torn", False, 1),)
    with opened(settings_of_store) as driver:
        commit(driver, "whole")
        with pytest.raises(TransactionDamaged):
            commit(driver, "torn")


def test_half_messages_whose_begin_is_lost_are_named_by_their_number(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        driver.create("t", 1)
        send_half(driver, "tx-1", 0, [b"left"])
    begun = [each.header for each in frames_of(tmp_path) if each.header.kind == FrameKind.CHANGE][-1]
    damage(tmp_path, [begun])
    report = salvaged(config(tmp_path))
    assert report.transactions == (LostHalf("", "0", False, 1),)
    with opened(config(tmp_path)) as driver, pytest.raises(TransactionNotFound):
        commit(driver, "tx-1")


def test_salvage_names_lost_half_messages_of_a_committed_transaction(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as driver:
        driver.create("t", 1)
        send_half(driver, "tx-1", 0, [b"lost"])
        send_half(driver, "tx-1", 0, [b"kept"], part=1)
        commit(driver, "tx-1")
    damage(tmp_path, halves(tmp_path)[:1])
    report = salvaged(config(tmp_path))
    assert report.gaps[0].claims == "1 half messages for queue 0, transaction 0"
    assert report.transactions == (LostHalf(GROUP, "tx-1", True, 1),)


def readable(driver: Driver) -> list[bytes]:
    found: list[bytes] = []
    at, end = 0, driver.store.offsets("t").queues[0].max
    while at < end:
        result = driver.store.pull("t", 0, at, max_bytes=1 << 20)
        for piece in open_frames(b"".join(result.chunks), at):
            found += piece.batch.column("body").to_pylist()
        at = result.next_offset
    return found


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_frame_is_lost_no_transaction_comes_out_in_part_or_twice(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any frames but the topic's are damaged; then all that is undecided is committed."""
    directory = tmp_path_factory.mktemp("store")
    wanted: dict[str, list[bytes]] = {}
    decided: dict[str, TransactionState] = {}
    outcomes = st.sampled_from([TransactionState.COMMIT, TransactionState.ROLLBACK, None])
    with opened(config(directory, merge_bytes=0)) as driver:
        driver.create("t", 1)
        for number in range(4):
            name = f"tx-{number}"
            wanted[name] = [b"%d-%d" % (number, part) for part in range(data.draw(st.integers(1, 3)))]
            for part, body in enumerate(wanted[name]):
                send_half(driver, name, 0, [body], part=part)
            outcome = data.draw(outcomes)
            if outcome is not None:
                decide(driver, name, outcome)
                decided[name] = outcome
    frames = [each.header for each in frames_of(directory)][2:]
    lost = data.draw(st.lists(st.sampled_from(frames), min_size=1, max_size=3, unique=True))
    damage(directory, lost)
    report = salvaged(config(directory))
    named = {each.transaction for each in report.transactions}
    with opened(config(directory)) as driver:
        for name in wanted:
            try:
                commit(driver, name)
            except TransactionDamaged:
                assert name in named
            except TransactionDecidedOtherwise:
                assert decided[name] is TransactionState.ROLLBACK
            except TransactionNotFound:
                # Its begin is lost, or what it began with.
                continue
        seen = readable(driver)
    assert len(seen) == len(set(seen))
    for name, bodies in wanted.items():
        came = [body for body in seen if body in bodies]
        if name not in decided:
            assert came in ([], bodies)
        elif decided[name] is TransactionState.ROLLBACK and came:
            # Its rollback was lost with the frame: the commit of today is its outcome.
            assert came == bodies
