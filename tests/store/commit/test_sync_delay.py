"""Whom the log writer waits for before it makes a group durable, and how long."""

from __future__ import annotations

import pytest

from rocketq_broker.store.commit.sync_delay import GAP, LONGEST_WAIT_S, SHORT_SYNC_S, SyncDelay

SYNC_S = 0.008
BOTH_HALVES = SyncDelay.after(SYNC_S, answered=32, waiting=32)


def test_the_wait_ends_when_all_expected_operations_are_there() -> None:
    assert BOTH_HALVES.wait_s(63, 0.0) > 0
    assert BOTH_HALVES.wait_s(64, 0.0) == 0


def test_a_sender_that_is_alone_is_never_held_up() -> None:
    assert SyncDelay.after(SYNC_S, answered=1, waiting=0).wait_s(1, 0.0) == 0
    assert SyncDelay().wait_s(1, 0.0) == 0


def test_the_wait_is_bounded_by_the_gap_and_by_one_sync() -> None:
    assert BOTH_HALVES.wait_s(40, 0.0) == pytest.approx(SYNC_S * GAP)
    assert BOTH_HALVES.wait_s(40, SYNC_S * 0.95) == pytest.approx(SYNC_S * 0.05)
    assert BOTH_HALVES.wait_s(40, SYNC_S * 1.01) == 0


def test_a_short_sync_is_not_worth_a_wait() -> None:
    assert SyncDelay.after(SHORT_SYNC_S * 0.9, answered=32, waiting=32).wait_s(40, 0.0) == 0


def test_a_disk_that_stalled_does_not_hold_up_the_next_group() -> None:
    stalled = SyncDelay.after(10.0, answered=32, waiting=32)
    assert stalled.wait_s(40, 0.0) == pytest.approx(LONGEST_WAIT_S * GAP)
    assert stalled.wait_s(40, LONGEST_WAIT_S) == 0
