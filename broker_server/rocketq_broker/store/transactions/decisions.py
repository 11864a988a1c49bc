"""Decides what a request about a transaction becomes: a change, nothing, or an error; and which checks are
due.

The functions are pure. The log writer calls those that return a change, with the transactions as they are
when the change gets its place in the log (as `state.topic_decisions`). Times are store times in milliseconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Final

from rocketq.errors import InvalidRequest, SystemBusy
from rocketq.errors.transaction_errors import (
    NotTransactionOwner,
    TransactionDamaged,
    TransactionDecidedOtherwise,
    TransactionNotFound,
)
from rocketq.model import TransactionState
from rocketq.protocol.documents.transactions import HalfName
from rocketq_broker.store.config import TransactionPolicy
from rocketq_broker.store.machines.transaction_table import (
    Transaction,
    TransactionBegun,
    TransactionDecided,
    TransactionParked,
    TransactionsChecked,
    TransactionTable,
)

#: Open transactions of all groups, the parked ones included: each is in every picture of the state.
OPEN_MAX: Final = 100_000
#: Sends of one transaction, each a frame.
PARTS_MAX: Final = 1_000
#: Half frames that are read for the checks of one call, beyond the first.
CHECK_BYTES_MAX: Final = 4 << 20
#: When a producer that is refused may try again: transactions end at their producers' pace.
_RETRY_AFTER_MS: Final = 1_000


# --- half messages and outcomes ---------------------------------------------------------


def begin(
    table: TransactionTable, name: HalfName, policy: TransactionPolicy, broker: str, at_ms: int
) -> TransactionBegun | None:
    """Decide a half message: the change that begins its transaction, None if that is open.

    Raises NotTransactionOwner, TransactionDamaged, TransactionDecidedOtherwise, TransactionNotFound,
    InvalidRequest, SystemBusy.
    """
    found = table.find(name.transaction)
    if found is not None:
        check_owner(found, name.group)
        if found.is_damaged:
            raise TransactionDamaged(found.id, broker)
        if name.part > len(found.frames):
            raise InvalidRequest(
                "parameter part", f"{name.part} does not follow: the transaction has {len(found.frames)}",
                hint="Number the sends of a transaction from 0, and make one after the other.",
            )  # fmt: skip
        if name.part >= PARTS_MAX:
            raise InvalidRequest(
                "parameter part", f"a transaction has at most {PARTS_MAX} parts",
                hint="Send several messages in one part, as one Arrow batch.",
            )  # fmt: skip
        return None
    decided = table.decided.get(name.transaction)
    if decided is not None:
        raise TransactionDecidedOtherwise(name.transaction, broker, _outcome(decided).value)
    if name.part:
        raise TransactionNotFound(name.transaction, broker)
    if len(table.group(name.group)) >= policy.group_max:
        why = f"producer group {name.group} has its limit of {policy.group_max} open transactions"
        raise SystemBusy(why, _RETRY_AFTER_MS)
    if len(table.open) >= OPEN_MAX:
        raise SystemBusy(f"the broker has its limit of {OPEN_MAX} open transactions", _RETRY_AFTER_MS)
    return TransactionBegun(table.next_number, name.transaction, name.group, at_ms)


def has_part(table: TransactionTable, name: HalfName) -> bool:
    """Whether this part of an open transaction is held already: its answer was lost, and it came again."""
    found = table.find(name.transaction)
    return found is not None and name.part < len(found.frames)


def decide(
    table: TransactionTable, transaction: str, group: str, state: TransactionState, broker: str
) -> TransactionDecided | None:
    """Decide an outcome, COMMIT or ROLLBACK; None if that is the outcome already.

    Raises TransactionNotFound, NotTransactionOwner, TransactionDamaged, TransactionDecidedOtherwise.
    """
    committed = state is TransactionState.COMMIT
    found = table.find(transaction)
    if found is not None:
        check_owner(found, group)
        if committed and found.is_damaged:
            raise TransactionDamaged(found.id, broker)
        return TransactionDecided(found.number, committed, len(found.frames))
    decided = table.decided.get(transaction)
    if decided is None:
        raise TransactionNotFound(transaction, broker)
    if decided != committed:
        raise TransactionDecidedOtherwise(transaction, broker, _outcome(decided).value)
    return None


def check_owner(found: Transaction, group: str) -> None:
    """Raise NotTransactionOwner unless a transaction is of this producer group."""
    if found.group != group:
        raise NotTransactionOwner(found.id, group, found.group)


def _outcome(committed: bool) -> TransactionState:
    return TransactionState.COMMIT if committed else TransactionState.ROLLBACK


# --- checks -----------------------------------------------------------------------------


def next_check_ms(each: Transaction, policy: TransactionPolicy) -> int | None:
    """Return when a transaction is checked next; None if it had its last check."""
    if each.is_parked or each.had_last_check:
        return None
    if not each.checks:
        return each.begun_at_ms + policy.timeout_ms
    return each.checked_at_ms + policy.check_interval_ms


def due_checks(
    table: TransactionTable, group: str, policy: TransactionPolicy, at_ms: int
) -> Iterator[Transaction]:
    """Yield the transactions of a group whose check is due, in the order in which it fell due."""

    def due_ms(each: Transaction) -> int:
        return next_check_ms(each, policy) or 0

    rows = table.group(group)
    both = heapq.merge(table.in_row(rows.unchecked), table.in_row(rows.checked), key=due_ms)
    return takewhile(lambda each: due_ms(each) <= at_ms, both)


def hand_out(
    table: TransactionTable, group: str, policy: TransactionPolicy, at_ms: int, count: int
) -> TransactionsChecked | None:
    """Decide which checks are handed out now, at most `count`; None if none is due.

    With each goes the first half frame of its transaction. From the second on they have CHECK_BYTES_MAX.
    """
    found: list[Transaction] = []
    size = 0
    for each in islice(due_checks(table, group, policy, at_ms), count):
        size += each.frames[0].size if each.frames else 0
        if found and size > CHECK_BYTES_MAX:
            break
        found.append(each)
    if not found:
        return None
    last = tuple(each.number for each in found if each.checks + 1 >= policy.checks_max)
    return TransactionsChecked(tuple(each.number for each in found), at_ms, last)


def groups_to_check(table: TransactionTable, policy: TransactionPolicy, at_ms: int) -> list[str]:
    """Return the groups for which a check is due; looks at two transactions of each."""
    return [name for name in table.groups if any(True for _ in due_checks(table, name, policy, at_ms))]


# --- what stays undecided ---------------------------------------------------------------


def to_park(table: TransactionTable, policy: TransactionPolicy, at_ms: int) -> Iterator[Transaction]:
    """Yield the transactions to be parked: their checks are used up, or nobody took one for too long."""
    for rows in table.groups.values():
        yield from takewhile(
            lambda each: each.checked_at_ms + policy.check_interval_ms <= at_ms,
            table.in_row(rows.last_checked),
        )
        for row in (rows.unchecked, rows.checked):
            yield from takewhile(
                lambda each: max(each.begun_at_ms, each.checked_at_ms) + policy.kept_ms <= at_ms,
                table.in_row(row),
            )


def to_give_up(table: TransactionTable, policy: TransactionPolicy, at_ms: int) -> Iterator[Transaction]:
    """Yield the parked transactions that nobody decided for so long that they are rolled back."""
    return takewhile(lambda each: each.parked_at_ms + policy.kept_ms <= at_ms, table.in_row(table.parked))


def park(table: TransactionTable, transaction: str, at_ms: int) -> TransactionParked | None:
    """Decide to park a transaction; None if it was decided or parked meanwhile."""
    found = table.find(transaction)
    if found is None or found.is_parked:
        return None
    return TransactionParked(found.number, at_ms)
