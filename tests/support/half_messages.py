"""Short words for what tests do to a store's transactions."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from rocketq.model import Message, TransactionState
from rocketq.protocol.documents.transactions import HalfName
from rocketq_broker.store.machines.transaction_table import Transaction
from tests.support.store_driver import Driver, answer, batch

GROUP = "orders-tx"


def send_half(
    driver: Driver,
    transaction: str,
    queue: int,
    bodies: Iterable[bytes | Message],
    *,
    part: int = 0,
    topic: str = "t",
    group: str = GROUP,
) -> None:
    """Send one part of a transaction."""
    name = HalfName(transaction, group, part)
    answer(lambda done: driver.store.append(topic, [batch(queue, bodies)], done, stage=name))


def decide(driver: Driver, transaction: str, state: TransactionState, group: str = GROUP) -> Any:
    """Decide a transaction; return the outcome when its messages are in their queues."""
    return answer(partial(driver.store.transactions.decide, transaction, group, state))


def commit(driver: Driver, transaction: str, group: str = GROUP) -> Any:
    return decide(driver, transaction, TransactionState.COMMIT, group)


def roll_back(driver: Driver, transaction: str, group: str = GROUP) -> Any:
    return decide(driver, transaction, TransactionState.ROLLBACK, group)


def hand_out(driver: Driver, at_ms: int, count: int = 100, group: str = GROUP) -> list[str]:
    """Take the checks that are due; return the ids of their transactions."""
    found: tuple[Transaction, ...] = answer(partial(driver.store.transactions.hand_out, group, count, at_ms))
    return [each.id for each in found]
