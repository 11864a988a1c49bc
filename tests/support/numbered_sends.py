"""Short words for what tests do with numbered sends."""

from __future__ import annotations

from collections.abc import Sequence

from rocketq.protocol.send_number import SendNumber
from rocketq_broker.store.commit.small_batches import Addressed
from rocketq_broker.store.store import AppendOutcome
from tests.support.store_driver import Call, Driver, answer


def numbered(
    driver: Driver, number: tuple[int, int] | None, batches: Sequence[Addressed], topic: str = "t"
) -> Call:
    """Return the call that appends batches under the number of a slot and a sequence."""
    return lambda done: driver.store.append(
        topic, batches, done, number=None if number is None else SendNumber(*number)
    )


def send_numbered(
    driver: Driver, number: tuple[int, int], batches: Sequence[Addressed], topic: str = "t"
) -> AppendOutcome:
    """Append batches under a number; return where they are."""
    outcome: AppendOutcome = answer(numbered(driver, number, batches, topic))
    return outcome
