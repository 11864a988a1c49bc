"""What happens to a message that could not be handled: when it is tried again, and when no more.

The waiting times are RocketMQ's delay levels (MessageStoreConfig.messageDelayLevel), of which a message
that failed for the n-th time gets level n + 2 (AbstractSendMessageProcessor): 10 s, 30 s, 1 min, …, 2 h.
An orderly consumer holds the queue instead and tries again after `suspend_ms` (ConsumeMessageOrderlyService:
1 s, between 10 ms and 30 s).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: RocketMQ's 18 delay levels, in ms; level 1 is the first.
DELAY_LEVELS_MS: Final = (
    1_000, 5_000, 10_000, 30_000,
    *(minutes * 60_000 for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
)  # fmt: skip
#: The level of a message that failed for the first time (RocketMQ: 3 + reconsumeTimes).
FIRST_LEVEL: Final = 3
#: The wait of an orderly consumer that was told no other.
SUSPEND_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class TryAgain:
    """Hand the message out again in `delay_ms`."""

    delay_ms: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The message has had its last attempt."""

    attempts: int


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a message is handed out at most (None: without limit), and how long the waits are.

    `suspend_ms` is the wait of an orderly consumer; None means the levels of a concurrent one.
    """

    max_attempts: int | None = None
    suspend_ms: int | None = None


def after_failure(attempt: int, policy: RetryPolicy, delay_ms: int | None = None) -> TryAgain | GiveUp:
    """Decide what follows when a message fails at its `attempt`-th attempt, counted from 1.

    `delay_ms` is what the one that failed asked for. It changes the wait, not the number of attempts.
    """
    if policy.max_attempts is not None and attempt >= policy.max_attempts:
        return GiveUp(attempt)
    if delay_ms is not None:
        return TryAgain(max(0, delay_ms))
    if policy.suspend_ms is not None:
        return TryAgain(policy.suspend_ms)
    level = min(FIRST_LEVEL + attempt - 1, len(DELAY_LEVELS_MS))
    return TryAgain(DELAY_LEVELS_MS[level - 1])
