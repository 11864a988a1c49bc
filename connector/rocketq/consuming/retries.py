"""What happens to a message that could not be handled: where it waits for its next attempt, and who decides.

shares queues     the broker takes it back: it waits in the group's retry topic, and becomes a dead letter
                  after the last attempt (`rocketq.consuming.send_backs`)
in order          it holds its queue and is tried again in place, after `suspend_ms` (RocketMQ:
                  ConsumeMessageOrderlyService, 1 s, between 10 ms and 30 s). After the last attempt, if
                  there is one, the broker makes it a dead letter
broadcasting      the member keeps it and tries it again itself, after RocketMQ's back-off. After the last
                  attempt, if there is one, its queue stands still
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from rocketq.protocol.rules.retry_properties import back_off_ms

#: The wait of an orderly consumer that was told no other.
SUSPEND_MS: Final = 1_000
#: The wait at the member of a message that the broker did not take back (RocketMQ: 5 s).
NOT_TAKEN_MS: Final = 5_000


@dataclass(frozen=True, slots=True)
class Failure:
    """What is said of a message that failed: the wait that is asked for, if any, and why it failed."""

    delay_ms: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TryAgain:
    """Hand the message out again in `delay_ms`."""

    delay_ms: int


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Give the message back to its broker, which decides what follows."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The message has had its last attempt."""

    attempts: int


class Keeping(Enum):
    """How a member consumes, as far as failures are concerned; see above."""

    SHARED = "shared"
    ORDERED = "ordered"
    BROADCAST = "broadcast"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a message is handed out at most, and how long an orderly consumer waits.

    Without `max_attempts` a shared message has as many as its group's settings say, any other has no limit.
    """

    keeping: Keeping
    max_attempts: int | None = None
    suspend_ms: int = SUSPEND_MS

    @property
    def retries_max(self) -> int | None:
        """What the broker is to count by, None if by the group's settings."""
        return None if self.max_attempts is None else self.max_attempts - 1


def after_failure(
    attempt: int, policy: RetryPolicy, delay_ms: int | None = None
) -> TryAgain | GiveBack | GiveUp:
    """Decide what follows when a message fails at its `attempt`-th attempt, counted from 1.

    `delay_ms` is what the one that failed asked for. It changes the wait, not the number of attempts.
    """
    if policy.keeping is Keeping.SHARED:
        return GiveBack()
    if policy.max_attempts is not None and attempt >= policy.max_attempts:
        return GiveBack() if policy.keeping is Keeping.ORDERED else GiveUp(attempt)
    if delay_ms is not None:
        return TryAgain(max(0, delay_ms))
    return TryAgain(policy.suspend_ms if policy.keeping is Keeping.ORDERED else back_off_ms(attempt))
