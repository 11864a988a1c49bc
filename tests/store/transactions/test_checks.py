"""When a transaction is checked, parked and given up: RocketMQ's times, and many transactions at once."""

from __future__ import annotations

import pytest

from rocketq_broker.store.config import TransactionPolicy
from rocketq_broker.store.machines.machine import HeldFrame
from rocketq_broker.store.machines.topic_table import TopicTable
from rocketq_broker.store.machines.transaction_table import (
    TransactionBegun,
    TransactionChange,
    TransactionDecided,
    TransactionParked,
    TransactionTable,
)
from rocketq_broker.store.transactions import decisions

GROUP = "orders-tx"
#: transactionTimeOut 6 s, transactionCheckInterval 30 s, transactionCheckMax 15, fileReservedTime 72 h.
ROCKETMQ = TransactionPolicy()
SECOND, HOUR = 1_000, 3_600_000


def begun(*times_ms: int, group: str = GROUP) -> TransactionTable:
    """A table with a transaction of one message for each of these times."""
    table = TransactionTable()
    for at_ms in times_ms:
        number = table.next_number
        table = after(table, TransactionBegun(number, f"tx-{number}", group, at_ms))
        table = table.held(number, HeldFrame(64 * number, 64, 1, 0, 0), at_ms)
    return table


def after(table: TransactionTable, change: TransactionChange | None) -> TransactionTable:
    assert change is not None
    return table.apply(change, TopicTable())


def checked(table: TransactionTable, at_ms: int, count: int = 100) -> TransactionTable:
    return after(table, decisions.hand_out(table, GROUP, ROCKETMQ, at_ms, count))


def due(table: TransactionTable, at_ms: int, group: str = GROUP) -> list[str]:
    return [each.id for each in decisions.due_checks(table, group, ROCKETMQ, at_ms)]


def checked_times(count: int) -> tuple[TransactionTable, int]:
    """A transaction of time 0 after so many checks, each as soon as it was due; and when the last one was."""
    table, at_ms = begun(0), 6 * SECOND
    for _ in range(count):
        table, at_ms = checked(table, at_ms), at_ms + 30 * SECOND
    return table, at_ms - 30 * SECOND


@pytest.mark.parametrize(
    ("checks", "later_ms", "is_due", "is_parked"),
    [
        (0, 6 * SECOND - 1, False, False),
        (0, 6 * SECOND, True, False),
        (1, 30 * SECOND - 1, False, False),
        (1, 30 * SECOND, True, False),
        (14, 30 * SECOND - 1, False, False),
        (14, 30 * SECOND, True, False),
        (15, 30 * SECOND - 1, False, False),
        (15, 30 * SECOND, False, True),
        (0, 72 * HOUR - 1, True, False),
        (0, 72 * HOUR, True, True),
        (3, 72 * HOUR - 1, True, False),
        (3, 72 * HOUR, True, True),
    ],
)
def test_checks_fall_due_and_end_as_in_rocketmq(
    checks: int, later_ms: int, is_due: bool, is_parked: bool
) -> None:
    table, last_ms = checked_times(checks) if checks else (begun(0), 0)
    at_ms = last_ms + later_ms
    assert bool(due(table, at_ms)) is is_due
    assert bool(list(decisions.to_park(table, ROCKETMQ, at_ms))) is is_parked
    assert decisions.groups_to_check(table, ROCKETMQ, at_ms) == ([GROUP] if is_due else [])


def test_a_parked_transaction_is_given_up_after_72_hours() -> None:
    table = after(begun(0), TransactionParked(0, SECOND))
    assert due(table, 999 * HOUR) == []
    assert list(decisions.to_park(table, ROCKETMQ, 999 * HOUR)) == []
    for later_ms, found in ((72 * HOUR - 1, []), (72 * HOUR, ["tx-0"])):
        given_up = decisions.to_give_up(table, ROCKETMQ, SECOND + later_ms)
        assert [each.id for each in given_up] == found


def test_checks_are_handed_out_in_the_order_in_which_they_fell_due() -> None:
    table = begun(0, 10 * SECOND, 29 * SECOND, 40 * SECOND)
    table = checked(table, 6 * SECOND)
    # Due at 16 s, 35 s, 36 s (its second check) and 46 s.
    assert due(table, 46 * SECOND) == ["tx-1", "tx-2", "tx-0", "tx-3"]
    table = checked(table, 46 * SECOND, count=3)
    assert due(table, 46 * SECOND) == ["tx-3"]


def test_the_checks_of_one_call_are_bounded_by_their_bytes() -> None:
    table = TransactionTable()
    for number in range(3):
        table = after(table, TransactionBegun(number, f"tx-{number}", GROUP, 0))
        table = table.held(number, HeldFrame(number, decisions.CHECK_BYTES_MAX, 1, 0, 0), 0)
    change = decisions.hand_out(table, GROUP, ROCKETMQ, 6 * SECOND, 100)
    assert change is not None
    assert change.numbers == (0,)


def test_decided_transactions_leave_nothing_in_the_way_of_a_check() -> None:
    """One that stays open at the head, and very many that come and go behind it."""
    table = begun(0)
    for number in range(1, 5_000):
        table = after(table, TransactionBegun(number, f"tx-{number}", GROUP, 0))
        table = after(table, TransactionDecided(number, False, 0))
    table = after(table, TransactionBegun(5_000, "last", GROUP, 0))
    rows = table.group(GROUP)
    assert len(rows) == 2
    assert list(rows.unchecked) == [0, 5_000]


def test_groups_do_not_see_each_other() -> None:
    table = begun(0)
    table = after(table, TransactionBegun(1, "other", "billing", 0))
    assert due(table, 6 * SECOND) == ["tx-0"]
    assert due(table, 6 * SECOND, "billing") == ["other"]
    assert sorted(decisions.groups_to_check(table, ROCKETMQ, 6 * SECOND)) == ["billing", GROUP]
